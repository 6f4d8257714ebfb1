"""``bunqueue completion``: shell completion of commands, options, and names that a server knows."""

from __future__ import annotations

from typing import Annotated

import typer

from bunqueue.server.settings import SettingsError

from ..framework import completing
from ..framework.shared import Verb
from ..framework.values import argument

app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)

SHELLS = ("bash", "zsh", "fish", "powershell", "pwsh")
_EXAMPLES = "\n".join(
    (
        "source <(bunqueue completion bash)    # also in ~/.bashrc",
        "source <(bunqueue completion zsh)     # also in ~/.zshrc, after compinit",
        "bunqueue completion fish > ~/.config/fish/completions/bunqueue.fish",
    )
)


@app.command(cls=Verb, epilog=_EXAMPLES)
def completion(
    shell: Annotated[str, argument("SHELL", f"{', '.join(SHELLS)}.", completing.one_of(*SHELLS))],
) -> None:
    """Print the completion script for a shell.

    It also completes queues, schedules and webhooks of the server that the command line or BUNQUEUE_URL
    names, if that server is up.
    """
    from typer.completion import get_completion_script  # type: ignore[attr-defined]  # it is not in __all__

    if shell not in SHELLS:
        raise SettingsError(f"SHELL: {shell!r} is not allowed; give one of {', '.join(SHELLS)}")
    print(get_completion_script(prog_name="bunqueue", complete_var="_BUNQUEUE_COMPLETE", shell=shell))

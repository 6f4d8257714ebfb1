"""``bunqueue config``: the settings of the server, and where they come from."""

from __future__ import annotations

import os

import typer

from bunqueue.settings import OPTIONS, resolve_settings

from .server import with_settings

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.callback()
def _config() -> None:
    """Look at the settings of the server."""


@app.command("show")
@with_settings
def show(flags: dict[str, object]) -> None:
    """Print the effective settings and where each came from. Takes the flags of start; hides tokens.

    Example: bunqueue config show --config bunqueue.toml
    """
    settings, sources = resolve_settings(flags, os.environ)
    lines = [f"{option.name} = {option.show(getattr(settings, option.name))}" for option in OPTIONS]
    width = max(map(len, lines))
    for option, line in zip(OPTIONS, lines, strict=True):
        print(f"{line:{width}}  # {sources[option.name]}")

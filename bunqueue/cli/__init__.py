"""The command line: one module per noun, one line on standard error for whatever goes wrong.

Importing this package is cheap; typer is loaded by ``main``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

BAD_USAGE = 2
"""Exit status for wrong flags and settings: repeating the command cannot help."""
INTERRUPTED = 130
"""128 + SIGINT, as shells have it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``bunqueue`` with ``arguments``, or those of the process, and return the exit status."""
    import typer

    from bunqueue.settings import SettingsError

    from . import reshard as reshard  # adds its command
    from . import worker as worker
    from .server import app

    command = typer.main.get_command(app)
    try:
        status = command.main(arguments, prog_name="bunqueue", standalone_mode=False)
    except typer.TyperException as error:
        message = error.format_message()
        if message.startswith("Usage:"):  # no command was given: the error is the help
            print(message)
            return error.exit_code
        return _refuse(_with_hint(message, error), error.exit_code)
    except SettingsError as error:
        return _refuse(str(error), BAD_USAGE)
    except typer.Abort:
        return _refuse("interrupted", INTERRUPTED)
    return status if isinstance(status, int) else 0


def _with_hint(message: str, error: Exception) -> str:
    context = getattr(error, "ctx", None)  # where the parser was; not every error knows
    return f"{message.rstrip('.')}; try {context.command_path} --help" if message and context else message


def _refuse(message: str, status: int) -> int:
    print("bunqueue:", " ".join(message.split()), file=sys.stderr)
    return status

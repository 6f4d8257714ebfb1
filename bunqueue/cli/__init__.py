"""The command line: one module per noun, and one line on standard error for each error.

Importing this package is cheap; typer is loaded by ``main``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from bunqueue.text import printable

from .framework.exits import FAILED, INTERRUPTED, USAGE
from .framework.secrets import hide_secrets
from .framework.streams import open_closed_streams
from .output.terminal import plain_streams

BAD_USAGE = USAGE


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``bunqueue`` with ``arguments``, or those of the process, and return the exit status."""
    open_closed_streams()
    if arguments is None:
        hide_secrets()
    try:
        with plain_streams():
            return _main(arguments)
    except KeyboardInterrupt:  # also while modules are still loading
        return _wrong("interrupted", INTERRUPTED)
    except (BrokenPipeError, SystemExit) as error:
        # Typer raises SystemExit when the pipe breaks while it prints help.
        if isinstance(error, SystemExit) and not isinstance(error.__context__, BrokenPipeError):
            raise
        from .output.output import pipe_closed

        return pipe_closed()


def _main(arguments: Sequence[str] | None) -> int:
    import logging

    import typer

    from bunqueue.errors import BunqueueError
    from bunqueue.server.settings.settings import SettingsError

    from .output.output import Unwritable, flush, speak_any_language
    from .output.progress import Declined
    from .program import app

    logging.getLogger("bunqueue").addHandler(logging.NullHandler())  # the CLI itself reports errors
    speak_any_language()
    wrong = _wrong_as_json if "--json" in (sys.argv if arguments is None else arguments) else _wrong
    command = typer.main.get_command(app)
    try:
        status = command.main(arguments, prog_name="bunqueue", standalone_mode=False)
        flush()
    except typer.TyperException as error:
        message = error.format_message()
        if message.startswith("Usage:"):  # no command was given: the "error" is the help
            print(message)
            flush()
            return error.exit_code
        return wrong(_with_hint(message, error), error.exit_code)
    except SettingsError as error:
        return wrong(str(error), USAGE)
    except BunqueueError as error:
        return _report(error)
    except Declined:
        return _wrong("nothing was changed", FAILED)
    except typer.Abort:
        return _wrong("interrupted", INTERRUPTED)
    except Unwritable as error:
        return _wrong(str(error), FAILED)
    return status if isinstance(status, int) else 0


def _with_hint(message: str, error: Exception) -> str:
    context = getattr(error, "ctx", None)  # the command being parsed; not every error has it
    return f"{message.rstrip('.')}; try {context.command_path} --help" if message and context else message


def _report(error: Exception) -> int:
    """Report an error of the client or the server, in terms of the command line."""
    from .output.errors import status_of, words_of

    return _wrong(words_of(error), status_of(error))


def _wrong_as_json(message: str, status: int) -> int:
    from .output.errors import json_of_usage

    print(json_of_usage(" ".join(message.split())), file=sys.stderr)
    return status


def _wrong(message: str, status: int) -> int:
    print("bunqueue:", printable(" ".join(message.split())), file=sys.stderr)
    return status

"""The command line: one module per noun, and one line on standard error for each error.

Importing this package is cheap; typer is loaded by ``main``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

from .framework.exits import FAILED, INTERRUPTED, USAGE
from .framework.secrets import hide_secrets
from .framework.streams import open_closed_streams
from .output.terminal import plain_streams

BAD_USAGE = USAGE
LOG_FORMAT, LOG_FORMAT_VARIABLE = "--log-format", "BUNQUEUE_LOG_FORMAT"
LOGGING_COMMANDS = ("start", "worker")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``bunqueue`` with ``arguments``, or those of the process, and return the exit status."""
    open_closed_streams()
    if arguments is None:
        hide_secrets()
    try:
        with plain_streams():
            return _main(arguments)
    except KeyboardInterrupt:  # also while modules are still loading
        return _complainer(arguments)("interrupted", INTERRUPTED)
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
    from bunqueue.server.settings import SettingsError

    from .output.output import Unwritable, flush, speak_any_language
    from .output.progress import Declined
    from .program import app

    logging.getLogger("bunqueue").addHandler(logging.NullHandler())  # the CLI itself reports errors
    speak_any_language()
    wrong = _complainer(arguments)
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
        from .output.exit_status import status_of, words_of

        return wrong(words_of(error), status_of(error))
    except Declined:
        return wrong("nothing was changed", FAILED)
    except typer.Abort:
        return wrong("interrupted", INTERRUPTED)
    except Unwritable as error:
        return wrong(str(error), FAILED)
    return status if isinstance(status, int) else 0


def _with_hint(message: str, error: Exception) -> str:
    context = getattr(error, "ctx", None)  # the command being parsed; not every error has it
    return f"{message.rstrip('.')}; try {context.command_path} --help" if message and context else message


def _complainer(given: Sequence[str] | None) -> Callable[[str, int], int]:
    """How this command reports why it cannot do what it should: in the form of its output, or of its log."""
    arguments = sys.argv[1:] if given is None else given
    if "--json" in arguments:
        return _wrong_as_json
    return partial(_wrong, logs_json=logs_json(arguments))


def logs_json(arguments: Sequence[str]) -> bool:
    """Whether a command that logs was asked for JSON, even if its other arguments are wrong."""
    form = None
    for flag, value in pairwise((*arguments, "")):
        name, equals, joined = flag.partition("=")
        if name == LOG_FORMAT:
            form = joined if equals else value
    if form is None and any(command in arguments for command in LOGGING_COMMANDS):
        form = os.environ.get(LOG_FORMAT_VARIABLE)
    return form == "json"


def _wrong_as_json(message: str, status: int) -> int:
    from .output.exit_status import json_of_usage

    print(json_of_usage(" ".join(message.split())), file=sys.stderr)
    return status


def _wrong(message: str, status: int, *, logs_json: bool = False) -> int:
    from bunqueue.logs import report_error

    from .framework.user_module import CannotImport

    found = sys.exception()
    report_error(message, found.__cause__ if isinstance(found, CannotImport) else None, in_json=logs_json)
    return status

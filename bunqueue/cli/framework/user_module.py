"""Import a module of the user's, whose code may raise anything."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

from bunqueue.server.settings import SettingsError


class CannotImport(SettingsError):
    """A module of the user's raised an exception, which is the cause, while it was imported."""


def imported(name: str) -> ModuleType:
    """The module of that name. Raises SettingsError if there is none, or CannotImport."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise SettingsError(
                f"there is no module {error.name!r} in {sys.path[0]} or where Python looks for modules; "
                f"--app-dir names another folder"
            ) from None
        raise CannotImport(f"module {name} cannot be imported: {error}") from _of_user(error)
    except SystemExit as error:
        raise CannotImport(
            f"module {name} ends the program while it is imported; put what does so under "
            f'if __name__ == "__main__":'
        ) from _of_user(error)
    except Exception as error:
        raise CannotImport(
            f"module {name} cannot be imported: {type(error).__name__}: {error}"
        ) from _of_user(error)


def _of_user(error: BaseException) -> BaseException:
    """The exception; its traceback begins with the first frame that is not of Python or bunqueue."""
    trace = error.__traceback__
    while trace is not None and (
        trace.tb_frame.f_code.co_filename.startswith("<frozen") or _is_library(trace.tb_frame.f_globals)
    ):
        trace = trace.tb_next
    return error.with_traceback(trace)


def _is_library(names: dict[str, Any]) -> bool:
    return str(names.get("__name__")).partition(".")[0] in ("bunqueue", "importlib")

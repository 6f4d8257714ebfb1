"""Load `module:name` from the command line, and make services from it."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from bunqueue.client.connection.options import shown
from bunqueue.errors import OptionError
from bunqueue.server.settings.settings import SettingsError
from bunqueue.worker.options import WorkerOptions
from bunqueue.worker.service import Service
from bunqueue.worker.worker import Worker

if TYPE_CHECKING:
    from bunqueue.app.bunqueue import Bunqueue

USUAL_NAMES = ("app", "worker", "workers")
"""The names to try when a target names only its module."""


class Described(Service, Protocol):
    """A service that describes what it runs, and why it ended."""

    @property
    def worn_out(self) -> str | None:
        """The reason why it stopped on its own and needs a new process, or None if it did not."""

    def describe(self) -> list[str]:
        """One line for each queue."""


def load(target: str) -> Any:
    """The object that a target names. Raises SettingsError if it does not exist or cannot be imported."""
    name, _, path = target.partition(":")
    if not name or not all(part.isidentifier() for part in name.split(".")):
        raise SettingsError(f"{target!r} is no target: give module:name, such as tasks:app")
    module = _import(name)
    if not path:
        path = next((usual for usual in USUAL_NAMES if hasattr(module, usual)), "")
        if not path:
            raise SettingsError(
                f"module {name} has none of {', '.join(USUAL_NAMES)}; say what to run: {name}:name"
            )
    found: Any = module
    for part in path.split("."):
        if not hasattr(found, part):
            raise SettingsError(f"module {name} has no {path!r}")
        found = getattr(found, part)
    return found


def app_of(target: str, folder: str) -> Bunqueue:
    """The app that a target names. Its module may be in `folder`. Raises SettingsError if it is not an
    app."""
    from bunqueue.app.bunqueue import Bunqueue

    sys.path.insert(0, os.path.abspath(folder))
    found = load(target)
    if not isinstance(found, Bunqueue):
        raise SettingsError(f"{target} is {shown(found)}; give an app")
    return found


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise SettingsError(
                f"there is no module {error.name!r} in {sys.path[0]} or where Python looks for modules; "
                f"--app-dir names another folder"
            ) from None
        _show(error)
        raise SettingsError(f"module {name} cannot be imported: {error}") from error
    except SystemExit as error:
        _show(error)
        raise SettingsError(
            f"module {name} ends the program while it is imported; put what does so under "
            f'if __name__ == "__main__":'
        ) from error
    except Exception as error:
        _show(error)
        raise SettingsError(f"module {name} cannot be imported: {type(error).__name__}: {error}") from error


def _show(error: BaseException) -> None:
    """Print the traceback from the first frame that belongs neither to Python nor to bunqueue."""
    trace = error.__traceback__
    while trace is not None and (
        trace.tb_frame.f_code.co_filename.startswith("<frozen") or _is_library(trace.tb_frame.f_globals)
    ):
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace)


def _is_library(names: dict[str, Any]) -> bool:
    return str(names.get("__name__")).partition(".")[0] in ("bunqueue", "importlib")


def services_of(found: Any, target: str, queues: Sequence[str], options: WorkerOptions) -> list[Described]:
    """The services of an app, a worker, several workers, or a handler.

    Raises SettingsError for anything else, and for flags that do not apply to it.
    """
    make: Callable[..., list[Described]] | None = getattr(found, "__bunqueue_workers__", None)
    try:
        if make is not None and not isinstance(found, type):
            return list(make(queues, options))
        if isinstance(found, Worker):
            found = [found]
        if isinstance(found, list | tuple) and found and all(isinstance(each, Worker) for each in found):
            if queues:
                raise SettingsError(f"--queue: {target} names its own queues")
            return [worker.with_options(**options) if options else worker for worker in found]
        if hasattr(found, "__bunqueue_handler__"):
            raise SettingsError(f"{target} is a job of an app; name the app instead")
        if not callable(found) or isinstance(found, type):
            raise SettingsError(
                f"{target} is {shown(found)}; give an app, a Worker, or a function that takes a job"
            )
        if not queues:
            raise SettingsError(f"{target} is a handler; say which jobs it runs: --queue NAME")
        return [Worker(list(queues), found, **options)]
    except (OptionError, TypeError) as error:
        raise SettingsError(str(error)) from error

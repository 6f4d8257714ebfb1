"""What `module:name` on the command line stands for, and the services that it is made into."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from bunqueue.client.connection.options import shown
from bunqueue.client.worker.options import WorkerOptions
from bunqueue.client.worker.service import Service
from bunqueue.client.worker.worker import Worker
from bunqueue.errors import OptionError
from bunqueue.settings import SettingsError

if TYPE_CHECKING:
    from bunqueue.app.bunqueue import Bunqueue

USUAL_NAMES = ("app", "worker", "workers")
"""Looked for when a target names only its module."""


class Described(Service, Protocol):
    """A service that says what it is going to do, and how it ended."""

    @property
    def worn_out(self) -> str | None:
        """Why it has stopped by itself, to be replaced by a new process."""

    def describe(self) -> list[str]:
        """A line for each queue."""


def load(target: str) -> Any:
    """The object that a target names. SettingsError for what is not there, or cannot be imported."""
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
    """The app that a target names, whose module may be in `folder`. SettingsError if it is not an app."""
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
    """The traceback, without what is Python's or ours."""
    trace = error.__traceback__
    while trace is not None and (
        trace.tb_frame.f_code.co_filename.startswith("<frozen") or _is_library(trace.tb_frame.f_globals)
    ):
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace)


def _is_library(names: dict[str, Any]) -> bool:
    return str(names.get("__name__")).partition(".")[0] in ("bunqueue", "importlib")


def services_of(found: Any, target: str, queues: Sequence[str], options: WorkerOptions) -> list[Described]:
    """What is to be run: of an app, a worker, several of them, or a handler.

    SettingsError for anything else, and for flags that do not go with it.
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

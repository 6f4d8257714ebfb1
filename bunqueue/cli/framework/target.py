"""Load `module:name` from the command line, and make services from it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from bunqueue.client.connection.options import shown
from bunqueue.errors import OptionError
from bunqueue.server.settings import SettingsError
from bunqueue.worker.options import WorkerOptions
from bunqueue.worker.service import Service
from bunqueue.worker.worker import Worker

from .user_module import imported

if TYPE_CHECKING:
    from bunqueue.app.bunqueue import Bunqueue

USUAL_NAMES = ("app", "worker", "workers")
"""The names to try when a target names only its module."""


class Described(Service, Protocol):
    """A service that describes what it runs, and why it ended."""

    @property
    def recycle_reason(self) -> str | None:
        """The reason why it stopped on its own and needs a new process, or None if it did not."""

    @property
    def asked_to_stop(self) -> bool:
        """Whether somebody asked for its end at the server."""

    def describe(self) -> list[str]:
        """One line for each queue."""


def load(target: str) -> Any:
    """The object that a target names. Raises SettingsError if it does not exist, or CannotImport."""
    name, _, path = target.partition(":")
    if not name or not all(part.isidentifier() for part in name.split(".")):
        raise SettingsError(f"{target!r} is no target: give module:name, such as tasks:app")
    module = imported(name)
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

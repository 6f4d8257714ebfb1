"""One queue of an app: what runs its jobs, by job name, and how many at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from bunqueue.app import queue_settings
from bunqueue.app.task import Task
from bunqueue.app.task_options import TaskOptions, split
from bunqueue.client.options.breaker import Breaker
from bunqueue.client.options.rates import RateLimit as RateLimit  # kept here for old imports
from bunqueue.errors import OptionError
from bunqueue.protocol.commands.base import Command
from bunqueue.protocol.commands.workflows import SetSignalTypes
from bunqueue.worker.active_job import Handler
from bunqueue.worker.batches import Batch
from bunqueue.worker.routes import Handlers, Route
from bunqueue.workflow import values


@dataclass(slots=True)
class QueueConfig:
    """The declarations of an app for a queue. A setting that is not given stays as it is on the server."""

    queue: str
    concurrency: int
    settings: dict[str, Any] = field(default_factory=dict)
    tasks: dict[str, Task[..., Any]] = field(default_factory=dict)
    routes: dict[str, Handler | Route] = field(default_factory=dict)
    batches: dict[str, Route] = field(default_factory=dict)
    breakers: dict[str, Breaker] = field(default_factory=dict)
    has_own_concurrency: bool = False
    """Whether the concurrency was given for this queue."""
    program: str = field(default_factory=lambda: uuid4().hex)
    """The program that declares the signals of its workflows: another program may have other code."""

    def enter(self, table: dict[str, Any], name: str, entry: Any) -> None:
        """Have `entry` run the jobs called `name`. Raises OptionError when something else already does."""
        known = self.tasks.get(name) or self.routes.get(name) or self.batches.get(name)
        if known is not None and _origin(known) != _origin(entry):
            text = f"queue {self.queue!r}: jobs called {name!r} are run by {known!r} already"
            raise OptionError(text, field="name", value=name)
        table[name] = entry

    @property
    def handlers(self) -> Handlers:
        """What runs the jobs, by job name. `ANY` matches all other names."""
        return {
            **self.routes,
            **{name: task.route for name, task in self.tasks.items()},
            **self.batches,
        }

    def slots(self, concurrency: int | None = None) -> int:
        """The number of jobs at a time. A batch is filled in addition to the other jobs, not instead of
        them."""
        others = (
            (self.concurrency if concurrency is None else concurrency) if self.tasks or self.routes else 0
        )
        return others + sum(_size(route) for route in self.batches.values())

    def declare(self, settings: Mapping[str, Any]) -> None:
        """Declare settings of the queue. The last value wins. Raises OptionError."""
        self.settings |= queue_settings.checked(settings)

    def declare_for_task(self, options: TaskOptions) -> TaskOptions:
        """Take the settings of the queue out of the options of a function. Raises OptionError, also when
        another function has set a different value."""
        settings, rest = split(options)
        for name, value in queue_settings.checked(settings).items():
            known = self.settings.setdefault(name, value)
            if isinstance(value, dict) and not any(
                known.get(key, each) != each for key, each in value.items()
            ):
                self.settings[name] = {**known, **value}
            elif known != value:
                raise OptionError(
                    f"queue {self.queue!r}: {name} is {known!r} already, and not {value!r}; say it once",
                    field=name,
                    value=value,
                    bound=known,
                )
        return rest

    def commands(self) -> list[Command]:
        """The commands that set its limits, its breakers and the types of its signals on the server."""
        breakers = [breaker.command(self.queue, name) for name, breaker in self.breakers.items()]
        return [*queue_settings.commands(self.queue, self.settings), *breakers, *self._signal_types()]

    def _signal_types(self) -> Iterator[Command]:
        workflows = {
            name: {signal: values.schema_for(each) for signal, each in task.signals.items()}
            for name, task in self.tasks.items()
            if task.signals is not None
        }
        if workflows:
            yield SetSignalTypes(queue=self.queue, workflows=workflows, by=self.program)


def _size(route: Route) -> int:
    return route.handler.size if isinstance(route.handler, Batch) else 0


def _origin(entry: Any) -> tuple[object, object]:
    """Where something was defined. The same place again is a new version of it, as in a notebook."""
    entry = entry.handler if isinstance(entry, Route) else entry
    entry = entry.handler if isinstance(entry, Batch) else entry
    function: Callable[..., Any] = getattr(entry, "__wrapped__", entry)
    return getattr(function, "__module__", None), getattr(function, "__qualname__", id(function))

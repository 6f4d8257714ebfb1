"""One queue of an app: what runs its jobs, by name, and how many at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bunqueue.app.batches import Batch
from bunqueue.app.task import Task
from bunqueue.client.connection.options import Duration, whole_milliseconds
from bunqueue.client.options import checks
from bunqueue.client.worker.active_job import Handler
from bunqueue.client.worker.routes import Handlers
from bunqueue.errors import OptionError
from bunqueue.protocol.commands import limits
from bunqueue.protocol.commands.base import Command


@dataclass(frozen=True, slots=True)
class RateLimit:
    """`max` jobs in every `per` (ms or a timedelta), over all workers of the queue.

    A token bucket, see `Queue.set_rate_limit`: after a rest `max` at once, then one every `per / max`.
    """

    max: int
    per: Duration = 1000

    def __post_init__(self) -> None:
        self.command("any")

    def command(self, queue: str) -> limits.RateLimit:
        """The command that sets it. OptionError."""
        most, per = checks.whole("rate_limit: max", self.max), whole_milliseconds(self.per, "rate_limit: per")
        return checks.checked(limits.RateLimit(queue=queue, limit=most, duration=per), duration="per")


@dataclass(slots=True)
class QueueConfig:
    """What an app declares of a queue. None: not given, so the server's setting stays."""

    queue: str
    concurrency: int
    rate_limit: RateLimit | None = None
    global_concurrency: int | None = None
    tasks: dict[str, Task[..., Any]] = field(default_factory=dict)
    routes: dict[str, Handler] = field(default_factory=dict)
    batches: dict[str, Batch] = field(default_factory=dict)

    def enter(self, table: dict[str, Any], name: str, entry: Any) -> None:
        """Have `entry` run the jobs called `name`. OptionError when something else does so already."""
        known = self.tasks.get(name) or self.routes.get(name) or self.batches.get(name)
        if known is not None and _origin(known) != _origin(entry):
            raise OptionError(f"queue {self.queue!r}: jobs called {name!r} are run by {known!r} already")
        table[name] = entry

    @property
    def handlers(self) -> Handlers:
        """What runs the jobs, by name; `ANY` stands for all others."""
        return {
            **self.routes,
            **{name: task.route for name, task in self.tasks.items()},
            **{name: batch.run for name, batch in self.batches.items()},
        }

    def slots(self, concurrency: int | None = None) -> int:
        """Jobs at a time: a batch is filled beside the other jobs, not instead of them."""
        others = (
            (self.concurrency if concurrency is None else concurrency) if self.tasks or self.routes else 0
        )
        return others + sum(batch.size for batch in self.batches.values())

    def commands(self) -> list[Command]:
        """The commands that set its limits on the server."""
        commands: list[Command] = []
        if self.rate_limit is not None:
            commands.append(self.rate_limit.command(self.queue))
        if self.global_concurrency is not None:
            commands.append(limits.SetConcurrency(queue=self.queue, limit=self.global_concurrency))
        return commands


def _origin(entry: Any) -> tuple[object, object]:
    """Where something was defined: the same place again is a new version of it, as in a notebook."""
    function: Callable[..., Any] = getattr(entry, "__wrapped__", None) or getattr(entry, "_handler", entry)
    return getattr(function, "__module__", None), getattr(function, "__qualname__", id(function))

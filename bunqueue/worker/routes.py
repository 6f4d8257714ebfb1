"""Which handler runs jobs of which name, and where: in the event loop, in a thread, or in a process."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from bunqueue.client.callables import is_async, runnable
from bunqueue.client.connection.options import refused, shown, unfit
from bunqueue.client.options import checks
from bunqueue.errors import Postpone
from bunqueue.worker.active_job import ActiveJob, Handler, JobChannel
from bunqueue.worker.batches import Batch
from bunqueue.worker.processes.handler_path import path_of
from bunqueue.worker.retry_rules import RetryRules, checked_rules, with_rules
from bunqueue.worker.typed_data import with_typed_data

logger = logging.getLogger("bunqueue.worker")

ANY = "*"
"""In place of a name: jobs that have no handler of their own."""
UNKNOWN_MS = 30_000  # until a job with an unknown name is tried again: a deployment may be in progress

MAX_LOGGED = 1000  # names without a handler that are logged; made-up names must not fill log and memory

RunIn = Literal["thread", "process"]
LOOP, THREAD, PROCESS = "loop", "thread", "process"

_logged: set[tuple[str, str]] = set()  # queues and names that were already logged


@dataclass(frozen=True, slots=True)
class Route:
    """A handler, and where it runs if it is a plain function; None: like the other handlers of its worker.

    With `at_most_once` its jobs are completed before it is called, see `WorkerOptions`.
    """

    handler: Handler | Batch
    run_in: RunIn | None = None
    at_most_once: bool = False
    retry: RetryRules | None = None
    """What its exceptions mean; None: the worker's rules apply, else those of each job."""


Handlers = Mapping[str, Handler | Route | Batch]
"""Handlers by the names of jobs."""


@dataclass(frozen=True, slots=True)
class ByQueue:
    """Handlers by the names of jobs, separately for each queue."""

    queues: Mapping[str, Handlers]


Work = Handler | Route | Batch | Handlers | ByQueue
"""What a worker is given: one handler for all jobs, or several."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A checked handler, and where it runs."""

    handler: Handler
    executor: str
    path: str = ""
    """The path by which another process finds the handler, if it runs there."""
    at_most_once: bool = False
    rules: RetryRules | None = None
    """Rules that still have to be applied: to the exceptions of another process."""
    batch: Batch | None = None
    """Collects jobs before the handler is called."""


def checked_run_in(run_in: RunIn | None) -> RunIn | None:
    """Return `run_in`. Raises OptionError for an unknown place."""
    if run_in not in (None, THREAD, PROCESS):
        raise refused("run_in", run_in, "is not allowed; give 'thread' or 'process'")
    return run_in


class Table:
    """The plans of a worker. Raises OptionError for invalid job names, and TypeError for a handler that is
    not callable or cannot run where it should.
    """

    def __init__(
        self,
        handlers: Work,
        run_in: RunIn | None = None,
        *,
        at_most_once: bool = False,
        retry: RetryRules | None = None,
    ) -> None:
        checked_run_in(run_in)
        self.of_queue: Mapping[str, Table] = {}
        """Replaces `plans` if each queue has its own handlers."""
        self.plans: dict[str, Plan] = {}
        if isinstance(handlers, ByQueue):
            self.of_queue = {
                queue: Table(each, run_in, at_most_once=at_most_once, retry=retry)
                for queue, each in handlers.queues.items()
            }
            return
        by_name = handlers if isinstance(handlers, Mapping) else {ANY: handlers}
        if not by_name:
            raise unfit("handler", "an empty map runs no jobs; give handlers by the names of jobs")
        self.plans = {
            checks.job_name(name): _plan(each, run_in, at_most_once, checked_rules(retry))
            for name, each in by_name.items()
        }

    @property
    def names(self) -> list[str] | None:
        """The names of the jobs that it runs, unless each queue has its own; None: all."""
        return None if ANY in self.plans else list(self.plans)

    def of(self, queue: str) -> Table:
        """The table of one queue."""
        return self.of_queue.get(queue, self)

    def _all(self) -> Iterator[Plan]:
        for table in self.of_queue.values():
            yield from table.plans.values()
        yield from self.plans.values()

    @property
    def executors(self) -> set[str]:
        """Where handlers run."""
        return {plan.executor for plan in self._all()}

    @property
    def paths(self) -> list[str]:
        """What other processes have to import."""
        return sorted({plan.path for plan in self._all() if plan.path})

    @property
    def batch_size(self) -> int:
        """The number of jobs that all batches can hold at a time."""
        return sum(plan.batch.size for plan in self._all() if plan.batch is not None)

    def withdraw(self, channel: JobChannel) -> None:
        """The worker of this channel stops: its batches are not filled further."""
        for plan in self._all():
            if plan.batch is not None:
                plan.batch.withdraw(channel)

    def find(self, name: str) -> Plan:
        """The plan for jobs called `name`. Jobs without one are put back and logged; no attempt counts."""
        return self.plans.get(name) or self.plans.get(ANY) or Plan(unknown, LOOP)


async def unknown(job: ActiveJob) -> None:
    """Put back a job that no handler here runs."""
    if (job.queue, job.name) not in _logged and len(_logged) < MAX_LOGGED:
        _logged.add((job.queue, job.name))
        words = "queue %r: nothing here runs jobs called %r; they wait for a worker that does"
        logger.warning(words, job.queue, job.name)
    put_back = Postpone(UNKNOWN_MS, f"no worker for the name {job.name!r} was there")
    put_back.counts = False  # it was not the job's own handler that put it back
    raise put_back


def _plan(
    route: Handler | Route | Batch, run_in: RunIn | None, once: bool, general: RetryRules | None
) -> Plan:
    own = route.run_in if isinstance(route, Route) else None
    once = once or (isinstance(route, Route) and route.at_most_once)
    given = route.handler if isinstance(route, Route) else route
    batch = given if isinstance(given, Batch) else None
    handler = checked(given.run if isinstance(given, Batch) else given)
    rules = (checked_rules(route.retry) if isinstance(route, Route) else None) or general
    called = with_rules(with_typed_data(handler), rules)
    if is_async(handler):
        if own is not None:
            raise TypeError(f"handler: {shown(given)} is a coroutine function: it runs in the event loop")
        return Plan(called, LOOP, at_most_once=once, batch=batch)
    executor = own or run_in or THREAD
    if executor != PROCESS:
        return Plan(called, executor, at_most_once=once)
    if rules and not rules.by_name:
        raise TypeError(
            f"handler: {shown(handler)} runs in a process of its own, whose exceptions do not come here: its "
            f"retry rules may name classes; functions are for @app.job"
        )
    return Plan(called, executor, path_of(handler), once, rules)


def checked(handler: Handler) -> Handler:
    """Return `handler`. Raises TypeError if it cannot be called with a job."""
    runnable(handler, "handler")
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):  # some functions written in C have no signature
        return handler
    try:
        signature.bind(None)
    except TypeError:
        raise TypeError(f"handler: {shown(handler)} must take one argument, the job") from None
    return handler

"""The options of a worker, and the `WorkerConfig` made from them."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from bunqueue.client.connection.endpoint_options import EndpointOptions
from bunqueue.client.connection.options import Duration, milliseconds, refused, span, unknown_option
from bunqueue.client.options import checks
from bunqueue.client.options.rates import Rate, rate_limit
from bunqueue.errors import JobStopped
from bunqueue.model.durations import DAY_MS
from bunqueue.protocol.commands.core import GroupLimit, GroupRule
from bunqueue.worker.active_job import ActiveJob
from bunqueue.worker.fetching.fetcher import MAX_PULL, FetchConfig
from bunqueue.worker.fetching.order import Order, checked_order
from bunqueue.worker.job_logging import level_of
from bunqueue.worker.job_runner import RunConfig
from bunqueue.worker.locks.lock_renewer import renewal_interval
from bunqueue.worker.middleware import Middleware, checked
from bunqueue.worker.outcomes import Callbacks
from bunqueue.worker.processes.pool import Recycle
from bunqueue.worker.retry_rules import RetryRules
from bunqueue.worker.routes import LOOP, PROCESS, THREAD, RunIn, Table, Work
from bunqueue.worker.run import WorkerConfig

MAX_NAME = 200
MAX_POLL_MS = 60_000  # the protocol's limit


class WorkerOptions(EndpointOptions, total=False):
    """How a worker works, and where its server is. Durations are numbers of ms, timedeltas, or
    texts such as "30s"."""

    concurrency: int
    """The number of jobs at a time, of all kinds together; 1 unless given."""
    order: Order
    """For several queues: "even" (the default): each has a slot of its own; "strict": later ones only if the
    earlier ones have nothing ready; or a map with a weight for each queue.
    """
    run_in: RunIn
    """Where plain functions run: "thread" (the default), or "process", a separate process."""
    at_most_once: bool
    """Complete each job before its handler is called, so no job runs twice: a job that fails, or whose worker
    dies, is not run again, and results are not stored. False unless given.
    """
    threads: int | None
    """The number of plain functions that run in threads at a time; None: same as `concurrency`."""
    processes: int | None
    """The number of processes, each of which runs one plain function at a time; None: same as
    `concurrency`.
    """
    recycle: Recycle
    """When a process is replaced by a new one; by default only when it dies."""
    max_jobs: int | None
    """The worker runs this many jobs, then stops gracefully, and `recycle_reason` says so; None: never. For
    handlers that leak memory.
    """
    max_memory: int | None
    """The same once its process uses more bytes than this."""
    forward_logs: int | str | None
    """Also send records of the standard logging from this level on, made while a handler runs, to the job's
    log; None: none.
    """
    grace: Duration
    """How long handlers may take to end after `stop` before they are cancelled; 30 s unless given."""
    group_concurrency: int | None
    """Take jobs of a group only while fewer than this many of them run, over all workers; limits set for the
    group or its queue take precedence. None: no limit.
    """
    group_rate: Rate | None
    """The same for how many start within a time: "100/min"."""
    name: str
    """The first part of the name under which the server lists who holds a job; the host's name
    unless given.
    """
    retry: RetryRules | None
    """What exceptions of handlers mean for their jobs, see `RetryRules`; a `Route` may have its own."""
    middleware: Iterable[Middleware]
    """Wraps each run, see `Middleware`."""
    lock_ttl: Duration
    """How long a job stays locked after a heartbeat; 30 s unless given."""
    heartbeat_interval: Duration | None
    """The time between two heartbeats, which come from a separate thread: at most a third of `lock_ttl`;
    None: a third, but at most 10 s.
    """
    poll_timeout: Duration
    """How long an idle poll waits at the server, at most a minute; 5 s unless given."""
    pull_size: int | None
    """How many jobs one poll may bring; None: as many as can start."""
    ack_batch: int
    """How many completed jobs are reported at once; 10 unless given."""
    ack_delay: Duration
    """How long a completed job waits to be reported together with others, unless the worker is otherwise
    idle; 50 ms unless given.
    """
    on_completed: Callable[[ActiveJob, Any], object] | None
    """Called with a job and its result once the server has them. Like all callbacks, in the event loop."""
    on_failed: Callable[[ActiveJob, BaseException], object] | None
    """Called with a job and its error once the server has recorded a failed attempt, which is also logged."""
    on_stopped: Callable[[ActiveJob, JobStopped], object] | None
    """Called with a job that was cancelled while it ran, or given back because the worker stopped."""
    on_error: Callable[[Exception], object] | None
    """Called when something else goes wrong: a lost lock, which is always logged, or a lost connection, which
    is logged only without this callback.
    """


ENDPOINT = frozenset(EndpointOptions.__annotations__)
KNOWN = frozenset(WorkerOptions.__annotations__)


def endpoint_options_of(options: WorkerOptions) -> EndpointOptions:
    """The server options. Raises OptionError for an unknown option."""
    for name in options:
        if name not in KNOWN:
            raise unknown_option("a worker", name, KNOWN)
    return {name: value for name, value in options.items() if name in ENDPOINT}  # type: ignore[return-value]


def name_of(queues: tuple[str, ...], options: WorkerOptions) -> str:
    """By default its first queue, host and process: ``emails@web-1:4711``. Raises OptionError if too long."""
    if not options.get("name"):
        more = f"+{len(queues) - 1}" if len(queues) > 1 else ""
        return f"{queues[0]}{more}@{socket.gethostname()}:{os.getpid()}"[-MAX_NAME:]
    name = options["name"]
    if not isinstance(name, str) or len(name) > MAX_NAME:
        raise refused("name", name, f"is not allowed; give a text of 1 to {MAX_NAME} characters")
    return name


def grace_of(options: WorkerOptions) -> float:
    """The grace period in seconds."""
    return span(options.get("grace", 30_000), "grace") / 1000


def queues_of(queue: str | Sequence[str]) -> tuple[str, ...]:
    """One or several names. Raises OptionError for an invalid one."""
    names = tuple(queue) if isinstance(queue, list | tuple | set) else (queue,)
    if not names or len(set(names)) < len(names):
        raise refused("queue", queue, "is not allowed; give a name, or several different ones")
    return tuple(checks.queue_name(name) for name in names)


def config_of(queues: tuple[str, ...], handlers: Work, options: WorkerOptions) -> WorkerConfig:
    """The configuration of a worker for these queues. Raises OptionError, or TypeError for a non-handler."""
    lock_ttl = _lock_ttl(options.get("lock_ttl", 30_000))
    run, concurrency = _run_config(handlers, options)
    order = checked_order(options.get("order", "even"), queues)
    if order == "even" and concurrency < len(queues):
        least = f"is too little for {len(queues)} queues; give one for each at least"
        raise refused("concurrency", concurrency, least, len(queues))
    pull_size = options.get("pull_size")
    fetch = FetchConfig(
        queues=queues,
        owner=f"{options.get('name') or socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}",
        pull_size=min(checks.whole("pull_size", concurrency if pull_size is None else pull_size), MAX_PULL),
        lock_ttl=lock_ttl,
        poll_timeout=_poll_timeout(options.get("poll_timeout", 5_000)),
        order=order,
        group=_group_rule(options.get("group_concurrency"), options.get("group_rate")),
    )
    return WorkerConfig(
        name=name_of(queues, options),
        fetch=fetch,
        run=run,
        concurrency=concurrency,
        max_jobs=_limit("max_jobs", options.get("max_jobs")),
        max_memory=_limit("max_memory", options.get("max_memory")),
        renewal_interval=renewal_interval(options.get("heartbeat_interval"), lock_ttl),
        ack_batch=checks.whole("ack_batch", options.get("ack_batch", 10)),
        ack_delay=span(options.get("ack_delay", 50), "ack_delay") / 1000,
        callbacks=Callbacks(
            on_completed=checks.function("on_completed", options.get("on_completed")),
            on_failed=checks.function("on_failed", options.get("on_failed")),
            on_stopped=checks.function("on_stopped", options.get("on_stopped")),
            on_error=checks.function("on_error", options.get("on_error")),
        ),
    )


def _group_rule(concurrency: int | None, rate: Rate | None) -> GroupRule:
    """The limits on the worker's pulls from a group."""
    rule = GroupRule(concurrency=_limit("group_concurrency", concurrency), fair=True)
    if rate is not None:
        found = rate_limit(rate, "group_rate")
        rule.limit = GroupLimit(found.max, found.window)
    return rule


def _limit(name: str, value: int | None) -> int | None:
    return None if value is None else checks.whole(name, value)


def _run_config(handlers: Work, options: WorkerOptions) -> tuple[RunConfig, int]:
    """The run configuration, and how many jobs can run at a time, limited by their kinds."""
    once = checks.switch("at_most_once", options.get("at_most_once", False))
    table = Table(handlers, options.get("run_in"), at_most_once=once, retry=options.get("retry"))
    concurrency = checks.whole("concurrency", options.get("concurrency", 1))
    if concurrency < table.batch_size:
        size = table.batch_size
        why = f"is too little for batches of {size} jobs; each job of a batch has a place of its own"
        raise refused("concurrency", concurrency, why, size)
    limits = {LOOP: concurrency}
    for executor, name in ((THREAD, "threads"), (PROCESS, "processes")):
        limit: Any = options.get(name)
        limits[executor] = concurrency if limit is None else checks.whole(name, limit)
    run = RunConfig(
        table=table,
        threads=limits[THREAD],
        processes=limits[PROCESS],
        recycle=checks.one("recycle", options.get("recycle") or Recycle(), Recycle),
        log_level=level_of(options.get("forward_logs")),
        middleware=checked(options.get("middleware", ())),
    )
    return run, min(concurrency, sum(limits[executor] for executor in table.executors))


def _poll_timeout(value: Duration) -> int | float:
    timeout = milliseconds(value, "poll_timeout")
    if not 0 <= timeout <= MAX_POLL_MS:
        allowed = f"a time from 0 to {MAX_POLL_MS} ms"
        raise refused("poll_timeout", value, f"is not allowed; give {allowed}")
    return timeout


def _lock_ttl(value: Duration) -> int:
    ttl = milliseconds(value, "lock_ttl")
    if not 1 <= ttl <= DAY_MS:
        raise refused("lock_ttl", value, "is not allowed; give a time from 1 ms to a day")
    return int(ttl)

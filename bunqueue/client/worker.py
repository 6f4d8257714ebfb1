"""`Worker`: takes jobs from a queue and runs them, until it is stopped."""

from __future__ import annotations

import asyncio
import inspect
import os
import secrets
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from bunqueue.client import checks
from bunqueue.client.connection_options import ConnectionOptions, Duration, milliseconds, seconds, shown
from bunqueue.client.middleware import Middleware, checked
from bunqueue.client.runner import ActiveJob, Handler
from bunqueue.client.service import run_forever
from bunqueue.client.shift import Orders, Shift
from bunqueue.client.tls import Tls
from bunqueue.errors import OptionError
from bunqueue.model.durations import DAY_MS

MAX_PULL = 1000  # jobs in one answer; the protocol's limit
MAX_POLL_MS = 60_000  # the protocol's limit
MAX_RENEWAL = 10.0  # seconds between two renewals, unless one says otherwise


@dataclass(frozen=True, slots=True)
class WorkerStats:
    """What a worker has done since its start, and what it does now."""

    completed: int = 0
    failed: int = 0
    """Attempts, not jobs."""
    lost: int = 0
    """Jobs whose outcome did not count, because their lock was lost."""
    active: int = 0


class Worker:
    """Runs `handler` for the jobs of `queue`, at most `concurrency` at a time.

        async def send(job: ActiveJob) -> object: ...
        await Worker("emails", send, concurrency=20).run()

    A coroutine function runs in the event loop, a plain function in a thread. What it gives back is the job's
    result, an exception fails the attempt. All times are numbers of ms, or timedeltas:

    - `lock_ttl`: how long a job stays ours after a sign of life; `heartbeat_interval`: between two of them,
      given by a thread of their own: at most a third of `lock_ttl`, None: that, but no more than 10 s;
    - `poll_timeout`: how long an idle poll waits at the server; `pull_size`: jobs it may bring at once;
    - `ack_batch`, `ack_delay`: how many completed jobs are reported at once, and how long the first waits
      for others, unless the worker has nothing else to do;
    - `grace`: how long handlers may take to end after `stop`, before they are cancelled.

    `on_completed(job, result)` and `on_failed(job, error)` are called in the event loop when the server
    knows, `on_error(error)` when something else goes wrong: a lost lock, a lost connection. Without them dead
    letters and troubles are logged as warnings. `name` begins the name under which the server knows who holds
    a job. `middleware` is around each run, see `Middleware`.
    """

    def __init__(
        self,
        queue: str,
        handler: Handler,
        *,
        concurrency: int = 1,
        lock_ttl: Duration = 30_000,
        heartbeat_interval: Duration | None = None,
        poll_timeout: Duration = 5_000,
        pull_size: int | None = None,
        ack_batch: int = 10,
        ack_delay: Duration = 50,
        grace: Duration = 30_000,
        host: str | None = None,
        port: int | str | None = None,
        token: str | None = None,
        url: str | None = None,
        tls: Tls | None = None,
        embedded: bool = False,
        data_path: str | os.PathLike[str] | None = None,
        connection: ConnectionOptions | None = None,
        name: str | None = None,
        middleware: Iterable[Middleware] = (),
        on_completed: Callable[[ActiveJob, Any], object] | None = None,
        on_failed: Callable[[ActiveJob, BaseException], object] | None = None,
        on_error: Callable[[Exception], object] | None = None,
    ) -> None:
        self.queue = checks.queue_name(queue)
        pull_size = concurrency if pull_size is None else pull_size
        self.name = name or socket.gethostname()
        self._grace = seconds(grace, "grace")
        self._endpoint = checks.endpoint(host, port, token, embedded, data_path, connection, url, tls)
        self._orders = Orders(
            queue=queue,
            handler=_checked(handler),
            owner=f"{self.name}:{os.getpid()}:{secrets.token_hex(4)}",
            concurrency=checks.whole("concurrency", concurrency),
            pull_size=min(checks.whole("pull_size", pull_size), MAX_PULL),
            lock_ttl=_lock_ttl(lock_ttl),
            poll_timeout=min(milliseconds(poll_timeout, "poll_timeout"), MAX_POLL_MS),
            renewal_interval=_renewal_interval(heartbeat_interval, _lock_ttl(lock_ttl)),
            ack_batch=checks.whole("ack_batch", ack_batch),
            ack_delay=seconds(ack_delay, "ack_delay"),
            middleware=checked(middleware),
            on_completed=on_completed,
            on_failed=on_failed,
            on_error=on_error,
        )
        self._shift: Shift | None = None
        self._stopping: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"Worker({self.queue!r} at {self._endpoint.address}, owner={self.owner!r})"

    @property
    def owner(self) -> str:
        """Under which name the server knows who holds a job: name, process, and a random part."""
        return self._orders.owner

    @property
    def stats(self) -> WorkerStats:
        """Numbers since the last start."""
        shift = self._shift
        return WorkerStats(shift.completed, shift.failed, shift.lost, shift.busy) if shift else WorkerStats()

    async def start(self) -> None:
        """Begin to take jobs, and return. A worker that runs already goes on.

        Does not wait for a connection. Raises what opening the file of an embedded queue raises.
        """
        if self._stopping is not None:
            if not self._stopping.done():
                await asyncio.shield(self._stopping)
            self._shift = self._stopping = None
        if self._shift is None:
            self._shift = Shift(self._orders, self._endpoint)
            try:
                await self._shift.start()
            except BaseException:
                self._shift = None
                raise

    async def stop(self, *, grace_ms: float | None = None) -> None:
        """Take no more jobs, let handlers end, report, close. Safe to call twice.

        After `grace_ms` (None: the worker's own `grace`) handlers that still run are cancelled, or left
        behind in their threads, and their attempts fail as interrupted.
        """
        shift = self._shift
        if shift is None:
            return
        grace = self._grace if grace_ms is None else grace_ms / 1000
        if self._stopping is None:
            shift.over.set()
            self._stopping = asyncio.create_task(shift.stop(grace))
        elif grace <= 0:
            shift.hurry()
        try:
            await asyncio.shield(self._stopping)
        except asyncio.CancelledError:
            shift.hurry()
            raise

    def stop_soon(self, *, hurry: bool = False) -> None:
        """Have `run` stop and return; what a signal handler calls. With `hurry` the grace is over at once."""
        shift = self._shift
        if shift is not None:
            shift.over.set()
            if hurry:
                shift.hurry()

    async def run(self) -> None:
        """Work until `stop` or `stop_soon` is called, or this is cancelled.

        Raises AuthError when the server refuses the token, and KeyboardInterrupt or SystemExit when a
        coroutine handler raised it; all that after an orderly stop.
        """
        problem = await self.serve()
        if problem is not None:
            raise problem

    async def serve(self) -> BaseException | None:
        """As `run`, but what it would raise is returned."""
        await self.start()
        shift = self._shift
        assert shift is not None
        try:
            await shift.over.wait()
        finally:
            await self.stop()
        return shift.fatal

    def run_forever(self) -> None:
        """As `run`, in an event loop of its own, until SIGTERM or SIGINT; a second signal ends the grace."""
        run_forever(self)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


def _checked(handler: Handler) -> Handler:
    if not callable(handler):
        raise TypeError(f"handler: {shown(handler)} cannot be called; give a function that takes the job")
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):  # some that are written in C do not tell
        return handler
    try:
        signature.bind(None)
    except TypeError:
        raise TypeError(f"handler: {shown(handler)} must take one argument, the job") from None
    return handler


def _lock_ttl(value: Duration) -> int:
    ttl = milliseconds(value, "lock_ttl")
    if not 1 <= ttl <= DAY_MS:
        raise OptionError(f"lock_ttl: {shown(value)} is not allowed; give a time from 1 ms to a day")
    return int(ttl)


def _renewal_interval(value: Duration | None, lock_ttl: int) -> float:
    """Seconds between two renewals; two may be lost before a job is."""
    if value is None:
        return min(MAX_RENEWAL, lock_ttl / 3000)
    interval = milliseconds(value, "heartbeat_interval")
    if not 1 <= interval <= lock_ttl / 3:
        raise OptionError(
            f"heartbeat_interval: {shown(value)} is not allowed; give a time from 1 ms to a third of "
            f"lock_ttl, which is {lock_ttl} ms"
        )
    return interval / 1000

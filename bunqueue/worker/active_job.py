"""The job that a handler receives: its fields, and what the handler can do with it while it runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from contextvars import ContextVar
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar, overload

from msgspec import Raw, Struct
from msgspec.msgpack import Decoder

from bunqueue.client.connection.options import Duration
from bunqueue.client.conversion.words import MAX_LINE, storable
from bunqueue.client.models.jobs import Cause, Job, as_data
from bunqueue.client.models.workflows import PulledRun, RunInfo
from bunqueue.client.options import checks
from bunqueue.client.options.job import encode_data
from bunqueue.errors import JobCancelled, JobInterrupted, JobStopped, JobTimeout
from bunqueue.model.decoders import decoder
from bunqueue.model.job import UNDEFINED
from bunqueue.protocol.commands import jobs, query
from bunqueue.workflow.channel import FlowChannel
from bunqueue.workflow.plain import StepsOfJob
from bunqueue.workflow.retry import RetryRule

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    T = TypeVarWithDefault("T", default=Any)
else:
    T = TypeVar("T")

Handler = Callable[["ActiveJob[Any]"], Any]
"""A coroutine function, which runs in the event loop, or a plain function, which runs in a thread."""

D = TypeVar("D")
K = TypeVar("K")

CANCELLED, TIMED_OUT, INTERRUPTED = "cancelled", "timed out", "interrupted"


class Ending(NamedTuple):
    """Why a run has to end early."""

    why: str  # CANCELLED: by anyone; TIMED_OUT; INTERRUPTED: the worker stops
    reason: str | None = None
    grace: float = 0.0  # seconds until it ends without its handler's cooperation


class JobChannel(FlowChannel, Protocol):
    """The connection from a handler to the server."""

    def send(self, command: Struct) -> Awaitable[None]:
        """Execute a command. In a thread without an event loop it is done when this returns."""

    def send_nowait(self, command: Struct) -> None:
        """Send it later. Errors are not reported."""


class Outdated(Struct, gc=False):
    """The parts of a pulled job that are encrypted with an older key, decoded."""

    data: Raw = Raw(UNDEFINED)


class _Pulled(Struct, rename="camel", gc=False):
    """The parts of a pulled job that a handler needs at once; the rest is decoded on demand."""

    id: str
    queue: str
    name: str = "default"
    data: Raw = Raw(b"\xc0")
    attempts: int = 0
    max_attempts: int = 3
    remove_on_complete: bool = False
    remove_on_fail: bool = False
    timeout: float | None = None
    postponed: int = 0
    outdated: Outdated | None = None


REQUEST_ID = "x-request-id"


class _Headers(Struct, gc=False):
    headers: dict[str, Any] | None = None


_decode_headers = decoder(_Headers).decode
_decode_pulled = decoder(_Pulled).decode
_decode_data = Decoder().decode
_decode_job = decoder(Job).decode
_decode_run = decoder(PulledRun).decode


class ActiveJob(Generic[T]):
    """The job that a handler works on. If a handler's job is annotated as `ActiveJob[Order]`, its `data` is
    an Order; see `data_as` for the allowed types.

    `attempts` counts the failures before this run, `max_attempts` is the total number of attempts, `timeout`
    is how many ms a run may take, if limited, and `postponed` counts how often handlers put it back with
    Postpone.
    """

    __slots__ = (
        "_channel",
        "_pulled_run",
        "_request_id",
        "_steps",
        "acked",
        "attempts",
        "calls",
        "carried",
        "data",
        "ending",
        "failing",
        "halt",
        "id",
        "is_workflow",
        "max_attempts",
        "name",
        "outdated",
        "postponed",
        "queue",
        "raw",
        "remove_on_complete",
        "remove_on_fail",
        "timeout",
        "token",
        "took",
        "woken",
    )

    def __init__(self, raw: Raw, token: str, channel: JobChannel) -> None:
        """Raises MsgspecError if `raw` is not a job. `open` decodes its `data`."""
        pulled = _decode_pulled(raw)
        self.id = pulled.id
        self.queue = pulled.queue
        self.name = pulled.name
        self.data: T = pulled.data  # type: ignore[assignment] # until it is opened
        self.attempts = pulled.attempts
        self.max_attempts = pulled.max_attempts
        self.remove_on_complete = pulled.remove_on_complete
        self.remove_on_fail = pulled.remove_on_fail
        self.timeout = pulled.timeout
        self.postponed = pulled.postponed
        self.outdated = pulled.outdated
        """For the worker: what has to be encrypted again."""
        self.token = token
        """Proves that this worker holds the job."""
        self.raw = raw
        """The job as received from the server."""
        self.ending: Ending | None = None
        """For the worker: why the run has to end; handlers use `cancelled`."""
        self.acked = False
        """For the worker: the server has already marked it as completed, and its handler runs at
        most once.
        """
        self.took: float | None = None
        """For the worker: how many seconds its handler ran, if that is logged."""
        self.failing = False
        """For the worker: the attempt has failed, and the failure is being reported."""
        self.halt: Callable[[], object] | None = None
        """For the worker: makes the handler end, while it runs."""
        self.carried: tuple[tuple[str, Raw], ...] = ()
        """For the worker: the data given to `carry`."""
        self.calls: Collection[asyncio.Future[Any]] = ()
        """For the worker: functions of its steps that run in threads; they may still run after the job's run
        has ended.
        """
        self.is_workflow = False
        """For the worker: its handler is the function of a workflow, which is running."""
        self.woken: Callable[[int], object] | None = None
        """For the worker: called with the numbers of ended steps that a workflow may be waiting for."""
        self._channel = channel
        self._pulled_run: PulledRun | None = None
        self._request_id: str | None = None
        self._steps: StepsOfJob | None = None

    def __repr__(self) -> str:
        return (
            f"ActiveJob(queue={self.queue!r}, name={self.name!r}, id={self.id!r}, attempts={self.attempts})"
        )

    def open(self) -> None:
        """Decode the data. Raises MsgspecError, or whatever Python raises for a broken payload."""
        self.data = _decode_data(self.data)  # type: ignore[arg-type]

    @property
    def channel(self) -> JobChannel:
        """For the worker: the connection to the server."""
        return self._channel

    @property
    def request_id(self) -> str | None:
        """The id of the request that it was added for: its header `x-request-id`."""
        if self._request_id is None:
            found = (_decode_headers(self.raw).headers or {}).get(REQUEST_ID)
            self._request_id = found if isinstance(found, str) else ""
        return self._request_id or None

    def is_of(self, channel: JobChannel) -> bool:
        """For the worker: whether its commands use that channel."""
        return self._channel is channel

    def is_same_run(self, other: ActiveJob[Any]) -> bool:
        """For the worker, if it received the job again: whether that is for the run in progress and not for
        another attempt.
        """
        if self._which_run() != other._which_run():  # the reply to the end of this run is still on its way
            return False
        return not self.failing or other.attempts == self.attempts

    def _which_run(self) -> tuple[int, int, bool]:
        """Differs between successive runs of a workflow, even within an attempt."""
        run = self.workflow
        return run.generation, run.suspended, run.undoing is not None

    def go_on(self, other: ActiveJob[Any]) -> None:
        """For the worker: continue the run under the lock of `other`, because the previous lock was lost."""
        self.token, self.attempts, self.raw = other.token, other.attempts, other.raw

    def job(self) -> Job:
        """Everything about the job, as it was when it was pulled."""
        return _decode_job(self.raw)

    def data_as(self, kind: type[K]) -> K:
        """The data as a dataclass, an attrs class, a Pydantic model, a msgspec struct, or any other type that
        jobs can carry. Raises ArgumentsError, which makes the job a dead letter at once.
        """
        return as_data(self.data, kind, self.id)

    # -- steps

    @property
    def workflow(self) -> RunInfo:
        """For the worker: the state of the workflow apart from its steps, as it was when it was pulled."""
        return self._run_info().workflow

    @property
    def pulled_at(self) -> float:
        """For the worker: when it was pulled, by the server's clock, epoch ms."""
        return self._run_info().started_at or time.time() * 1000

    def _run_info(self) -> PulledRun:
        if self._pulled_run is None:
            self._pulled_run = _decode_run(self.raw)
        return self._pulled_run

    def step(
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        retry: RetryRule | None = None,
        timeout: Duration | None = None,
        **kwargs: Any,
    ) -> Any:
        """Call a function once: its result is stored, and returned at once in later attempts of the job, like
        `Flow.step`. Await it in a coroutine; in a plain function it returns the result itself.

        The job waits on its worker for retries of the step. If the step has no attempts left, StepFailed is
        raised, and the next attempt of the job tries again. docs/workflows.md has the rules.
        """
        if self._steps is None:
            self._steps = StepsOfJob(self)
        return self._steps.step(name, function, args, kwargs, retry, timeout)

    def interrupt(self) -> JobStopped:
        """For the worker: end the run early, because the worker stops."""
        self.ending = Ending(INTERRUPTED)
        return stopped(self, self.ending)

    def carry(self, path: str, **values: object) -> None:
        """For middleware: recreate what it sets around a run if the handler runs in a separate process.

        `path`, "package.module:function", names a function that returns a context manager when called with
        these values; a handler in a process runs inside it. If the context manager returns a Middleware, its
        `stepping` wraps the steps there. Without a process nothing is done, because handlers see the
        middleware's own context. Raises PayloadError for values that MessagePack cannot encode.
        """
        self.carried = (*self.carried, (path, encode_data(values, f"what {path} is carried")))

    @property
    def cause(self) -> Cause | None:
        """The job whose final failure this one was added for, as its `on_dead`."""
        return self.job().cause

    @property
    def schedule(self) -> str | None:
        """The name of the schedule that added it."""
        return self.job().schedule

    @property
    def scheduled_for(self) -> datetime | None:
        """The time of the schedule that it was added for, in UTC; for a manual run, the time of
        the request.
        """
        return self.job().scheduled_for

    # -- reporting

    def progress(self, value: float, message: str | None = None) -> Awaitable[None]:
        """Report the progress of the job, 0 to 100; values outside are clamped. Without a message the last
        one stays.

        Await it in a coroutine; in a plain function just call it, it returns when the server has it. Raises
        BunqueueError: JobNotFound or CommandFailed if the job is no longer active, OptionError if `value` is
        not a number.
        """
        command = query.Progress(id=self.id, progress=value, message=storable(message))
        return self._channel.send(checks.checked(command, progress="value"))

    def log(self, message: str, level: str = "info") -> Awaitable[None]:
        """Add a line to the job's log on the server, which keeps the last 100. Await it like `progress`."""
        line = jobs.AddLog(id=self.id, message=storable(message, MAX_LINE), level=level)
        return self._channel.send(checks.checked(line))

    def log_soon(self, message: str, level: str = "info") -> None:
        """Like `log`, for callers that cannot wait; they do not learn whether it succeeded."""
        self._channel.send_nowait(jobs.AddLog(id=self.id, message=storable(message, MAX_LINE), level=level))

    # -- signals to the handler

    @property
    def stopping(self) -> bool:
        """The worker stops: finish, or reach a point from which the next run can continue."""
        return self._channel.stopping

    @property
    def cancelled(self) -> bool:
        """This run has to end: it was cancelled, its time is up, or the stopping worker's grace is over.

        Coroutines need not check it, because they get `asyncio.CancelledError`. Plain functions in threads
        should check it now and then, as nothing can stop them. Their results no longer count.
        """
        return self.ending is not None

    @property
    def stopped(self) -> JobStopped | None:
        """Why the run has to end: JobCancelled with its `reason`, JobTimeout or JobInterrupted."""
        return None if self.ending is None else stopped(self, self.ending)

    def raise_if_cancelled(self) -> None:
        """Raise `stopped` if the run has to end."""
        if self.ending is not None:
            raise stopped(self, self.ending)


def stopped(job: ActiveJob[Any], ending: Ending) -> JobStopped:
    """The error for an ending."""
    what = f"job {job.id} ({job.name})"
    if ending.why == CANCELLED:
        text = f"{what} was cancelled" + (f": {ending.reason}" if ending.reason else "")
        return JobCancelled(text, reason=ending.reason, queue=job.queue, job_id=job.id)
    if ending.why == TIMED_OUT:
        text = f"{what} took longer than its timeout of {job.timeout:g} ms"
        return JobTimeout(text, queue=job.queue, job_id=job.id)
    why = ending.reason or "stopped"
    return JobInterrupted(f"{what} goes back: its worker {why}", queue=job.queue, job_id=job.id)


current: ContextVar[ActiveJob[Any]] = ContextVar("bunqueue.current_job")
"""For the worker: set while a handler runs."""


_MISSING: Any = object()


@overload
def current_job() -> ActiveJob[Any]: ...


@overload
def current_job(default: D) -> ActiveJob[Any] | D: ...


def current_job(default: Any = _MISSING) -> Any:
    """The job whose handler is running here, at any call depth. Without one, `default` or LookupError."""
    job = current.get(default)
    if job is _MISSING:
        raise LookupError("no job's handler runs here; current_job(None) gives None instead")
    return job

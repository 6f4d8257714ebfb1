"""Made by scripts/unasync.py from client/queue/take.py; do not edit."""

from __future__ import annotations

import os
import socket
from types import TracebackType
from typing import Any, NamedTuple, Protocol, TypeVar

from msgspec import Raw
from msgspec.msgpack import encode

from bunqueue.client.connection.caller import Caller
from bunqueue.client.connection.options import Duration
from bunqueue.client.models.jobs import Job, as_data
from bunqueue.client.models.views import TakenJob
from bunqueue.client.blocking.queue.handle import JobHandle
from bunqueue.protocol.commands.core import FailReply
from bunqueue.worker.locks.held_lock import HeldLock
from bunqueue.worker.reporting.failures import checked, fail_command

T = TypeVar("T")


def this_program() -> str:
    """The owner of a lock, in readable form: host and process."""
    return f"{socket.gethostname()}:{os.getpid()}"


class HeldJob:
    """A job that this program holds: nobody else gets it until the block that took it ends.

    The value set as its `result` becomes the job's result.
    """

    def __init__(self, job: Job, token: str, lock: HeldLock) -> None:
        self.job = job
        """The server's state of the job when it was taken."""
        self.token = token
        self.result: object = None
        self._lock = lock

    @property
    def id(self) -> str:
        return self.job.id

    @property
    def name(self) -> str:
        return self.job.name

    @property
    def data(self) -> Any:
        return self.job.data

    def data_as(self, kind: type[T]) -> T:
        """The data as a dataclass, a model, or any other type that jobs can carry. Raises ArgumentsError,
        which makes the job a dead letter.
        """
        return as_data(self.data, kind, self.id)

    @property
    def attempts(self) -> int:
        """The number of failed attempts so far."""
        return int(self.job.attempts)

    @property
    def cancelled(self) -> bool:
        """Whether somebody has cancelled it; updated at each renewal of the lock."""
        return self._lock.cancelled

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r}, {self.name!r})"


class Pulls(Protocol):
    """The part of a queue that is needed here."""

    def pull(
        self,
        timeout: Duration = 0,
        *,
        owner: str | None = None,
        lock: Duration = 0,
    ) -> TakenJob | None: ...


class Take:
    """The result of `take()`: `with` takes the job, and reports its outcome at the end."""

    def __init__(self, caller: Caller, queue: Pulls, wait: float, lock_ms: int) -> None:
        self._caller, self._queue, self._wait, self._lock_ms = caller, queue, wait, lock_ms
        self._held: HeldJob | None = None

    def __enter__(self) -> HeldJob | None:
        taken = self._queue.pull(self._wait, owner=this_program(), lock=self._lock_ms)
        if taken is None:
            return None
        assert taken.lock_token is not None
        lock = HeldLock(self._caller.endpoint, taken.job.id, taken.lock_token, self._lock_ms)
        self._held = HeldJob(taken.job, taken.lock_token, lock)
        return self._held

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        held, self._held = self._held, None
        if held is None:
            return
        held._lock.release()
        handle = JobHandle[Any](self._caller, held.job.queue, held.id)
        if error is None:
            handle.complete(held.result, lock_token=held.token)
        elif isinstance(error, Exception):
            attempt = _attempt(held)
            self._caller.call(fail_command(attempt, checked(attempt, error)), FailReply)
        else:  # the program was asked to end, which is not the job's fault
            handle.fail(lock_token=held.token, give_back=True)


class _Attempt(NamedTuple):
    """The job in the form in which a worker reports on it."""

    id: str
    queue: str
    name: str
    postponed: int
    token: str
    raw: Raw


def _attempt(held: HeldJob) -> _Attempt:
    job = held.job
    raw = Raw(encode({"backoffConfig": job.backoff_config}))
    return _Attempt(job.id, job.queue, job.name, job.postponed, held.token, raw)

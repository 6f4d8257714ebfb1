"""Tracks what happens to a worker's jobs: counts it, releases their locks, and calls the user's callbacks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bunqueue.errors import (
    BunqueueError,
    ConnectionLost,
    JobInterrupted,
    JobStopped,
    JobSuspended,
    LockLost,
    Postpone,
)
from bunqueue.worker import log
from bunqueue.worker.active_job import ActiveJob
from bunqueue.worker.log import logger
from bunqueue.worker.user_code import Calls


@dataclass(frozen=True, slots=True, kw_only=True)
class Callbacks:
    """Callbacks of a worker's user."""

    on_completed: Callable[[ActiveJob, Any], object] | None = None
    on_failed: Callable[[ActiveJob, BaseException], object] | None = None
    on_stopped: Callable[[ActiveJob, JobStopped], object] | None = None
    on_error: Callable[[Exception], object] | None = None


class Outcomes:
    """Notified of the outcome of each attempt. Callbacks never raise here. The lock of a job is released
    before any code that might raise.
    """

    def __init__(
        self,
        callbacks: Callbacks,
        queue: str,
        address: str,
        on_done: Callable[[ActiveJob], None],
        has_lock: Callable[[ActiveJob], bool],
        disturbed: Callable[[], None],
    ) -> None:
        """`on_done` gets each job that needs no more work; `has_lock` says whether a job does; `disturbed` is
        called when the connection may have been lost.
        """
        self.completed = self.failed = self.lost = self.cancelled = self.interrupted = 0
        self.stopping = False
        self._callbacks = callbacks
        self._calls = Calls(logger)
        self._queue = queue
        self._address = address
        self.has_lock = has_lock
        self._on_done = on_done
        self._disturbed = disturbed
        self._logged: set[type[BunqueueError]] = set()  # connection errors logged since it last worked

    def job_acked(self, job: ActiveJob) -> None:
        """The server has recorded the job as completed, and its handler is about to be called."""
        self._on_done(job)

    def _ended(self, job: ActiveJob) -> None:
        if not job.acked:
            self._on_done(job)

    def job_completed(self, job: ActiveJob, value: object) -> None:
        """The server has recorded the job as completed."""
        self.completed += 1
        self._ended(job)
        if job.took is not None:  # it was measured because logging is enabled
            log.job_completed(job)
        if self._callbacks.on_completed:
            self._calls.call(self._callbacks.on_completed, job, value)

    def job_failed(self, job: ActiveJob, error: BaseException, delay: float | None = None) -> None:
        """The server has recorded that this attempt failed, and said when the next one begins, in ms."""
        self.failed += 1
        self._ended(job)
        log.job_failed(job, error, delay)
        if self._callbacks.on_failed:
            self._calls.call(self._callbacks.on_failed, job, error)

    def job_stopped(self, job: ActiveJob, error: JobStopped) -> None:
        """The run of the job was ended early, and the server has recorded it."""
        if isinstance(error, JobInterrupted):
            self.interrupted += 1
        elif not isinstance(error, Postpone):
            self.cancelled += 1
        self._ended(job)
        log.job_stopped(job, error)
        if self._callbacks.on_stopped:
            self._calls.call(self._callbacks.on_stopped, job, error)

    def job_suspended(self, job: ActiveJob, error: JobSuspended) -> None:
        """The run of a workflow was suspended to wait, and the server has recorded it."""
        self._ended(job)
        log.job_suspended(job, error)

    def job_undone(self, job: ActiveJob) -> None:
        """The steps of a workflow whose failure is already recorded have been undone."""
        self._ended(job)
        log.job_undone(job)

    def job_lost(self, job: ActiveJob, why: str) -> None:
        """The outcome does not count: the job's lock was lost."""
        self.lost += 1
        self._on_done(job)
        message = (
            f"the outcome of job {job.id} ({job.name}) does not count: {why}; it may run again, so give the "
            f"worker a longer lock_ttl if handlers keep Python from renewing it"
        )
        log.job_lost(job, message)
        if self._callbacks.on_error:
            error = LockLost(message, reason=why, queue=job.queue, job_id=job.id)
            self._calls.call(self._callbacks.on_error, error)

    def unreachable(self, error: BunqueueError) -> None:
        """Polling or reporting failed and will be repeated."""
        if self.stopping and isinstance(error, ConnectionLost):  # we closed it ourselves; this is repeated
            logger.debug("queue %r: %s", self._queue, error)
        else:
            self._disturbed()
            self.report_error(error)

    def reachable(self) -> None:
        """The server has answered: the next outage is logged again."""
        self._logged.clear()

    def report_error(self, error: BunqueueError) -> None:
        """Call `on_error`; without it, log. An outage gets one line in the log, not one for each attempt."""
        kind = type(error)
        if self._callbacks.on_error:
            self._calls.call(self._callbacks.on_error, error)
        elif not isinstance(error, ConnectionError):
            logger.warning("queue %r: %s", self._queue, error)
        elif kind not in self._logged:
            self._logged.add(kind)
            what = "lost the connection to" if issubclass(kind, ConnectionLost) else "cannot reach"
            logger.warning("queue %r: %s %s, trying again: %s", self._queue, what, self._address, error)

    async def finish(self, patience: float) -> None:
        """Wait for callbacks that are coroutines, at most `patience` seconds."""
        await self._calls.finish(patience)

"""Receives the jobs from polls: unpacks them, keeps their locks, and puts them into slots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from msgspec import MsgspecError, Raw

from bunqueue.client.codecs.envelope import problem_of
from bunqueue.client.models.jobs import PulledJobs
from bunqueue.errors import BunqueueError, CodecError, KeyMissing, NotEncrypted, PayloadTooLarge, Postpone
from bunqueue.protocol.commands.jobs import AddLog
from bunqueue.protocol.encoded import MARK
from bunqueue.worker.active_job import INTERRUPTED, ActiveJob, Ending, JobChannel, stopped
from bunqueue.worker.control import Control
from bunqueue.worker.outcomes import Outcomes
from bunqueue.worker.reporting.failures import made_final
from bunqueue.worker.reporting.reporter import Reporter

DATA = "the data of the job"
KEY_MISSING_MS = 30_000  # until a job whose key is missing here is offered again; another worker may have it
TOGETHER_MS = 1_000  # the same for one that was too large together with others


class Places(Protocol):
    """Where jobs run: `Slots`."""

    @property
    def busy(self) -> int: ...

    def put(self, jobs: list[ActiveJob]) -> None: ...


class Locks(Protocol):
    """Keeps the locks of jobs: `LockRenewer`."""

    @property
    def held(self) -> Mapping[str, ActiveJob]: ...

    def keep(self, job: ActiveJob) -> bool: ...


class Intake:
    """Decides how many jobs may come, and starts those that do."""

    def __init__(
        self,
        slots: Places,
        renewer: Locks,
        reporter: Reporter,
        stats: Outcomes,
        channel: JobChannel,
        *,
        control: Control,
        max_jobs: int | None,
        address: str,
    ) -> None:
        """`max_jobs`: the total number of jobs that it may take; None: any number."""
        self._slots = slots
        self._renewer = renewer
        self._reporter = reporter
        self._stats = stats
        self._channel = channel
        self._control = control
        self._left = max_jobs
        self._address = address

    def room(self) -> int:
        """How many more jobs could start now."""
        # Slots are filled again while the outcomes of their last jobs are being sent. These outcomes must not
        # outnumber the slots, because a kill would have all of those jobs run once more.
        room, places = self._free, self._control.concurrency
        if (left := 2 * places - self._slots.busy - self._reporter.unsent) < room:
            self._reporter.flush()
            room = max(0, left)
        return room if self._left is None else min(room, self._left)

    @property
    def _free(self) -> int:
        """The number of free slots."""
        control = self._control
        return 0 if control.paused else max(0, control.concurrency - self._slots.busy)

    def has_any(self, queue: str) -> bool:
        """Whether jobs of this queue run here."""
        return any(job.queue == queue for job in self._renewer.held.values())

    def take(self, reply: PulledJobs) -> None:
        """Run the received jobs."""
        self._stats.reachable()
        if len(reply.tokens) != len(reply.jobs):
            text = f"{self._address} gave jobs without tokens; is it a bunqueue server?"
            self._stats.unreachable(BunqueueError(text))
            return
        jobs = []
        for raw, token in zip(reply.jobs, reply.tokens, strict=True):
            job = self._unpack(raw, token)
            if job is not None:
                jobs.append(job)
        free = self._free
        if len(jobs) > free:  # the worker was paused, or lost slots, since it asked for them
            for job in jobs[free:]:
                why = "was paused, or runs fewer jobs at a time"
                self._reporter.stop_short(job, stopped(job, Ending(INTERRUPTED, why)))
            del jobs[free:]
        if jobs:
            if self._left is not None:
                self._left -= len(jobs)
            self._slots.put(jobs)

    def _unpack(self, raw: Raw, token: str) -> ActiveJob | None:
        try:
            job = ActiveJob(raw, token, self._channel)
        except MsgspecError as error:  # it stays locked until its lock expires: there is no id to report
            self._stats.unreachable(BunqueueError(f"a job that was pulled is not readable: {error}"))
            return None
        if not self._renewer.keep(job):
            return None
        try:
            job.open()
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
            self._reporter.fail(job, made_final(error), f"the job's data cannot be decoded: {problem}")
            return None
        if type(job.data) is dict and MARK in job.data and (still := problem_of(job.data, DATA)) is not None:
            self._cannot_open(job, still)
            return None
        return job

    def _cannot_open(self, job: ActiveJob, problem: CodecError) -> None:
        """If the job may be readable elsewhere or later, it costs no attempt; otherwise a retry would not
        help.
        """
        text = f"{type(problem).__name__}: {problem}"
        together = isinstance(problem, PayloadTooLarge) and problem.together
        if not (isinstance(problem, KeyMissing | NotEncrypted) or together):
            self._reporter.fail(job, made_final(problem), text)
            return
        if not together:
            self._channel.send_nowait(AddLog(id=job.id, message=text))
            self._stats.report_error(problem)
        later = Postpone(TOGETHER_MS if together else KEY_MISSING_MS, text)
        later.counts = False
        later.__cause__ = problem
        self._reporter.fail(job, later)

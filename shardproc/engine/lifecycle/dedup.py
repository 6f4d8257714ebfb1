"""Unique keys: of the jobs of a queue at most one holds a key, and a push with a taken key adds none.

A key is free again when its job ends or fails (`lifecycle`), or when its own time is over.  Nothing waits
for that time: it is looked at when the key is met.
"""

from __future__ import annotations

from collections.abc import Collection

from bunqueue.model.job import ACTIVE, Extra, Job
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError
from bunqueue.protocol.commands.core import Dedup, JobFields, Push
from bunqueue.protocol.commands.dedup import (
    Freed,
    FreedReply,
    GetDeduplicationJobId,
    Holder,
    HolderReply,
    Removed,
    RemoveDeduplicationKey,
    RemovedReply,
    RemoveJobDeduplicationKey,
)

from ..lookup import known_queue
from ..memory.unique_keys import release_key
from ..outbox import ROW
from ..state import Client, QueueState, State
from . import transitions

NO_DEDUP = Dedup()


def holder_of(state: State, client: Client, command: GetDeduplicationJobId) -> HolderReply:
    queue = known_queue(state, command.queue)
    job = living_holder(state, queue, command.deduplication_id) if queue is not None else None
    return HolderReply(data=Holder(None if job is None else job.id))


def remove_key(state: State, client: Client, command: RemoveDeduplicationKey) -> FreedReply:
    queue = known_queue(state, command.queue)
    job = living_holder(state, queue, command.deduplication_id) if queue is not None else None
    if queue is None or job is None:
        return FreedReply(data=Freed(0))
    _free(state, queue, job)
    return FreedReply(data=Freed(1))


def remove_key_of_job(state: State, client: Client, command: RemoveJobDeduplicationKey) -> RemovedReply:
    job = state.jobs.get(command.id)
    if job is None or not job.holds_key:
        return RemovedReply(data=Removed(False))
    valid = not _is_over(job, state.now)
    _free(state, state.queues[job.queue], job)
    return RemovedReply(data=Removed(valid))


class Claims:
    """The unique keys that the jobs of one push ask for.  Nothing is changed before `settle`, as another
    job of the same push may still be refused."""

    __slots__ = ("_fresh", "_queue", "_renewed", "_replaced", "_state")

    def __init__(self, state: State, queue: QueueState) -> None:
        self._state = state
        self._queue = queue
        self._fresh: dict[str, Job] = {}  # jobs of this push by the key they will hold
        self._replaced: list[Job] = []
        self._renewed: list[tuple[Job, int]] = []  # (holder, until)

    def taken(self, fields: JobFields | Push) -> str | None:
        """The id of the job that is there in place of a new one; None when a new one is to be added."""
        key, dedup = fields.unique_key, fields.dedup or NO_DEDUP
        job = self._current(key) if key else None
        if job is None:
            return None
        if dedup.replace:
            self._check_replaceable(job, fields.depends_on or ())
            self._replaced.append(job)
            return None
        if dedup.extend and dedup.ttl:
            if job.state == ACTIVE:
                raise CommandError(
                    "Duplicate unique_key (extended TTL)", Code.DUPLICATE_KEY, field="uniqueKey"
                )
            self._renewed.append((job, self._state.now + int(dedup.ttl)))
        return job.id

    def claim(self, job: Job, dedup: Dedup | None) -> None:
        """``job`` is new and is to hold its key."""
        key = job.unique_key
        if not key:
            return
        self._fresh[key] = job
        if dedup is not None and dedup.ttl is not None:
            _last(job, self._state.now + int(dedup.ttl))

    def settle(self, jobs: list[Job]) -> list[Job]:
        """Take the keys; of the new jobs, those that no other one of this push has replaced."""
        state, queue = self._state, self._queue
        for job, until in self._renewed:
            _last(job, until)
            if job.id in state.jobs:
                state.out.touch(job, ROW)
        gone = set(self._replaced)
        for job in self._replaced:
            if job.id in state.jobs and job.state != ACTIVE:  # an active one goes on, without the key
                transitions.remove(state, queue, job)
        for key, job in self._fresh.items():
            if (former := state.jobs.get(queue.unique.get(key, ""))) is not None:
                _free(state, queue, former)
            queue.unique[key] = job.id
            job.holds_key = True
        return [job for job in jobs if job not in gone] if gone else jobs

    def _current(self, key: str) -> Job | None:
        fresh = self._fresh.get(key)
        if fresh is not None and not _is_over(fresh, self._state.now):
            return fresh
        return living_holder(self._state, self._queue, key)

    def _check_replaceable(self, job: Job, dependencies: Collection[str]) -> None:
        """CommandError when ``job`` may not go because jobs wait for it, also the one that replaces it."""
        awaited = self._state.awaited.get(job.id)
        is_awaited = awaited is not None and bool(awaited.jobs or awaited.shards)
        if job.state != ACTIVE and (is_awaited or job.id in dependencies):
            raise CommandError(
                f"Cannot replace deduplicated job {job.id} because live jobs depend on it",
                Code.JOB_STATE,
                field="uniqueKey",
            )


def living_holder(state: State, queue: QueueState, key: str) -> Job | None:
    """The live job that holds a key at present; None when the key is free."""
    job_id = queue.unique.get(key)
    job = state.jobs.get(job_id) if job_id is not None else None
    return None if job is None or _is_over(job, state.now) else job


def _is_over(job: Job, now: int) -> bool:
    """Whether the key of ``job`` has outlived its time."""
    until = job.extra.key_until if job.extra is not None else None
    return until is not None and until <= now


def _last(job: Job, until: int) -> None:
    """The key of ``job`` is to last until then."""
    if job.extra is None:
        job.extra = Extra()
    job.extra.key_until = until


def _free(state: State, queue: QueueState, job: Job) -> None:
    release_key(queue, job)
    state.out.touch(job, ROW)

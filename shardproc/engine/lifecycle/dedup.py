"""Unique keys: at most one job of a queue holds a key, and a push decides what happens if it is taken.

A key is free again when its job ends or fails an attempt, or when the key's ttl is over, as in the reference;
or according to the ``onConflict`` or ``states`` of a push (`unique_keys`).  No timer runs for a key: whether
it is over is checked when it is used.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from bunqueue.model.job import ACTIVE, Extra, Job
from bunqueue.model.names import outside
from bunqueue.model.unique import EXTEND, REJECT, REPLACE, SUPERSEDE, holds_key, mask
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError
from bunqueue.protocol.commands.base import Data, Removed, path_of
from bunqueue.protocol.commands.core import Action, Dedup, JobFields, Push
from bunqueue.protocol.commands.dedup import (
    Freed,
    GetDeduplicationJobId,
    Holder,
    RemoveDeduplicationKey,
    RemoveJobDeduplicationKey,
)

from ..lookup import find, known_queue
from ..outbox import ROW
from ..registry import handles
from ..state import Client, EndedKey, QueueState, State
from . import transitions, unique_keys
from .cancellation import has_begun, stop

NO_DEDUP = Dedup()


@handles(GetDeduplicationJobId)
def holder_of(state: State, client: Client, command: GetDeduplicationJobId) -> Data[Holder]:
    queue = known_queue(state, command.queue)
    found = None if queue is None else holder_id(state, queue, command.deduplication_id)
    return Data(data=Holder(found))


@handles(RemoveDeduplicationKey)
def remove_key(state: State, client: Client, command: RemoveDeduplicationKey) -> Data[Freed]:
    queue, key = known_queue(state, command.queue), command.deduplication_id
    if queue is None or holder_id(state, queue, key) is None:
        return Data(data=Freed(0))
    _free_key(state, queue, key)
    return Data(data=Freed(1))


@handles(RemoveJobDeduplicationKey)
def remove_key_of_job(state: State, client: Client, command: RemoveJobDeduplicationKey) -> Data[Removed]:
    job = find(state, command.id)
    queue = state.queues.get(job.queue) if job is not None else None
    if job is None or queue is None or job.unique_key is None:
        return Data(data=Removed(False))
    if job.id in state.jobs:
        holds, valid = job.holds_key, not _is_over(job, state.now)
    else:
        holds = valid = unique_keys.holder_of_ended(state, queue, job.unique_key) == job.id
    if holds:
        _free_key(state, queue, job.unique_key)
    return Data(data=Removed(holds and valid))


class Taken(NamedTuple):
    """The holder of a key: a live job, or one that has ended."""

    id: str
    job: Job | None


class Met(NamedTuple):
    """The outcome of a push with a key: the existing job, if no new one is added; and, for pushes that asked
    for it, what happened to the ``holder`` of the key."""

    existing: str | None = None
    action: Action | None = None
    holder: str = ""


FREE = Met()


class Claims:
    """The unique keys that the jobs of one push ask for.  Nothing is changed before `assign`, because another
    job of the same push may still be refused."""

    __slots__ = ("_fresh", "_queue", "_renewed", "_replaced", "_state", "_stopped")

    def __init__(self, state: State, queue: QueueState) -> None:
        self._state = state
        self._queue = queue
        self._fresh: dict[str, Job] = {}  # jobs of this push by the keys they will hold
        self._replaced: list[Job] = []
        self._renewed: list[tuple[str, Taken, int]] = []  # (key, holder, until)
        self._stopped: dict[str, tuple[Job, Dedup]] = {}  # key -> the superseded job

    def take(self, fields: JobFields | Push, where: str = "") -> Met:
        """The outcome of a push with a key.  CommandError if a taken key refuses the push, or if it asks for
        a key that cannot be kept."""
        key, dedup = fields.unique_key or "", fields.dedup or NO_DEDUP
        check(self._state, dedup, where)
        taken = self._current(key)
        if taken is None:
            return FREE
        policy, id_ = dedup.on_conflict, taken.id
        if policy is None and dedup.states is None:
            return self._as_in_the_reference(key, taken, fields, dedup)
        if policy == REJECT:
            raise _taken_by(id_, key, where)
        if policy in (REPLACE, SUPERSEDE):
            self._replace(taken, fields)
            if (running := self._to_be_stopped(taken.job, policy == SUPERSEDE)) is not None:
                self._stopped[key] = (running, dedup)
            return Met(None, "superseded" if policy == SUPERSEDE else "replaced", id_)
        if policy == EXTEND:
            self._renewed.append((key, taken, self._state.now + int(dedup.ttl or 0)))
            return Met(id_, "extended", id_)
        return Met(id_, "kept", id_)

    def _as_in_the_reference(self, key: str, taken: Taken, fields: JobFields | Push, dedup: Dedup) -> Met:
        if dedup.replace:
            self._replace(taken, fields)
            return FREE
        if dedup.extend and dedup.ttl:
            if taken.job is not None and taken.job.state == ACTIVE:
                text = "Duplicate unique_key (extended TTL)"
                raise CommandError(text, Code.DUPLICATE_KEY, field="uniqueKey", value=taken.id)
            self._renewed.append((key, taken, self._state.now + int(dedup.ttl)))
        return Met(taken.id)

    def _replace(self, taken: Taken, fields: JobFields | Push) -> None:
        if taken.job is not None:
            self._check_replaceable(taken.job, fields.depends_on or ())
            self._replaced.append(taken.job)

    def _to_be_stopped(self, holder: Job | None, supersedes: bool) -> Job | None:
        """The running job that must end before a new one may begin: the holder, if it is superseded, or the
        job that the holder itself waits for."""
        if holder is not None and not has_begun(holder):
            after = holder.extra.after if holder.extra is not None else None
            return None if after is None else self._state.jobs.get(after)
        return holder if supersedes else None

    def claim(self, job: Job, dedup: Dedup | None) -> None:
        """Have the new ``job`` claim its key."""
        key = job.unique_key
        if not key:
            return
        self._fresh[key] = job
        if dedup is None:
            return
        if dedup.ttl is not None:
            _last(job, self._state.now + int(dedup.ttl))
        if dedup.on_conflict is not None or dedup.states is not None:
            job.extra = job.extra or Extra()
            job.extra.key_states = mask(dedup.states, timed=dedup.ttl is not None)
        if key in self._stopped:
            job.extra = job.extra or Extra()
            job.extra.after = self._stopped[key][0].id

    def leaving(self) -> list[Job]:
        """The waiting jobs that `assign` will remove."""
        live = self._state.jobs
        return [job for job in dict.fromkeys(self._replaced) if job.id in live and not has_begun(job)]

    def assign(self, jobs: list[Job]) -> list[Job]:
        """Assign the keys; returns the new jobs, without those that another job of the same push has
        replaced."""
        state, queue = self._state, self._queue
        for key, taken, until in self._renewed:
            self._renew(key, taken, until)
        gone = set(self._replaced)
        for job in self._replaced:
            if job.id in state.jobs and not has_begun(job):  # else it continues, without the key
                transitions.remove(state, queue, job)
        for key, job in self._fresh.items():
            _free_key(state, queue, key)
            queue.unique[key] = job.id
            job.holds_key = True
        for key, (job, dedup) in self._stopped.items():
            self._stop(job, self._fresh[key], dedup)
        return [job for job in jobs if job not in gone] if gone else jobs

    def _renew(self, key: str, taken: Taken, until: int) -> None:
        state, queue = self._state, self._queue
        if taken.job is not None:
            _last(taken.job, until)
            if taken.id in state.jobs:
                state.out.touch(taken.job, ROW)
        elif (ended := queue.ended_keys.get(key)) is not None and ended.until is not None:
            unique_keys.drop_ended(state, queue, key)
            unique_keys.keep_for_ended(state, queue, key, EndedKey(ended.id, until, state.now))

    def _stop(self, job: Job, follower: Job, dedup: Dedup) -> None:
        """Stop a running job; another one begins when it has ended."""
        why = f"superseded by job {outside(job.queue, follower.id)}"
        goes_on = stop(self._state, job, why, int(dedup.grace))
        assert follower.extra is not None
        if not goes_on:
            follower.extra.after = None
            return
        job.extra = job.extra or Extra()
        job.extra.superseded_by = follower.id
        self._state.out.touch(job, ROW)

    def _current(self, key: str) -> Taken | None:
        fresh = self._fresh.get(key)
        if fresh is not None and not _is_over(fresh, self._state.now):
            return Taken(fresh.id, fresh)
        return _holder(self._state, self._queue, key)

    def _check_replaceable(self, job: Job, dependencies: Collection[str]) -> None:
        """CommandError if ``job`` cannot be removed because jobs wait for it, including the job that replaces
        it."""
        awaited = self._state.awaited.get(job.id)
        is_awaited = awaited is not None and bool(awaited.jobs or awaited.shards)
        if not has_begun(job) and (is_awaited or job.id in dependencies):
            raise CommandError(
                f"Cannot replace deduplicated job {job.id} because live jobs depend on it",
                Code.JOB_STATE,
                field="uniqueKey",
                value=job.id,
                bound="a job that no other depends on",
            )


def _taken_by(job_id: str, key: str, where: str) -> CommandError:
    text = f"{where}job {job_id} holds the unique key {key[:64]!r}"
    error = CommandError(text, Code.DUPLICATE_KEY, field=path_of(f"{where}uniqueKey"))
    error.value = job_id  # not cut as in other errors: a program looks up this job
    return error


def check(state: State, dedup: Dedup, where: str = "") -> None:
    """CommandError for fields that contradict each other, or if no more keys can be kept."""
    policy = dedup.on_conflict
    if policy is None and dedup.states is None:
        return
    field, problem = path_of(f"{where}dedup.onConflict"), None
    if dedup.extend or dedup.replace:
        problem = "onConflict says that already; leave out extend and replace"
    elif policy == EXTEND and dedup.ttl is None:
        problem = "onConflict extend needs a ttl"
    elif dedup.states == []:
        field, problem = path_of(f"{where}dedup.states"), "states is empty, so the key would never be held"
    if problem is not None:
        raise CommandError(f"{where}dedup: {problem}", Code.INVALID_FIELD, field=field, value=policy)
    if unique_keys.is_full(state):
        most = min(unique_keys.MAX_ENDED, state.ended_keys.count)
        raise CommandError(
            f"{where}the shard keeps no more than {most:,} unique keys of ended jobs:"
            " give keys a shorter ttl, or remove some",
            Code.TOO_MANY_KEYS,
            field=path_of(f"{where}uniqueKey"),
            value=state.ended_keys.count,
            bound=most,
        )


def holder_id(state: State, queue: QueueState, key: str) -> str | None:
    """The id of the current holder of a key, live or ended; None if the key is free."""
    taken = _holder(state, queue, key)
    return None if taken is None else taken.id


def _holder(state: State, queue: QueueState, key: str) -> Taken | None:
    job = state.jobs.get(queue.unique.get(key, ""))
    if job is not None and not _is_over(job, state.now):
        states = job.extra.key_states if job.extra is not None else None
        if states is None or holds_key(states, job.state):
            return Taken(job.id, job)
    ended = unique_keys.holder_of_ended(state, queue, key)
    return None if ended is None else Taken(ended, None)


def _is_over(job: Job, now: int) -> bool:
    """Whether the ttl of the key of ``job`` is over."""
    return job.extra is not None and unique_keys.is_over(job.extra.key_until, now)


def _last(job: Job, until: int) -> None:
    """Let the key of ``job`` last until then."""
    if job.extra is None:
        job.extra = Extra()
    job.extra.key_until = until


def _free_key(state: State, queue: QueueState, key: str) -> None:
    """Free a key, whoever holds it."""
    former = state.jobs.get(queue.unique.get(key, ""))
    if former is not None:
        unique_keys.release_key(queue, former)
        state.out.touch(former, ROW)
    if key in queue.ended_keys:
        unique_keys.drop_ended(state, queue, key)

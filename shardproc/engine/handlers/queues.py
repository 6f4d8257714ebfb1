"""Commands for whole queues.  Work that grows with the queue runs in slices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from heapq import nsmallest
from itertools import islice

from msgspec import Struct

from bunqueue.model.job import COMPLETED, DELAYED, FAILED, WAITING, Job
from bunqueue.model.names import queue_name_problem
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError, Ok
from bunqueue.protocol.commands.query import CountReply
from bunqueue.protocol.commands.queues import (
    Clean,
    CleanReply,
    Drain,
    GetCountsPerPriority,
    IsPaused,
    Obliterate,
    Pause,
    PausedReply,
    PriorityCountsReply,
    PromoteJobs,
    Resume,
)

from ..lifecycle import events, removal, transitions
from ..lifecycle.events import emit_queue
from ..lookup import admit_queues, known_queue
from ..memory import queue_configs
from ..ready import queue_limits
from ..registry import FORGETS, at_queue, handles, recovers, when_obliterated
from ..slices import Steps, sliced
from ..state import Client, QueueState, State
from .views.paging import job_of
from .views.query import listed_state

SLICE = 50  # jobs changed per slice
SCAN = 1_000  # jobs inspected per slice
MAX_BYTES = 4 << 20  # payload bytes deleted per slice: each of their pages has to be read
EVER = 2**53  # later than any time
PAUSE = "pause"


class Paused(Struct):
    """The record of a paused queue; ``since`` in ms."""

    since: int


# -- pausing -------------------------------------------------------------------------------------------------


@handles(Pause)
def pause(state: State, client: Client, command: Pause) -> Ok:
    """Pause a queue; one that does not exist yet is created."""
    queue = state.queues.get(command.queue)
    if queue is None:
        if problem := queue_name_problem(command.queue):
            raise CommandError(problem, Code.INVALID_QUEUE, field="queue", value=command.queue)
        admit_queues(state, [command.queue])
    state.kept.admit(PAUSE, command.queue, "queue", command.queue)
    queue = queue or state.queue(command.queue)
    if not queue.paused:
        queue.paused = True
        state.out.keep(PAUSE, queue.name, Paused(state.now))
        emit_queue(state, events.PAUSED, queue)
    return Ok()


@handles(Resume)
def resume(state: State, client: Client, command: Resume) -> Ok:
    queue = known_queue(state, command.queue)
    if queue is not None:
        forget_pause(state, queue)
    return Ok()


@when_obliterated
def forget_pause(state: State, queue: QueueState) -> None:
    if queue.paused:
        queue.paused = False
        state.out.keep(PAUSE, queue.name, None)
        emit_queue(state, events.RESUMED, queue)
        if queue.waiters:
            state.woken[queue] = None


@recovers(PAUSE, at_queue)
def recover_pause(state: State, key: str, value: str) -> None:
    if key in state.queues:
        state.queues[key].paused = True


@handles(IsPaused)
def is_paused(state: State, client: Client, command: IsPaused) -> PausedReply:
    queue = known_queue(state, command.queue)
    return PausedReply(paused=queue is not None and queue.paused)


# -- emptying ------------------------------------------------------------------------------------------------


@handles(Drain)
@sliced
def drain(state: State, client: Client, command: Drain) -> Steps:
    queue = known_queue(state, command.queue)
    count = 0
    if queue is not None:
        for jobs in _chunks(queue, _live(queue), _is_queued):
            for job in jobs:
                transitions.remove(state, queue, job)
            count += len(jobs)
            yield
    return CountReply(count=count)


@handles(Clean)
@sliced
def clean(state: State, client: Client, command: Clean) -> Steps:
    queue = known_queue(state, command.queue)
    ids: list[str] = []
    if queue is not None:
        until = state.now - int(command.grace)
        for some in _cleaned(state, queue, command, client.version, until):
            ids += some
            if len(ids) >= command.limit:
                break
            yield
    return CleanReply(count=len(ids), ids=ids)


def _cleaned(
    state: State, queue: QueueState, command: Clean, version: int, until: int
) -> Iterator[list[str]]:
    """Remove jobs slice by slice, yielding their ids."""
    if command.state == "completed":
        return _purged_completed(state, queue, until, command.limit)
    if command.state == "failed":
        return _purged_dead(state, queue, until, command.limit)
    wanted = _wanted(queue, command.state, version)
    return _removed(state, queue, lambda job: job.created_at <= until and wanted(job), command.limit)


def _wanted(queue: QueueState, name: str | None, version: int) -> Callable[[Job], bool]:
    """A test for jobs in the state with that name; without a name, for jobs that are waiting or delayed."""
    if name is None:
        return _is_queued
    name = "waiting" if name == "wait" else name
    return lambda job: _is_queued(job) and listed_state(queue, job, version) == name


def _is_queued(job: Job) -> bool:
    return job.state in (WAITING, DELAYED)


def _removed(
    state: State, queue: QueueState, wanted: Callable[[Job], bool], limit: int
) -> Iterator[list[str]]:
    for jobs in _chunks(queue, _live(queue), wanted):
        chosen = jobs[:limit]
        for job in chosen:
            transitions.remove(state, queue, job)
        limit -= len(chosen)
        yield [job.id for job in chosen]


def _purged_completed(
    state: State, queue: QueueState, until: int, limit: int, removed: int = 0
) -> Iterator[list[str]]:
    """Remove completed jobs slice by slice, yielding their ids.  ``removed`` is the number of the queue's
    jobs removed before."""
    after: int | None = -1
    while after is not None and limit:
        found, after = state.archive.old_completed(queue.id, until, SLICE, after)
        if not found:
            removal.check(state, queue, removed)
        found = found[:limit]
        removed += len(found)
        removal.purge(state, queue, COMPLETED, [seq for seq, _ in found])
        limit -= len(found)
        yield [job_id for _, job_id in found]


def _purged_dead(
    state: State, queue: QueueState, until: int, limit: int, removed: int = 0
) -> Iterator[list[str]]:
    """The same for dead letters."""
    while found := state.archive.old_dead_letters(queue.id, until, min(SLICE, limit)):
        removal.purge(state, queue, FAILED, [letter.seq for letter in found])
        limit -= len(found)
        removed += len(found)
        yield [letter.id for letter in found]
    if limit:
        removal.check(state, queue, removed)


def _live(queue: QueueState) -> list[int]:
    """The numbers of a queue's live jobs in order of arrival."""
    return sorted([*queue.late, *queue.jobs]) if queue.late else list(queue.jobs)


def _chunks(queue: QueueState, seqs: list[int], wanted: Callable[[Job], bool]) -> Iterator[list[Job]]:
    """The jobs among these that are still live and wanted, in chunks small enough to delete at once.  Each is
    checked in the slice that yields it."""
    chunk: list[Job] = []
    looked_at = size = 0
    for seq in seqs:
        job = job_of(queue, seq)
        looked_at += 1
        if job is not None and wanted(job):
            chunk.append(job)
            size += len(job.data)
        if len(chunk) >= SLICE or looked_at >= SCAN or size > MAX_BYTES:
            yield chunk
            chunk = []
            looked_at = size = 0
    if chunk:
        yield chunk


# -- deleting ------------------------------------------------------------------------------------------------


@handles(Obliterate)
@sliced
def obliterate(state: State, client: Client, command: Obliterate) -> Steps:
    """Delete a queue with all of its jobs.  Jobs pushed in the meantime may stay; then the queue stays as
    well, without its settings."""
    queue = known_queue(state, command.queue)
    if queue is None:
        queue_configs.forget(state, command.queue)
        return Ok()
    removal.check(state, queue, 0)
    removed = 0
    for jobs in _chunks(queue, _live(queue), lambda job: True):
        for job in jobs:
            transitions.remove(state, queue, job)
        removed += len(jobs)
        yield
    for ids in _purged_completed(state, queue, EVER, EVER, removed):
        removed += len(ids)
        yield
    for _ in _purged_dead(state, queue, EVER, EVER, removed):  # also those dated by a clock that was ahead
        yield
    if state.queues.get(queue.name) is queue:  # another Obliterate may have been faster
        queue_configs.forget(state, queue.name)
        for forget in FORGETS:
            forget(state, queue)
        if not (queue.jobs or queue.late or queue.completed or queue.failed):
            emit_queue(state, events.OBLITERATED, queue)
            state.drop(queue)
    return Ok()


# -- others --------------------------------------------------------------------------------------------------


@handles(PromoteJobs)
@sliced
def promote_jobs(state: State, client: Client, command: PromoteJobs) -> Steps:
    queue = known_queue(state, command.queue)
    count = 0
    if queue is not None:
        seqs = sorted(queue.delayed) if command.count is None else nsmallest(command.count, queue.delayed)
        for jobs in _chunks(queue, seqs, lambda job: job.state == DELAYED):
            for job in jobs:
                transitions.move(state, queue, job, state.now)
            count += len(jobs)
            yield
    return CountReply(count=count)


@handles(GetCountsPerPriority)
@sliced
def counts_per_priority(state: State, client: Client, command: GetCountsPerPriority) -> Steps:
    queue = known_queue(state, command.queue)
    counts: Counter[int] = Counter()
    if queue is not None:
        counts.update(queue_limits.ready_counts(queue))
        delayed = iter(list(queue.delayed.values()))
        while some := list(islice(delayed, SCAN)):
            counts.update(job.priority for job in some)
            yield
    return PriorityCountsReply(
        queue=command.queue, counts={str(priority): count for priority, count in counts.items()}
    )

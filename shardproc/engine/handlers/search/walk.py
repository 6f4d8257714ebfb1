"""Goes through the jobs of a plan, in order, a few thousand numbers at a time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from bunqueue.model.job import ACTIVE, BLOCKED, DELAYED, SUSPENDED, WAITING, Job

from ...criteria import LIVE
from ...state import QueueState, State
from .matching import meets
from .plan import Plan

CHUNK = 4_000  # numbers per step when only SQLite inspects the jobs; about 3 ms
SPARSE = 16_000  # the same, when few of the numbers belong to candidates
SLICES = 8  # slices per step
SLOW = 1_000  # the same as CHUNK, when Python inspects the jobs as well

_LIVE = frozenset({WAITING, DELAYED, ACTIVE, BLOCKED, SUSPENDED})


class Match(NamedTuple):
    """A job that was found; ``job`` is set for a live one only: finished ones are not loaded."""

    seq: int
    queue: QueueState
    job: Job | None
    state: int  # as in a `Finding`


class Step(NamedTuple):
    """The jobs found in one step, in order; all numbers up to ``place`` have been searched."""

    matches: list[Match]
    place: int
    scanned: int


def walk(state: State, plan: Plan, *, asc: bool) -> Iterator[Step | None]:
    """The steps of a search; None marks the end of a slice within a step.  Anything may happen to the jobs
    between two slices."""
    packed = any(condition.field in ("data", "tag", "group") for condition in plan.conditions)
    density = plan.density
    size = SLOW if packed else SPARSE if density < 0.25 else CHUNK
    names = {queue.id: queue for queue in plan.queues}
    done = 0.0
    for first, last in plan.ranges:
        for low, high in _chunks(first, last, size, asc=asc):
            matches: list[Match] = []
            for place, (least, most) in enumerate(_chunks(low, high, size // SLICES, asc=asc)):
                if place:
                    yield None
                some = [*_archived(state, plan, names, least, most), *_in_memory(plan, least, most)]
                matches += sorted(some, key=_seq, reverse=not asc)
            before, done = int(done), done + (high - low + 1) * density
            yield Step(matches, high if asc else low, int(done) - before)


def _seq(match: Match) -> int:
    return match.seq


def _chunks(first: int, last: int, size: int, *, asc: bool) -> Iterator[tuple[int, int]]:
    if asc:
        for low in range(first, last + 1, size):
            yield low, min(low + size - 1, last)
    else:
        for high in range(last, first - 1, -size):
            yield max(high - size + 1, first), high


def _archived(state: State, plan: Plan, names: dict[int, QueueState], low: int, high: int) -> Iterator[Match]:
    if plan.criteria is None:
        return
    for seq, queue_id, where in state.archive.searches.find(plan.criteria, low, high):
        queue = names.get(queue_id)
        if queue is None:
            continue
        if where == LIVE:
            yield from _live(plan, queue, seq)
        else:
            yield Match(seq, queue, None, where)


def _in_memory(plan: Plan, low: int, high: int) -> Iterator[Match]:
    if plan.live is None:
        return
    seqs, queues = plan.live
    for seq in seqs[bisect_left(seqs, low) : bisect_right(seqs, high)]:
        yield from _live(plan, queues[seq], seq)


def _live(plan: Plan, queue: QueueState, seq: int) -> Iterator[Match]:
    job = queue.jobs.get(seq) or queue.late.get(seq)
    if job is not None and job.state in _LIVE and meets(plan.conditions, queue, job):
        yield Match(seq, queue, job, LIVE)

"""Pages of a queue's jobs in order of creation, without blocking other commands for long.

Jobs in a state with few jobs are found through the small index of that state, and pages near either end are
read from there.  Only pages deep inside a long queue require counting through it, slice by slice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from bunqueue.model.job import ACTIVE, BLOCKED, COMPLETED, DELAYED, FAILED, SUSPENDED, WAITING, Job

from ...outbox import Archive
from ...ready import queue_limits
from ...state import QueueState

SCAN = 500  # jobs inspected per step
STEPS = 5  # per slice; a page of a short queue takes fewer
FEW = 10  # an index is used when it is this many times shorter than the list of all jobs

LIVE = frozenset({WAITING, DELAYED, ACTIVE, BLOCKED, SUSPENDED})
FINISHED = frozenset({COMPLETED, FAILED})

Chunk = list[int]  # numbers of jobs, in order
Wanted = Callable[[Job], bool]


def page(
    archive: Archive,
    queue: QueueState,
    states: frozenset[int],
    wanted: Wanted,
    offset: int,
    limit: int,
    newest: bool,
    after: int | None = None,
) -> Iterator[Chunk | None]:
    """The numbers of the jobs of one page, in chunks; None where a slice ends.

    ``states`` says where to search; live jobs must also be ``wanted``.  Only jobs ``after`` a number count.
    """
    live = _live(queue, states, wanted, newest, after) if states & LIVE else iter(())
    finished: Iterator[Chunk] = iter(())
    if states & FINISHED:
        finished = _finished(archive, queue, states & FINISHED, offset + limit, newest, after)
    skip, left = offset, limit
    for step, chunk in enumerate(_merged(live, finished, newest), 1):
        taken = chunk[skip : skip + left]
        skip = max(0, skip - len(chunk))
        left -= len(taken)
        if taken:
            yield taken
        if not left:
            return
        if step % STEPS == 0:
            yield None


def _live(
    queue: QueueState, states: frozenset[int], wanted: Wanted, newest: bool, after: int | None
) -> Iterator[Chunk]:
    """Numbers of live jobs in some states, in chunks that each took about the same time to find."""
    few = _few(queue, states, wanted)
    if few is not None:
        yield sorted(_behind(few, newest, after), reverse=newest)
        return
    late = [seq for seq, job in queue.late.items() if wanted(job)]
    late = sorted(_behind(late, newest, after), reverse=newest)
    yield from _merged(_scan(queue, wanted, newest, after), iter([late]) if late else iter(()), newest)


def _behind(seqs: Iterable[int], newest: bool, after: int | None) -> list[int]:
    """The numbers that come after one, in the order of the page."""
    if after is None:
        return list(seqs)
    return [seq for seq in seqs if (seq < after if newest else seq > after)]


def _few(queue: QueueState, states: frozenset[int], wanted: Wanted) -> Chunk | None:
    """All jobs in these states, if an index has them and they are few."""
    many = (len(queue.jobs) + len(queue.late)) // FEW
    found: Chunk = []
    if DELAYED in states:
        if len(queue.delayed) > many:
            return None
        found += queue.delayed
    if ACTIVE in states:
        if len(queue.active) > many:
            return None
        found += queue.active
    if BLOCKED in states:
        if len(queue.blocked) > many:
            return None
        found += queue.blocked
    if SUSPENDED in states:
        if len(queue.suspended) > many:
            return None
        found += (seq for seq, job in queue.suspended.items() if wanted(job))
    if WAITING in states:
        if queue.waiting > many:
            return None
        found += (job.seq for job in queue_limits.ready_jobs(queue) if wanted(job))
    return found


def _scan(queue: QueueState, wanted: Wanted, newest: bool, after: int | None) -> Iterator[Chunk]:
    """All wanted jobs of a queue.

    The first chunk is read from the index itself, as most pages need no more.  The index changes between
    slices, so the rest is read from a copy of its keys.
    """
    jobs = queue.jobs
    if after is None:
        values = reversed(jobs.values()) if newest else iter(jobs.values())
        seen = list(islice(values, SCAN))
        after = seen[-1].seq if seen else 0
        yield [job.seq for job in seen if wanted(job)]
        if len(jobs) <= SCAN or not seen:
            return
    rest = _behind(jobs, newest, after)
    if newest:
        rest.reverse()
    for start in range(0, len(rest), SCAN):
        some = (jobs.get(seq) for seq in rest[start : start + SCAN])
        yield [job.seq for job in some if job is not None and wanted(job)]


def _finished(
    archive: Archive,
    queue: QueueState,
    states: frozenset[int],
    wanted: int,
    newest: bool,
    after: int | None,
) -> Iterator[Chunk]:
    while wanted > 0:
        chunk = archive.seqs(queue.id, states, min(wanted, SCAN), newest, after)
        yield chunk
        if len(chunk) < min(wanted, SCAN):
            return
        after = chunk[-1]
        wanted -= len(chunk)


def _merged(one: Iterator[Chunk], other: Iterator[Chunk], newest: bool) -> Iterator[Chunk]:
    """Merge two ordered sources into one.  A step that found nothing yet yields an empty chunk."""
    a: Chunk = []
    b: Chunk = []
    a_open = b_open = True
    while True:
        if a_open and not a:
            a, a_open = _next(one)
        if b_open and not b:
            b, b_open = _next(other)
        if not (a_open or b_open):
            if a or b:
                yield sorted(a + b, reverse=newest)
            return
        if (a_open and not a) or (b_open and not b):
            yield []
            continue
        # Everything up to the point that both sources have reached.
        ends = [chunk[-1] for chunk, is_open in ((a, a_open), (b, b_open)) if is_open]
        end = max(ends) if newest else min(ends)
        safe_a, a = _until(a, end, newest)
        safe_b, b = _until(b, end, newest)
        yield sorted(safe_a + safe_b, reverse=newest)


def _next(source: Iterator[Chunk]) -> tuple[Chunk, bool]:
    chunk = next(source, None)
    return ([], False) if chunk is None else (chunk, True)


def _until(chunk: Chunk, end: int, newest: bool) -> tuple[Chunk, Chunk]:
    """The part of a chunk that does not come after ``end``, and the rest."""
    if not chunk or (chunk[-1] >= end if newest else chunk[-1] <= end):
        return chunk, []
    count = sum(1 for seq in chunk if (seq >= end if newest else seq <= end))
    return chunk[:count], chunk[count:]


def job_of(queue: QueueState, seq: int) -> Job | None:
    """A live job by its number."""
    return queue.jobs.get(seq) or queue.late.get(seq)

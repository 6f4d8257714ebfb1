"""The space of a queue with bounds on its waiting jobs: which jobs it accepts, and which ones it drops.

Other queues pay only for reading ``queue.is_bounded`` on each push.  Jobs are counted by the tables that hold
them, bytes by a special kind of table, used only by queues with a bound on bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from bunqueue.model.bounds import REFUSE, Bounds
from bunqueue.model.job import DELAYED, WAITING, Job
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError

if TYPE_CHECKING:
    from ..state import QueueState

SEARCHED = 10_000  # jobs skipped because they run or wait for others; after that, a push is refused


class CountedJobs(dict[int, Job]):
    """Jobs by number, with the total bytes of their data."""

    __slots__ = ("size",)

    def __init__(self, jobs: dict[int, Job]) -> None:
        super().__init__(jobs)
        self.size = sum(len(job.data) for job in jobs.values())

    def __setitem__(self, seq: int, job: Job) -> None:
        known = self.get(seq)
        self.size += len(job.data) - (0 if known is None else len(known.data))
        super().__setitem__(seq, job)

    def __delitem__(self, seq: int) -> None:
        self.size -= len(self[seq].data)
        super().__delitem__(seq)

    def pop(self, seq: int, *default: Job | None) -> Job:  # type: ignore[override]  # the two ways it is used
        job: Job = super().pop(seq, *default)
        if job is not None:
            self.size -= len(job.data)
        return job


class Space:
    """The bounds of one queue, and how many jobs they have refused or dropped since they were set."""

    __slots__ = ("bounds", "dropped", "refused")

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.refused = self.dropped = 0  # jobs


def bound(queue: QueueState, bounds: Bounds) -> None:
    """Set the bounds of a queue."""
    counts = isinstance(queue.jobs, CountedJobs)
    wanted = bounds.max_waiting_bytes is not None
    if counts != wanted:
        kind = CountedJobs if wanted else dict
        queue.jobs, queue.late = kind(queue.jobs), kind(queue.late)
    if not bounds.has_space_limit:
        queue.space = None
    elif queue.space is None:
        queue.space = Space(bounds)
    else:
        queue.space.bounds = bounds
    queue.is_bounded = queue.space is not None or queue.tenant is not None


def change_data(queue: QueueState, job: Job, data: bytes) -> None:
    """Change the data of a live job."""
    for jobs in (queue.jobs, queue.late):
        if isinstance(jobs, CountedJobs) and job.seq in jobs:
            jobs.size += len(data) - len(job.data)
    job.data = data


def waiting(queue: QueueState) -> int:
    """The number of live jobs that have not started."""
    return len(queue.jobs) + len(queue.late) - len(queue.active) - len(queue.suspended)


def waiting_bytes(queue: QueueState) -> int | None:
    """Bytes of their data; None if the queue does not count them."""
    total = 0
    for jobs in (queue.jobs, queue.late):
        if not isinstance(jobs, CountedJobs):
            return None
        total += jobs.size
    begun = chain(queue.active.values(), queue.suspended.values())
    return total - sum(len(job.data) for job in begun)


def room_for(queue: QueueState, payloads: Sequence[bytes], leaving: Collection[Job] = ()) -> list[Job]:
    """The jobs to drop to make room for new ones with these ``payloads``, given that ``leaving`` ones go
    anyway.  CommandError if there is no space for them."""
    space = queue.space
    assert space is not None
    if space.bounds.when_full == REFUSE:
        check(queue, payloads, leaving)
        return []
    jobs, size = _more(payloads, leaving)
    lacking = _lacking(queue, space.bounds, jobs, size)
    if lacking is None:
        return []
    gone = set(leaving)
    dropped: list[Job] = []
    for job in _oldest(queue):
        if job not in gone:
            dropped.append(job)
            jobs, size = jobs - 1, size - len(job.data)
            if _lacking(queue, space.bounds, jobs, size) is None:
                space.dropped += len(dropped)
                return dropped
    space.refused += len(payloads)
    raise _full(queue, *lacking)


def check(queue: QueueState, payloads: Sequence[bytes], leaving: Collection[Job] = ()) -> None:
    """CommandError if there is no space for jobs with these ``payloads``, without dropping any."""
    space = queue.space
    assert space is not None
    lacking = _lacking(queue, space.bounds, *_more(payloads, leaving))
    if lacking is not None:
        space.refused += len(payloads)
        raise _full(queue, *lacking)


def _more(payloads: Sequence[bytes], leaving: Collection[Job]) -> tuple[int, int]:
    """The number of additional jobs and bytes."""
    size = sum(map(len, payloads)) - sum(len(job.data) for job in leaving)
    return len(payloads) - len(leaving), size


def _lacking(queue: QueueState, bounds: Bounds, jobs: int, size: int) -> tuple[str, int, int] | None:
    """The bound that this many more jobs and bytes exceed, with the present value; None: they fit."""
    most = bounds.max_waiting
    if most is not None and jobs > 0 and waiting(queue) + jobs > most:
        return "maxWaiting", waiting(queue), most
    most = bounds.max_waiting_bytes
    if most is not None and size > 0 and (there := waiting_bytes(queue) or 0) + size > most:
        return "maxWaitingBytes", there, most
    return None


def _oldest(queue: QueueState) -> Iterator[Job]:
    """Jobs that may be dropped, in order of arrival; jobs revived from the dead letters count as older."""
    skipped = 0
    for job in chain(queue.late.values(), queue.jobs.values()):
        if job.state in (WAITING, DELAYED) and job.run is None:
            yield job
        elif (skipped := skipped + 1) > SEARCHED:
            return


def _full(queue: QueueState, field: str, there: int, most: int) -> CommandError:
    what = "jobs" if field == "maxWaiting" else "bytes"
    return CommandError(
        f"queue {queue.name} is full: {there} of at most {most} {what} wait; add less, or try again later",
        Code.QUEUE_FULL,
        field=field,
        value=there,
        bound=most,
    )

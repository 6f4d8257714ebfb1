"""When delayed jobs become ready, running attempts time out, and parked commands have waited long enough."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from bunqueue.model.job import ACTIVE, DELAYED, SUSPENDED, Job

from ..memory.lazy_heap import LazyHeap

if TYPE_CHECKING:
    from ..state import State


class Parked(Protocol):
    """A command that is answered later."""

    done: bool  # it has been answered


P = TypeVar("P", bound=Parked)
T = TypeVar("T")

Delays = LazyHeap[int, Job]  # by run_at; among equal times in order of arrival
Timeouts = LazyHeap[int, str]  # ids of active jobs by the end of their attempt

Deadlines = LazyHeap[int, P]  # until when commands are parked


def delays() -> Delays:
    """A heap of delayed jobs, and of suspended ones that do not wait for ever.  `forget` is called for each
    job that leaves these states before its time."""
    return LazyHeap(_is_delayed, reported=True)


def _is_delayed(entry: tuple[int, int, Job]) -> bool:
    run_at, _, job = entry
    return job.run_at == run_at and (job.state == DELAYED or job.state == SUSPENDED)


def timeouts(jobs: dict[str, Job]) -> Timeouts:
    """A heap of the timeouts of some of these live jobs."""

    def is_running(entry: tuple[int, int, str]) -> bool:
        at, _, job_id = entry
        job = jobs.get(job_id)
        return job is not None and job.state == ACTIVE and timeout_at(job) == at

    return LazyHeap(is_running)


def parked() -> LazyHeap[int, P]:
    """A heap of parked commands.  Most are answered long before their time is over."""
    return LazyHeap(_is_parked)


def _is_parked(entry: tuple[int, int, Parked]) -> bool:
    return not entry[2].done


def set_back(heap: LazyHeap[int, T], by: int) -> None:
    """The clock was ahead by so many ms."""
    heap.replace([(at - by, number, item) for at, number, item in heap.entries])


def timeout_at(job: Job) -> int:
    """When the running attempt has taken too long, or its time to stop is over; 0: it may take for ever, as
    an undo may, whose steps have timeouts of their own."""
    undoing = job.run is not None and job.run.undoing is not None
    own = job.lock is not None and job.lock.own_timeout
    timeout = None if undoing or own else job.shared.options.timeout
    at = 0 if not timeout or job.started_at is None else job.started_at + int(timeout)
    if job.extra is not None and (asked := job.extra.cancellation) is not None:
        at = min(at, asked.until) if at else asked.until
    return at


def watch(state: State, job: Job) -> None:
    """Have the engine look at a job that became active when its timeout is over."""
    at = timeout_at(job)
    if at:
        state.timeouts.add(at, job.id)

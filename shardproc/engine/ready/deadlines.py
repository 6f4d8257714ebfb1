"""Deadlines: when delayed jobs become ready, running attempts time out, and parked commands expire."""

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

Delays = LazyHeap[int, Job]  # by run_at, then in order of arrival
Timeouts = LazyHeap[int, str]  # ids of active jobs by the end of their attempt

Deadlines = LazyHeap[int, P]  # parked commands by the end of their wait


def delays() -> Delays:
    """A heap of delayed jobs, and of suspended ones that do not wait for ever.  `forget` is called for each
    job that leaves these states early."""
    return LazyHeap(_is_delayed, reported=True)


def _is_delayed(entry: tuple[int, int, Job]) -> bool:
    run_at, _, job = entry
    return job.run_at == run_at and (job.state == DELAYED or job.state == SUSPENDED)


def timeouts(jobs: dict[str, Job]) -> Timeouts:
    """A heap of timeouts of these live jobs."""

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
    """Correct the deadlines after the clock was ahead by this many ms."""
    heap.replace([(at - by, number, item) for at, number, item in heap.entries])


def timeout_at(job: Job) -> int:
    """When the running attempt times out, or its time to stop is over; 0: never, as in an undo, whose steps
    have timeouts of their own."""
    undoing = job.run is not None and job.run.undoing is not None
    own = job.lock is not None and job.lock.own_timeout
    timeout = None if undoing or own else job.shared.options.timeout
    at = 0 if not timeout or job.started_at is None else job.started_at + int(timeout)
    if job.extra is not None and (asked := job.extra.cancellation) is not None:
        at = min(at, asked.until) if at else asked.until
    return at


def watch(state: State, job: Job) -> None:
    """Register the timeout of a job that became active."""
    at = timeout_at(job)
    if at:
        state.timeouts.add(at, job.id)

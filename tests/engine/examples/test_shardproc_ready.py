"""The order of delivery of one queue, and that entries of jobs that have left do not pile up."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from bunqueue.model.job import ACTIVE, COMPLETED, NIL, WAITING, Job, JobOptions
from bunqueue.protocol.job_view import DEFAULT_OPTIONS, share_options
from shardproc.engine.memory.lazy_heap import MIN_STALE
from shardproc.engine.ready.ready_queue import ReadyQueue

LIFO = share_options(JobOptions(lifo=True))


def make(seq: int, priority: int = 0, run_at: int = 0, *, lifo: bool = False) -> Job:
    shared = LIFO if lifo else DEFAULT_OPTIONS
    return Job(seq, f"id-{seq:06}", "q", "default", NIL, shared, priority, 0, run_at)


def place(job: Job) -> tuple[int, ...]:
    """the reference server, "Order of delivery"."""
    if job.options.lifo:
        return (-job.priority, 0, -job.seq)
    return (-job.priority, 1, job.run_at, job.seq)


def taken(ready: ReadyQueue) -> Iterator[Job]:
    """Jobs as they leave; each becomes active, as the engine does it."""
    while (job := ready.pop()) is not None:
        job.state = ACTIVE
        yield job


def seqs(ready: ReadyQueue) -> list[int]:
    return [job.seq for job in taken(ready)]


def filled(*jobs: Job) -> ReadyQueue:
    ready = ReadyQueue()
    for job in jobs:
        ready.push(job)
    return ready


def test_nothing_comes_out_of_an_empty_queue() -> None:
    assert ReadyQueue().pop() is None


def test_arrival() -> None:
    assert seqs(filled(*(make(seq) for seq in range(1, 200)))) == list(range(1, 200))


def test_priority_beats_arrival() -> None:
    assert seqs(filled(make(1), make(2, 5), make(3, -5), make(4, 5), make(5, 10))) == [5, 2, 4, 1, 3]


def test_lifo_beats_arrival_but_not_priority() -> None:
    jobs = [make(1), make(2, lifo=True), make(3), make(4, lifo=True), make(5, 1)]
    assert seqs(filled(*jobs)) == [5, 4, 2, 1, 3]


def test_earlier_run_time_beats_arrival() -> None:
    assert seqs(filled(make(1, run_at=30), make(2, run_at=10), make(3, run_at=20))) == [2, 3, 1]


def test_lifo_jobs_ignore_their_run_time() -> None:
    jobs = [make(1, run_at=50, lifo=True), make(2, run_at=10, lifo=True), make(3, run_at=90, lifo=True)]
    assert seqs(filled(*jobs)) == [3, 2, 1]


def test_a_released_job_comes_first_again() -> None:
    ready = filled(make(1), make(2), make(3))
    first = ready.pop()
    assert first is not None
    ready.push(first)
    assert seqs(ready) == [1, 2, 3]


def test_a_job_that_was_released_twice_stands_there_once() -> None:
    ready = filled(make(1), make(2))
    for _ in range(5):
        job = ready.pop()
        assert job is not None
        assert job.seq == 1
        ready.push(job)
    assert seqs(ready) == [1, 2]


@pytest.mark.parametrize("seed", range(40))
def test_any_order_of_pushes_and_pops(seed: int) -> None:
    """Against a list that is sorted at every look."""
    chance = random.Random(seed)
    ready, waiting, out = ReadyQueue(), [], []
    spread = chance.choice([1, 3, 50])
    for seq in range(1, 600):
        job = make(
            seq,
            chance.choice([0, 0, 0, 1, -7][:spread]),
            chance.randrange(spread),
            lifo=chance.random() < 0.1,
        )
        ready.push(job)
        waiting.append(job)
        while waiting and chance.random() < 0.4:
            best = min(waiting, key=place)
            waiting.remove(best)
            assert ready.pop() is best
            if chance.random() < 0.2:
                ready.push(best)
                waiting.append(best)
            else:
                best.state = ACTIVE
                out.append(best)
    assert list(taken(ready)) == sorted(waiting, key=place)
    assert ready.pop() is None


@pytest.mark.parametrize("seed", range(20))
def test_jobs_that_left_otherwise_are_skipped(seed: int) -> None:
    chance = random.Random(seed)
    jobs = [
        make(seq, chance.randrange(3), chance.randrange(9), lifo=chance.random() < 0.2)
        for seq in range(1, 900)
    ]
    ready = filled(*jobs)
    for job in chance.sample(jobs, 700):
        job.state = COMPLETED
        ready.forget(job)
    left = [job for job in jobs if job.state == WAITING]
    assert list(taken(ready)) == sorted(left, key=place)


def entries(ready: ReadyQueue) -> int:
    return sum(len(list(bucket.entries())) for bucket in ready._buckets.values())


@pytest.mark.parametrize("kind", ["fifo", "late", "lifo", "mixed"])
def test_entries_of_jobs_that_left_are_cleared_away(kind: str) -> None:
    """Never more than a fifth of them, and a few."""
    makers: dict[str, Callable[[int], Job]] = {
        "fifo": lambda seq: make(seq),
        "late": lambda seq: make(seq, run_at=10_000 - seq),
        "lifo": lambda seq: make(seq, lifo=True),
        "mixed": lambda seq: make(seq, seq % 4, seq % 7, lifo=seq % 3 == 0),
    }
    jobs = [makers[kind](seq) for seq in range(1, 2001)]
    ready = filled(*jobs)
    for number, job in enumerate(jobs, 1):
        job.state = COMPLETED
        ready.forget(job)
        living = len(jobs) - number
        assert entries(ready) - living <= max(MIN_STALE, entries(ready) / 5) + 1
    assert entries(ready) <= MIN_STALE + 1
    assert ready.pop() is None
    assert entries(ready) == 0


def test_a_long_life_leaves_nothing_behind() -> None:
    """A thousand rounds of jobs that come, leave by `pop` or otherwise, and the structure is empty again."""
    ready, seq = ReadyQueue(), 0
    for round_ in range(1000):
        jobs = []
        for _ in range(5):
            seq += 1
            jobs.append(make(seq, priority=round_ % 50, lifo=seq % 5 == 0))
            ready.push(jobs[-1])
        for job in jobs[:2]:
            job.state = COMPLETED
            ready.forget(job)
        assert {job.seq for job in taken(ready)} == {job.seq for job in jobs[2:]}
    assert entries(ready) == 0
    assert not ready._order
    assert (ready._size, ready._stale) == (0, 0)


def test_prioritized_counts_what_waits() -> None:
    jobs = [make(1), make(2, 5), make(3, -5), make(4, 5, lifo=True), make(5, 1)]
    ready = filled(*jobs)
    assert ready.prioritized() == 3
    jobs[1].state = COMPLETED
    ready.forget(jobs[1])
    assert ready.prioritized() == 2
    first = ready.pop()
    assert first is jobs[3]
    first.state = ACTIVE
    assert ready.prioritized() == 1


@pytest.mark.parametrize("seed", range(20))
def test_counts_of_priorities_through_any_life(seed: int) -> None:
    chance = random.Random(seed)
    ready, waiting = ReadyQueue(), set()
    for seq in range(1, 1500):
        job = make(seq, chance.randrange(-2, 4), chance.randrange(9), lifo=chance.random() < 0.2)
        ready.push(job)
        waiting.add(job)
        while len(waiting) > 400 or (waiting and chance.random() < 0.4):
            if chance.random() < 0.5:
                gone = ready.pop()
                assert gone is not None
                gone.state = ACTIVE
            else:
                gone = chance.choice(sorted(waiting, key=lambda job: job.seq))
                gone.state = COMPLETED
                ready.forget(gone)
            waiting.remove(gone)
        assert dict(ready.counts()) == Counter(job.priority for job in waiting)
        assert ready.prioritized() == sum(job.priority > 0 for job in waiting)

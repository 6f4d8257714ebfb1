"""One run of the demonstration: add a job for every file, wait, and check what the queues report.

It is the same for embedded mode and for a server: only the place of the queues differs; the caller sets it.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from bunqueue import AsyncQueue, Backoff, Job, JobOptions, NewJob
from bunqueue.model.ids import slot_of_id
from demo_processes import SHARDS, DemoError
from demo_work import by_queue, examine

T = TypeVar("T")

BATCH = 500  # jobs in one add_bulk
PAGE = 1000  # jobs in one answer
MAX_DEAD_LETTERS = 10_000  # the most that a queue returns
POLL_SECONDS = 0.05  # between two polls of the counts; the possible error of the wall time
PATIENCE_SECONDS = 30.0  # without a job that ends or runs
SAMPLE = 50  # files that are read again here, and as many dead letters

ATTEMPTS = 3
OPTIONS = JobOptions(max_attempts=ATTEMPTS, backoff=Backoff(100, "fixed"))
"""Files that cannot be read now may be readable in a moment, but are unlikely to be in an hour."""


@dataclass(slots=True)
class DeadLetter:
    path: str
    reason: str


@dataclass(slots=True)
class Report:
    """The outcome of a run, as reported by the queues."""

    jobs: int = 0
    ok: int = 0
    retries: int = 0
    bytes: int = 0
    seconds: float = 0.0
    waits: list[int] = field(default_factory=list)
    """From push to start in ms, ascending, of the jobs that needed one attempt."""
    dead: list[DeadLetter] = field(default_factory=list)
    shards: Counter[int] = field(default_factory=Counter)
    """Jobs by shard, according to their ids."""
    problems: list[str] = field(default_factory=list)
    """What does not add up."""

    def wait(self, share: float) -> int | None:
        """The smallest wait that at least this share of the others does not exceed."""
        return self.waits[max(0, math.ceil(share * len(self.waits)) - 1)] if self.waits else None


async def run(
    queues: Mapping[str, AsyncQueue],
    files: Sequence[str],
    progress: Callable[[int], object],
    check: Callable[[], None],
) -> Report:
    """Process `files`. `progress` gets the number of finished jobs; `check` raises to give up."""
    started = time.perf_counter()
    began = time.time()
    paths: dict[str, str] = {}
    await asyncio.gather(*[_add(queues[name], chosen, paths) for name, chosen in by_queue(list(files))])
    await _finished(queues.values(), len(files), progress, check)
    seconds = time.perf_counter() - started
    completed = await _jobs(queues.values(), "completed")
    failed = await _jobs(queues.values(), "failed")
    report = _summary(completed, failed, seconds)
    report.problems += [
        *_whereabouts(completed + failed, paths, files),
        *await _dead_letters(queues.values(), failed),
        *_wrong(completed, began),
        *_innocent(failed, began),
    ]
    return report


async def _add(queue: AsyncQueue, files: Sequence[str], paths: dict[str, str]) -> None:
    """Add a job for each file, and record the ids."""
    for start in range(0, len(files), BATCH):
        part = files[start : start + BATCH]
        handles = await queue.add_bulk(NewJob("examine", {"path": path}) for path in part)
        paths.update(zip((handle.id for handle in handles), part, strict=True))


async def _finished(
    queues: Iterable[AsyncQueue], total: int, progress: Callable[[int], object], check: Callable[[], None]
) -> None:
    """Wait until every job has completed or failed for good."""
    done, patient_until = -1, 0.0
    while True:
        counts = await asyncio.gather(*[queue.counts() for queue in queues])
        now = sum(count.completed + count.failed for count in counts)
        if now != done or any(count.active for count in counts):
            patient_until = time.monotonic() + PATIENCE_SECONDS
        elif time.monotonic() > patient_until:
            raise DemoError(
                f"nothing has happened for {PATIENCE_SECONDS:.0f} s; {total - done} jobs are left"
            )
        done = now
        progress(done)
        if done >= total:
            return
        check()
        await asyncio.sleep(POLL_SECONDS)


async def _jobs(queues: Iterable[AsyncQueue], state: str) -> list[Job]:
    """All jobs of a state."""
    jobs: list[Job] = []
    for queue in queues:
        page: list[Job] | None = None
        offset = 0
        while page is None or len(page) == PAGE:
            page = await queue.get_jobs(state, limit=PAGE, offset=offset)
            offset += PAGE
            jobs += page
    return jobs


def _summary(completed: list[Job], failed: list[Job], seconds: float) -> Report:
    at_once = [job for job in completed if not job.attempts and job.started_at is not None]
    return Report(
        jobs=len(completed) + len(failed),
        ok=len(completed),
        retries=sum(job.attempts for job in completed) + sum(job.attempts - 1 for job in failed),
        bytes=sum(job.result["size"] for job in completed),
        seconds=seconds,
        waits=sorted((job.started_at_ms or 0) - job.created_at_ms for job in at_once),
        dead=sorted(
            (DeadLetter(job.data["path"], job.error or "") for job in failed), key=lambda one: one.path
        ),
        shards=Counter(slot_of_id(job.id) % SHARDS for job in completed + failed),
    )


# -- checks: each returns what is wrong, in words


def _whereabouts(jobs: list[Job], paths: Mapping[str, str], files: Sequence[str]) -> list[str]:
    """Each file was added once, and each acknowledged job exists once, with its own file."""
    problems = []
    if len(paths) != len(files):
        problems.append(f"{len(files)} files gave {len(paths)} different job ids")
    if len(jobs) != len(files):
        problems.append(f"{len(files)} files were walked, but {len(jobs)} jobs have ended")
    missing = paths.keys() - {job.id for job in jobs}
    strange = [job.id for job in jobs if paths.get(job.id) != job.data["path"]]
    if missing:
        problems.append(f"{len(missing)} acknowledged jobs are not there any more, such as {min(missing)}")
    if strange:
        problems.append(
            f"{len(strange)} jobs do not have the file they were added with, such as {strange[0]}"
        )
    return problems


async def _dead_letters(queues: Iterable[AsyncQueue], failed: list[Job]) -> list[str]:
    """The dead-letter queues hold the jobs counted as failed, with the configured number of attempts."""
    problems = [
        f"{job.id} became a dead letter after {job.attempts} attempts"
        for job in failed
        if job.attempts != ATTEMPTS
    ]
    for queue in queues:
        ids = {job.id for job in failed if job.queue == queue.name}
        listed = {job.id for job in await queue.dlq(MAX_DEAD_LETTERS)}
        if not listed <= ids or len(listed) < min(len(ids), MAX_DEAD_LETTERS):
            problems.append(f"{queue.name}: {len(ids)} jobs failed, {len(listed)} are listed as dead letters")
    return problems


def _wrong(completed: list[Job], began: float) -> list[str]:
    """A sample of the results equals what this process computes."""
    problems = []
    for job in _sample(completed):
        path = job.data["path"]
        if _is_settled(path, began) and job.result != _examined(path):
            problems.append(f"{path}: the worker found {job.result}, which is wrong")
    return problems


def _innocent(failed: list[Job], began: float) -> list[str]:
    """A sample of the dead letters also fails in this process."""
    paths = [job.data["path"] for job in _sample(failed)]
    return [
        f"{path}: failed in the worker, but not here"
        for path in paths
        if _is_settled(path, began) and _examined(path) is not None
    ]


def _examined(path: str) -> dict[str, object] | None:
    try:
        return examine(path)
    except (OSError, UnicodeError):
        return None


def _is_settled(path: str, began: float) -> bool:
    """Whether the file has not changed since the run began, so that it can be checked."""
    try:
        return os.stat(path).st_ctime < began
    except OSError:
        return False


def _sample(items: Sequence[T]) -> list[T]:
    """At most SAMPLE of them, evenly spread."""
    return list(items[:: math.ceil(len(items) / SAMPLE) or 1])

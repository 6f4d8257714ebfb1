"""Walks over all jobs meet each once, whatever is done with them meanwhile; large jobs shrink a page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from bunqueue import Queue
from bunqueue.client.connection.endpoint_options import EndpointOptions
from shardproc.engine.handlers.views import query


@pytest.fixture
def queue(where: EndpointOptions, name: str) -> Iterator[Queue]:
    with Queue(name, **where) as queue:
        yield queue


@pytest.mark.parametrize("newest_first", [False, True])
def test_acting_on_each_job_skips_none(queue: Queue, newest_first: bool) -> None:
    ids = [handle.id for handle in queue.add_bulk([("n", number) for number in range(250)])]
    met = []
    for job in queue.iter_jobs("waiting", newest_first=newest_first, page=20):
        met.append(job.id)
        queue.handle(job.id).remove()
    assert met == (ids[::-1] if newest_first else ids)
    assert queue.counts().waiting == 0


def test_what_comes_meanwhile_disturbs_no_walk(queue: Queue) -> None:
    first = [handle.id for handle in queue.add_bulk([("n", number) for number in range(60)])]
    met = []
    for number, job in enumerate(queue.iter_jobs(newest_first=True, page=7)):
        met.append(job.id)
        if number < 50:
            queue.add("late", priority=number)
    assert met == first[::-1]


def test_finished_and_live_jobs_together(queue: Queue) -> None:
    ids = [handle.id for handle in queue.add_bulk([("n", number) for number in range(90)])]
    for number in range(60):
        taken = queue.pull()
        assert taken is not None
        handle = queue.handle(taken.job.id)
        if number % 2:
            handle.complete("done", lock_token=taken.lock_token)
        else:
            handle.fail("bad", lock_token=taken.lock_token, unrecoverable=True)
    met = [job.id for job in queue.iter_jobs(page=8)]
    assert met == ids
    assert [job.id for job in queue.iter_jobs(["completed", "waiting"], page=8)] == [
        job_id for number, job_id in enumerate(ids) if number >= 60 or number % 2
    ]


def die(queue: Queue, count: int) -> list[str]:
    ids = [handle.id for handle in queue.add_bulk([("n", number) for number in range(count)])]
    for _ in range(count):
        taken = queue.pull()
        assert taken is not None
        queue.handle(taken.job.id).fail("bad", lock_token=taken.lock_token, unrecoverable=True)
    return ids


def test_each_dead_letter_is_met_once_though_all_are_retried(queue: Queue) -> None:
    ids = die(queue, 45)
    met = []
    for entry in queue.iter_dlq(page=4, error="bad"):
        met.append(entry.job.id)
        assert queue.retry_dlq(entry.job.id) == 1
    assert sorted(met) == sorted(ids)
    assert (queue.count_dlq(), queue.counts().waiting) == (0, 45)


def test_pages_shrink_to_what_fits(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query, "MAX_REPLY", 100_000)
    monkeypatch.setattr(query, "MAX_PART", 20_000)
    with Queue("large", embedded=True, data_path=tmp_path / "jobs.db") as queue:
        ids = [handle.id for handle in queue.add_bulk([("n", None)] * 12)]
        for number in range(12):
            taken = queue.pull()
            assert taken is not None
            size = 150_000 if number == 5 else 30_000
            queue.handle(taken.job.id).complete("x" * size, lock_token=taken.lock_token)
        for jobs in (
            queue.get_jobs("completed", limit=50),
            queue.get_jobs("completed", limit=12),
            list(queue.iter_jobs("completed")),
            list(queue.iter_jobs("completed", page=5)),
            list(reversed(list(queue.iter_jobs(newest_first=True, page=5)))),
            queue.find(state="completed", oldest_first=True).jobs,
        ):
            assert [job.id for job in jobs] == ids
            assert [(job.result is None, job.result_bytes) for job in jobs] == [
                (True, 150_005) if number == 5 else (False, None) for number in range(12)
            ]
        whole = queue.get_job(ids[5])
        assert whole is not None
        assert (len(whole.result), whole.result_bytes) == (150_000, None)
        assert len(queue.handle(ids[5]).job().result) == 150_000


def test_pages_of_large_dead_letters_shrink_as_well(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query, "MAX_REPLY", 100_000)
    with Queue("large", embedded=True, data_path=tmp_path / "jobs.db") as queue:
        queue.add_bulk([("n", "x" * 20_000)] * 9)
        for _ in range(9):
            taken = queue.pull()
            assert taken is not None
            queue.handle(taken.job.id).fail("bad", lock_token=taken.lock_token, unrecoverable=True)
        assert len(queue.dlq()) == len(queue.dlq_entries()) == len(list(queue.iter_dlq(page=4))) == 9
        assert len(queue.dlq(5)) == len(queue.dlq_entries(limit=5)) == 5
        assert len({entry.job.id for entry in queue.dlq_entries(limit=50, offset=2)}) == 7

"""Finding jobs with the SDK: on a server of two shards and embedded, with coroutines and blocking."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bunqueue import Admin, AsyncAdmin, AsyncQueue, NewJob, OptionError, Queue
from bunqueue.client.connection.endpoint_options import EndpointOptions


async def test_a_page_and_the_rest(queues: list[AsyncQueue]) -> None:
    queue = queues[0]
    handles = await queue.add_bulk(
        [
            NewJob("odd" if n % 2 else "even", {"n": n}, tags=["third"] if n % 3 == 0 else [])
            for n in range(20)
        ]
    )
    newest = [handle.id for handle in reversed(handles)]
    page = await queue.find(limit=8)
    assert [job.id for job in page] == newest[:8]
    assert len(page) == page.found == 8
    assert page.cursor is not None
    rest = await queue.find(limit=100, cursor=page.cursor)
    assert [job.id for job in rest.jobs] == newest[8:]
    assert rest.cursor is None
    half = await queue.find(limit=10)
    assert half.cursor is not None
    assert len(last := await queue.find(limit=10, cursor=half.cursor)) == 10
    assert last.cursor is None, "a full page that is the last one says so"
    assert (await queue.find(limit=7, name="odd", tag="third")).cursor is None
    assert [job.data["n"] for job in (await queue.find(name="odd", tag="third", oldest_first=True)).jobs] == [
        3, 9, 15,
    ]  # fmt: skip
    assert [job.data["n"] async for job in queue.iter_found(where="data.n >= 18", page=1)] == [19, 18]
    assert await queue.count_found(name=["odd", "even"]) == 20
    assert await queue.count_found(state="failed") == 0
    plan = await queue.explain_find(data={"n": 3})
    assert plan.jobs <= 20


async def test_one_search_over_all_queues_in_order(queues: list[AsyncQueue], where: EndpointOptions) -> None:
    tag = f"all-{queues[0].name}"
    expected = [(await queues[n % 8].add("job", n, tags=[tag])).id for n in range(24)]
    async with AsyncAdmin(**where) as admin:
        found: list[str] = []
        cursor, pages = None, 0
        while pages == 0 or cursor is not None:
            page = await admin.find(tag=tag, limit=5, cursor=cursor)
            found += [job.id for job in page.jobs]
            cursor, pages = page.cursor, pages + 1
        assert sorted(found) == sorted(expected)
        created = {job.id: job.created_at_ms async for job in admin.iter_found(tag=tag)}
        times = [created[job_id] for job_id in found]
        assert times == sorted(times, reverse=True)
        assert await admin.count_found(tag=tag) == 24
        assert await admin.count_found(tag=tag, where=f"queue = {queues[3].name}") == 3
        reports: list[tuple[int, int]] = []
        await admin.find(tag=tag, limit=1000, on_progress=lambda done, total: reports.append((done, total)))
        assert reports


async def test_times_are_moments_and_spans(queues: list[AsyncQueue]) -> None:
    queue = queues[0]
    handle = await queue.add("job", 1)
    now = datetime.now(UTC)
    for given in (now - timedelta(minutes=5), timedelta(minutes=5), (now.timestamp() - 300) * 1000):
        assert [job.id for job in await queue.find(created_after=given)] == [handle.id]
        assert not (await queue.find(created_before=given)).jobs
    found = [job.id async for job in queue.iter_found(created_after=timedelta(hours=1), page=1)]
    assert found == [handle.id]
    assert not (await queue.find(finished_after=timedelta(hours=1))).jobs


@pytest.mark.parametrize(
    ("which", "words"),
    [
        ({"colour": "red"}, "colour"),
        ({"state": "odd"}, "state: 'odd' is unknown; there are waiting"),
        ({"where": "colour = red"}, "where: colour is no field"),
        ({"where": 5}, "where: 5 is not allowed"),
        ({"data": "order.id"}, "data: 'order.id' is not allowed; give a map"),
        ({"data": {"a..b": 1}}, "data: a..b is no path"),
        ({"data": {"a": [1]}}, "data: {'a': .1.} is not allowed"),
        ({"created_after": datetime(2026, 1, 1)}, "created_after: .* has no time zone"),
        ({"limit": 0}, "limit: 0 is not allowed"),
        ({"name": 7}, "name must be a string"),
        ({"worker": "x" * 300}, "worker must be at most 256 characters"),
    ],
)
async def test_what_cannot_be_meant_is_refused_here(
    queues: list[AsyncQueue], which: dict[str, Any], words: str
) -> None:
    with pytest.raises(OptionError, match=words):
        await queues[0].find(**which)


async def test_a_cursor_of_another_search_is_refused(queues: list[AsyncQueue]) -> None:
    await queues[0].add_bulk([("job", n) for n in range(3)])
    page = await queues[0].find(limit=1)
    with pytest.raises(Exception, match="cursor belongs to another search"):
        await queues[0].find(limit=1, cursor=page.cursor, name="other")
    with pytest.raises(Exception, match="cursor was not given by a search"):
        await queues[0].find(limit=1, cursor="nonsense")


def test_the_same_without_coroutines(where: EndpointOptions, name: str) -> None:
    with Queue(name, **where) as queue, Admin(**where) as admin:
        handle = queue.add("rare", {"order": {"id": 7}}, tags=["blocking"])
        assert [job.id for job in queue.find(data={"order.id": 7})] == [handle.id]
        assert [job.id for job in admin.iter_found(tag="blocking", where=f"queue = {queue.name}")] == [
            handle.id
        ]
        assert queue.count_found(name="rare") == 1

"""What every way to an engine must do alike: pool, blocking connection, and both kinds of embedded session.

Each test runs over all four. What only connections do, as they break, is in `test_every_connection.py`.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Raw
from support.server import Server
from support.transports import Client, client
from support.waiting import eventually

from bunqueue import BunqueueError, CommandFailed, ConnectionLost, PayloadError
from bunqueue.client.connection.transport import Endpoint
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import Ok, Reply, core, jobs, query, queues, server
from bunqueue.protocol.commands.events import SubscribeEvents

PARKED_MS = 30_000  # far longer than a test takes

_numbers = itertools.count()
encode: Callable[[object], bytes] = msgspec.msgpack.encode
decode: Callable[[Any], Any] = msgspec.msgpack.decode


@pytest.fixture(params=["server", "embedded"])
def endpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Endpoint:
    """The module's server, or a file of the test's own."""
    if request.param == "embedded":
        return Endpoint(embedded=True, data_path=str(tmp_path / "jobs.db"))
    shared: Server = request.getfixturevalue("shared_server")
    return Endpoint(host=shared.host, port=shared.port)


@pytest.fixture(params=[False, True], ids=["async", "blocking"])
async def new_client(
    request: pytest.FixtureRequest, endpoint: Endpoint
) -> AsyncIterator[Callable[[], Client]]:
    """Makes clients of one kind, which are closed after the test."""
    made: list[Client] = []

    def make() -> Client:
        made.append(client(endpoint, blocking=request.param))
        return made[-1]

    yield make
    for each in made:
        await each.close()


@pytest.fixture
def way(new_client: Callable[[], Client]) -> Client:
    return new_client()


@pytest.fixture
def queue() -> str:
    return f"every-transport-{next(_numbers)}"


async def push(way: Client, queue: str, data: object = None, **fields: Any) -> str:
    command = core.Push(queue=queue, name="n", data=Raw(encode(data)), **fields)
    return (await way.call(command, core.PushReply)).id


async def pull(way: Client, queue: str, **fields: Any) -> tuple[dict[str, Any] | None, str | None]:
    """A job and its token, locked by an owner; None and None if there is no job."""
    reply = await way.call(core.PullBatch(queue=queue, count=1, owner="me", **fields), core.PullBatchReply)
    taken = decode(reply.jobs)
    if not taken:
        return None, None
    assert isinstance(reply.tokens, list)
    return taken[0], reply.tokens[0]


async def pulled(way: Client, queue: str) -> tuple[str, str]:
    """The id and the token of a job that is there."""
    job, token = await pull(way, queue)
    assert job is not None
    assert token is not None
    return job["id"], token


async def state(way: Client, job_id: str) -> str:
    return (await way.call(query.GetState(id=job_id), query.StateReply)).state


# -- the life of a job


async def test_a_job_is_added_pulled_and_completed(way: Client, queue: str) -> None:
    job_id = await push(way, queue, {"x": 1})
    job, token = await pull(way, queue)
    assert job is not None
    assert (job["id"], job["name"], job["data"], await state(way, job_id)) == (
        job_id,
        "n",
        {"x": 1},
        "active",
    )
    await way.call(core.Ack(id=job_id, token=token, result=Raw(encode([1, "two"]))), core.AckReply)
    reply = await way.call(query.GetResult(id=job_id), query.ResultReply)
    assert (decode(reply.result), await state(way, job_id)) == ([1, "two"], "completed")


async def test_many_jobs_at_once_keep_their_order(way: Client, queue: str) -> None:
    fields = [core.JobFields(name=str(number), data=Raw(encode(number))) for number in range(2000)]
    added = await way.call(core.PushBatch(queue=queue, jobs=fields), core.PushBatchReply)
    assert len(set(added.ids)) == 2000
    batch = await way.call(core.PullBatch(queue=queue, count=1000, owner="me"), core.PullBatchReply)
    taken = decode(batch.jobs)
    assert [(job["id"], job["data"]) for job in taken] == list(zip(added.ids, range(1000), strict=False))
    assert isinstance(batch.tokens, list)
    await way.call(core.AckBatch(ids=added.ids[:1000], tokens=batch.tokens), core.AckBatchReply)
    counts = (await way.call(query.GetJobCounts(queue=queue), query.JobCountsReply)).counts
    assert (counts.waiting, counts.active, counts.completed) == (1000, 0, 1000)


async def test_a_failed_job_is_retried_and_then_a_dead_letter(way: Client, queue: str) -> None:
    job_id = await push(way, queue, max_attempts=2, backoff=1)
    for expected in ("delayed", "failed"):
        job, token = await pull(way, queue, timeout=PARKED_MS)
        assert job is not None
        fail = core.Fail(id=job_id, token=token, error="boo", delay=60_000 if expected == "delayed" else None)
        await way.call(fail, core.FailReply)
        assert await state(way, job_id) == expected
        if expected == "delayed":
            await way.call(jobs.Promote(id=job_id), Ok)
    ended = await way.ended(queue, job_id, 60)
    assert (ended.state, ended.error, ended.attempts) == ("failed", "boo", 2)


async def test_a_waiting_job_is_cancelled(way: Client, queue: str) -> None:
    job_id = await push(way, queue)
    waiting = asyncio.ensure_future(way.ended(queue, job_id, None))
    await way.call(jobs.Cancel(id=job_id), jobs.CancelReply)
    assert (await waiting).state == "cancelled"
    assert await pull(way, queue) == (None, None)


async def test_a_running_job_is_cancelled(way: Client, queue: str) -> None:
    await push(way, queue)
    job_id, token = await pulled(way, queue)
    reply = await way.call(jobs.Cancel(id=job_id, running=True, reason="enough"), jobs.CancelReply)
    assert reply.running is True
    beat = await way.call(core.JobHeartbeat(id=job_id, token=token), core.HeartbeatReply)
    assert [(notice.id, notice.reason) for notice in beat.data.cancelled or ()] == [(job_id, "enough")]
    await way.call(core.Fail(id=job_id, token=token, error="stopped"), core.FailReply)
    assert (await way.ended(queue, job_id, 60)).state == "cancelled"


async def test_what_was_pulled_returns_when_the_client_closes(
    new_client: Callable[[], Client], queue: str
) -> None:
    watcher, worker = new_client(), new_client()
    job_id = await push(watcher, queue)
    await watcher.close()  # else the connection is shared, and stays
    assert (await pulled(worker, queue))[0] == job_id
    await worker.close()
    job, _ = await pull(new_client(), queue, timeout=PARKED_MS)
    assert job is not None
    assert job["id"] == job_id


# -- waiting


async def test_a_parked_pull_gets_the_job_that_comes(way: Client, queue: str) -> None:
    waiting = asyncio.ensure_future(pull(way, queue, timeout=PARKED_MS))
    job_id = await push(way, queue)
    job, token = await asyncio.wait_for(waiting, 60)
    assert job is not None
    assert (job["id"], bool(token)) == (job_id, True)


async def test_a_parked_pull_ends_when_its_time_is_over(way: Client, queue: str) -> None:
    begun = time.monotonic()
    assert await pull(way, queue, timeout=50) == (None, None)
    assert 0.05 <= time.monotonic() - begun < 10


async def test_the_end_of_a_job_is_awaited(way: Client, queue: str) -> None:
    job_id = await push(way, queue)
    waiting = [asyncio.ensure_future(way.ended(queue, job_id, None)) for _ in range(2)]
    _, token = await pulled(way, queue)
    await way.call(core.Ack(id=job_id, token=token, result=Raw(encode(42))), core.AckReply)
    for ended in await asyncio.wait_for(asyncio.gather(*waiting), 60):
        assert (ended.state, decode(ended.result)) == ("completed", 42)


@pytest.mark.parametrize("seconds", [0, 0.05])
async def test_waiting_for_a_job_that_does_not_end_is_a_timeout(
    way: Client, queue: str, seconds: float
) -> None:
    job_id = await push(way, queue)
    with pytest.raises(TimeoutError):
        await way.ended(queue, job_id, seconds)


async def test_calls_that_overlap_get_their_own_replies(way: Client, queue: str) -> None:
    waiting = [asyncio.ensure_future(pull(way, queue, timeout=PARKED_MS)) for _ in range(3)]
    ids = await asyncio.gather(
        *[push(way, queue, number, custom_id=f"{queue}-{number}") for number in range(200)]
    )
    assert ids == [f"{queue}-{number}" for number in range(200)]
    taken = [job["id"] for job, _ in await asyncio.gather(*waiting) if job]
    assert len(set(taken)) == 3
    assert set(taken) <= set(ids)


# -- what is refused

REFUSED: list[tuple[str, Callable[[str], tuple[Any, type[Reply]]], tuple[Any, ...]]] = [
    ("no job", lambda _: (query.GetJob(id="none"), query.JobReply), (Code.JOB_NOT_FOUND, "id", "none", None)),
    (
        "priority",
        lambda q: (core.Push(queue=q, priority=5_000_000), core.PushReply),
        (Code.INVALID_PRIORITY, "priority", 5_000_000, 1_000_000),
    ),
    ("delay", lambda q: (core.Push(queue=q, delay=-1), core.PushReply), (Code.INVALID_DELAY, "delay", -1, 0)),
    (
        "one of many",
        lambda q: (
            core.PushBatch(queue=q, jobs=[core.JobFields(), core.JobFields(max_attempts=0)]),
            core.PushBatchReply,
        ),
        (Code.INVALID_ATTEMPTS, "jobs[1].maxAttempts", 0, 1),
    ),
    (
        "dependency",
        lambda q: (core.Push(queue=q, depends_on=["none"]), core.PushReply),
        (Code.JOB_NOT_FOUND, "dependsOn", "none", None),
    ),
    ("no queue", lambda _: (core.Push(queue=""), core.PushReply), (Code.INVALID_QUEUE, "queue", "", None)),
    ("no lock", lambda _: (core.Ack(id="none"), core.AckReply), (Code.LOCK_LOST, "id", "none", None)),
    ("state", lambda _: (jobs.Promote(id="none"), Ok), (Code.JOB_STATE, "id", "none", "delayed")),
]


@pytest.mark.parametrize(("make", "told"), [each[1:] for each in REFUSED], ids=[each[0] for each in REFUSED])
async def test_refusals_have_code_field_value_and_bound(
    way: Client, queue: str, make: Callable[[str], tuple[Any, type[Reply]]], told: tuple[Any, ...]
) -> None:
    command, reply = make(queue)
    with pytest.raises(CommandFailed) as caught:
        await way.call(command, reply)
    error = caught.value
    assert (error.server_code, error.field, error.value, error.bound) == told, error
    counts = (await way.call(query.GetJobCounts(queue=queue), query.JobCountsReply)).counts
    assert counts == query.Counts(0, 0, 0, 0, 0)


async def test_a_wrong_token_is_refused_and_the_job_stays_active(way: Client, queue: str) -> None:
    job_id = await push(way, queue)
    await pulled(way, queue)
    with pytest.raises(CommandFailed) as caught:
        await way.call(core.Ack(id=job_id, token="not-it"), core.AckReply)
    assert (caught.value.server_code, caught.value.job_id) == (Code.LOCK_LOST, job_id)
    assert await state(way, job_id) == "active"


# -- what is carried


@pytest.mark.parametrize(
    "data",
    [
        "Grüße, \N{SNOWMAN} \N{GRINNING FACE} \N{ZERO WIDTH JOINER} \0",
        {"\N{CJK UNIFIED IDEOGRAPH-4E2D}": None},
        2**63,
    ],
    ids=["text", "key", "number"],
)
async def test_unicode_comes_back_as_it_went(way: Client, queue: str, data: object) -> None:
    name = f"{queue}-\N{LATIN SMALL LETTER U WITH DIAERESIS}\N{GRINNING FACE}"
    job_id = await push(way, queue, data, tags=[name])
    job, token = await pull(way, queue)
    assert job is not None
    assert (job["data"], job["tags"]) == (data, [name])
    await way.call(core.Ack(id=job_id, token=token, result=Raw(encode(data))), core.AckReply)
    assert decode((await way.ended(queue, job_id, 60)).result) == data


async def test_large_data_comes_back_as_it_went(way: Client, queue: str) -> None:
    data = "\N{LATIN SMALL LETTER U WITH DIAERESIS}" * 2_500_000
    job_id = await push(way, queue, data)
    job, token = await pull(way, queue)
    assert job is not None
    assert job["data"] == data
    await way.call(core.Ack(id=job_id, token=token, result=Raw(encode(data))), core.AckReply)
    assert decode((await way.ended(queue, job_id, 60)).result) == data


async def test_data_above_the_bound_is_refused(way: Client, queue: str) -> None:
    with pytest.raises(CommandFailed) as caught:
        await push(way, queue, "x" * 11_000_000)
    error = caught.value
    assert (error.server_code, error.field, error.bound) == (Code.DATA_TOO_LARGE, "data", 10 * 1024 * 1024)
    assert await pull(way, queue) == (None, None)


@pytest.mark.parametrize(
    "fields", [{"unique_key": "\ud800"}, {"delay": 2**70}], ids=["no unicode", "number too large"]
)
async def test_what_cannot_be_encoded_is_a_payload_error(
    way: Client, queue: str, fields: dict[str, Any]
) -> None:
    with pytest.raises(PayloadError, match=f"^PUSH for queue '{queue}' cannot be encoded: "):
        await push(way, queue, **fields)
    assert await push(way, queue)


# -- sessions


async def test_commands_about_the_server_are_answered(way: Client, queue: str) -> None:
    assert (await way.call(server.Ping(), server.PingReply)).data.pong
    await push(way, queue)
    listed = decode((await way.call(server.ListQueues(details=True), server.ListQueuesReply)).queues)
    assert queue in [each["name"] for each in listed]
    assert (await way.call(server.Stats(), server.StatsReply)).stats.waiting >= 1


async def test_clients_of_one_endpoint_see_the_same_jobs(
    new_client: Callable[[], Client], queue: str
) -> None:
    one, two = new_client(), new_client()
    job_id = await push(one, queue)
    await one.close()
    assert await state(two, job_id) == "waiting"


async def test_a_closed_client_says_so(way: Client, queue: str) -> None:
    await push(way, queue)
    await way.close()
    await way.close()
    with pytest.raises(
        ConnectionLost, match=f"^PUSH for queue '{queue}': .* is closed; open a new one"
    ) as caught:
        await push(way, queue)
    assert (caught.value.queue, caught.value.command) == (queue, "PUSH")


async def test_closing_ends_a_parked_pull_with_an_error(
    way: Client, new_client: Callable[[], Client], queue: str
) -> None:
    waiting = asyncio.ensure_future(pull(way, queue, timeout=PARKED_MS))
    await push(way, f"{queue}-other")
    await eventually(lambda: way.is_open, "the pull has a session")
    await way.close()
    with pytest.raises(ConnectionLost, match=f"^PULLB for queue '{queue}': .*closed") as caught:
        await asyncio.wait_for(waiting, 60)
    assert (caught.value.queue, caught.value.command, bool(caught.value.address)) == (queue, "PULLB", True)
    other = new_client()
    job_id = await push(other, queue)
    assert await state(other, job_id) == "waiting"  # nobody who left takes it


async def test_closing_ends_waiting_for_a_job_with_an_error(way: Client, queue: str) -> None:
    job_id = await push(way, queue)
    waiting = asyncio.ensure_future(way.ended(queue, job_id, None))
    await eventually(lambda: way.is_open, "the wait has a session")
    await way.close()
    with pytest.raises(BunqueueError, match="closed"):
        await asyncio.wait_for(waiting, 60)


async def test_closing_while_a_long_command_is_carried_out_ends_it_one_way_or_the_other(
    way: Client, new_client: Callable[[], Client], queue: str
) -> None:
    jobs_ = [core.JobFields() for _ in range(20_000)]
    await way.call(core.PushBatch(queue=queue, jobs=jobs_), core.PushBatchReply)
    draining = asyncio.ensure_future(way.call(queues.Drain(queue=queue), query.CountReply))
    # It is under way when a command that was sent after it is answered: long ones are carried out in slices.
    await way.call(server.Ping(), server.PingReply)
    await way.close()
    try:
        assert (await asyncio.wait_for(draining, 60)).count == 20_000
    except ConnectionLost as error:
        assert "closed" in str(error)  # noqa: PT017  # either may happen
    other = new_client()
    counts = (await other.call(query.GetJobCounts(queue=queue), query.JobCountsReply)).counts
    assert counts.waiting in range(20_001)


async def test_a_subscription_hears_what_happens_in_order(endpoint: Endpoint, queue: str) -> None:
    """Only asynchronous sessions listen; blocking ones have theirs in the background loop."""
    heard: list[dict[str, Any]] = []
    session = await endpoint.open(private=True)
    session.listen(lambda payload: heard.append(decode(payload)) if payload else None)
    await session.call(SubscribeEvents(queue=queue))
    way = client(endpoint, blocking=False)
    job_id = await push(way, queue)
    _, token = await pulled(way, queue)
    await way.call(core.Ack(id=job_id, token=token), core.AckReply)
    kinds = lambda: [frame["event"]["eventType"] for frame in heard if frame.get("type") == "event"]  # noqa: E731
    await eventually(lambda: "completed" in kinds(), "the end was heard")
    assert [kind for kind in kinds() if kind in ("pushed", "pulled", "completed")] == [
        "pushed",
        "pulled",
        "completed",
    ]
    await session.close()
    await way.close()

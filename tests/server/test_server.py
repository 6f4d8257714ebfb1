"""What a client may rely on when it talks to a whole server: router and shards together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from support.naming import queue_on, queues_on, slot_of
from support.server import Server, StartServer
from support.table import table
from support.waiting import eventually
from support.wire import ConnectionEnded, Reply, Wire, pack

from bunqueue.protocol.commands import COMMANDS

LONG_MS = 60_000
MAX_PARKED = 50
GHOST = "01a1fa07-db24-7{slot:03x}-b65c-0000000fffff"  # an id as the server makes them, of no job


@pytest.fixture
async def wire(shared_server: Server) -> AsyncIterator[Wire]:
    async with await Wire.open(shared_server.address) as wire:
        yield wire


@pytest.fixture
async def other(shared_server: Server) -> AsyncIterator[Wire]:
    """A second connection."""
    async with await Wire.open(shared_server.address) as wire:
        yield wire


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    """Begins the names of this test's queues, as the server is shared."""
    return str(request.node.name).translate(str.maketrans("[]", "--"))[:100]


async def push(wire: Wire, queue: str, **options: Any) -> str:
    return str((await wire.ok("PUSH", queue=queue, **({"data": 1} | options)))["id"])


async def state(wire: Wire, job_id: str) -> str:
    return str((await wire.ok("GetState", id=job_id))["state"])


async def pull_many(wire: Wire, queue: str, count: int, **options: Any) -> Reply:
    reply = await wire.ok("PULLB", queue=queue, count=count, **options)
    assert len(reply["jobs"]) == count
    return reply


# Hello, Auth, limits


@pytest.mark.parametrize(
    ("declared", "agreed", "capabilities"),
    [
        (2, 2, ["pipelining"]),
        (3, 3, ["pipelining", "separate-job-name"]),
        (1, 2, ["pipelining"]),
        (99, 3, ["pipelining", "separate-job-name"]),
        (None, 2, ["pipelining"]),
    ],
)
async def test_hello(wire: Wire, declared: int | None, agreed: int, capabilities: list[str]) -> None:
    said = {} if declared is None else {"protocolVersion": declared, "capabilities": ["pipelining"]}
    reply = await wire.ok("Hello", **said)
    del reply["reqId"]
    version = reply.pop("version")
    assert isinstance(version, str)
    assert version
    expected = {"ok": True, "protocolVersion": agreed, "capabilities": capabilities, "server": "bunqueue"}
    assert reply == expected


async def test_hello_decides_the_shape_of_answers(wire: Wire, other: Wire, prefix: str) -> None:
    names = [queue_on(0, prefix), queue_on(1, prefix)]
    for name in names:
        await push(wire, name, priority=3)
    await other.ok("Hello", protocolVersion=3)
    assert sorted(name for name in (await other.ok("ListQueues"))["queues"] if prefix in name) == sorted(
        names
    )
    mine = [queue for queue in (await wire.ok("ListQueues"))["queues"] if prefix in queue["name"]]
    assert sorted(queue.pop("name") for queue in mine) == sorted(names)
    assert mine == [{"waiting": 1, "delayed": 0, "active": 0, "paused": False}] * 2
    for name in names:
        (job,) = (await wire.ok("GetJobs", queue=name))["jobs"]
        assert await state(wire, job["id"]) == "waiting"
        assert await state(other, job["id"]) == "prioritized"
        assert (await wire.ok("GetJobCounts", queue=name))["counts"]["waiting"] == 1
        assert (await other.ok("GetJobCounts", queue=name))["counts"]["prioritized"] == 1


async def test_hello_in_one_write_with_its_neighbours(wire: Wire, prefix: str) -> None:
    """Commands before it are answered in the old shape, those after it in the new one."""
    queue = queue_on(0, prefix)
    job_id = await push(wire, queue, priority=1)
    commands: list[dict[str, Any]] = [
        {"cmd": "GetState", "id": job_id},
        {"cmd": "Hello", "protocolVersion": 3},
        {"cmd": "GetState", "id": job_id},
        {"cmd": "Hello", "protocolVersion": 2},
        {"cmd": "GetState", "id": job_id},
    ]
    replies = [await reply for reply in wire.send_many(commands)]
    assert [reply["state"] for reply in replies if "state" in reply] == ["waiting", "prioritized", "waiting"]


async def test_the_default_protocol_can_be_3(make_server: StartServer) -> None:
    server = make_server("--default-protocol", "3")
    server.start()
    async with await Wire.open(server.address) as wire:
        await push(wire, "q")
        assert (await wire.ok("ListQueues"))["queues"] == ["q"]
        await wire.ok("Hello", protocolVersion=2)
        assert (await wire.ok("ListQueues"))["queues"][0]["name"] == "q"


async def test_auth(make_server: StartServer) -> None:
    server = make_server("--auth-token", "first-secret", "--auth-token", "second-secret")
    server.start()
    assert "secret" not in server.ready
    async with await Wire.open(server.address) as wire:
        refused: list[dict[str, Any]] = [
            {"cmd": "Ping"},
            {"cmd": "Hello", "protocolVersion": 3},
            {"cmd": "PUSH", "queue": "q", "data": 1},
            {"cmd": "PUSH", "queue": "not valid!", "data": 1},
            {"cmd": "PUSH"},
            {"cmd": "NoSuchCommand"},
            {"cmd": 7},
            {},
            {"cmd": "PULL", "queue": "q", "timeout": 1000},
            {"cmd": "Stats"},
            {"cmd": "ACKB", "ids": ["a", "b"]},
        ]
        answers = [await reply for reply in wire.send_many(refused)]
        for answer in answers:
            del answer["reqId"]
        assert answers == [{"ok": False, "error": "Not authenticated", "code": "NOT_AUTHENTICATED"}] * len(
            refused
        )
        wire.write(b"\x00\x00\x00\x03\xff\xff\xff" + b"\x00\x00\x00\x00")
        for _ in range(2):
            assert (await wire.next_stray())["code"] == "NOT_AUTHENTICATED"
        for token in ("", "first-secret ", "first-secret,second-secret", "é" * 100):
            assert await wire.error("Auth", token=token) == "Invalid token"
        assert await wire.error("Ping") == "Not authenticated"
        assert set(await wire.ok("Auth", token="second-secret")) == {"ok", "reqId"}
        assert (await wire.ok("Stats"))["stats"]["queued"] == 0
        await wire.ok("PUSH", queue="q", data=1)
        assert await wire.error("Auth", token="wrong") == "Invalid token"
        await wire.ok("Ping")  # once in, it stays in
    async with await Wire.open(server.address) as wire:
        assert await wire.error("Ping") == "Not authenticated"  # the next connection starts anew
        first, second = wire.send_many([{"cmd": "Auth", "token": "first-secret"}, {"cmd": "Ping"}])
        assert (await first)["ok"]
        assert (await second)["ok"]
    assert "secret" not in server.whole_log()


async def test_a_read_only_token_reads_and_changes_nothing(make_server: StartServer) -> None:
    server = make_server("--auth-token", "all-of-it", "--read-only-token", "only-looking")
    server.start()
    async with await Wire.open(server.address) as wire:
        assert await wire.error("Auth", token="only-lookin") == "Invalid token"
        auth, early = wire.send_many(
            [{"cmd": "Auth", "token": "only-looking"}, {"cmd": "PUSH", "queue": "q", "data": 1}]
        )
        assert (await auth)["ok"]
        refused = await early
        assert refused["error"] == "This token may only read: PUSH needs one of --auth-token"
        assert refused["code"] == "FORBIDDEN"
        for name, spec in COMMANDS.items():
            if spec.writes or name == "ListWebhooks":  # also in a shape that only the second look reads
                for key in ({spec.key: "q"} if spec.key else {}, {spec.key: b"q"} if spec.key else {}):
                    reply = await wire.call(name, **key)
                    assert not reply["ok"]
                    assert reply.get("code") == "FORBIDDEN" or "Invalid" in reply["error"] or spec.key, reply
        assert (await wire.ok("Count", queue="q"))["count"] == 0
        await wire.ok("Ping")
        await wire.ok("Hello", protocolVersion=3)
        await wire.ok("SubscribeEvents", queue="q")
        assert (await wire.call("PULL", queue="q", timeout=1000))["code"] == "FORBIDDEN"
        await wire.ok("Auth", token="all-of-it")
        await wire.ok("PUSH", queue="q", data=1)


async def test_auth_on_an_open_server(wire: Wire) -> None:
    assert await wire.error("Auth", token="any") == "Invalid token"
    await wire.ok("Ping")


async def test_the_rate_limit_is_each_connections_own(make_server: StartServer) -> None:
    server = make_server("--rate-limit", "100")
    server.start()
    async with await Wire.open(server.address) as wire, await Wire.open(server.address) as other:
        commands = [{"cmd": "PUSH", "queue": "q", "data": number} for number in range(120)]
        replies = [await reply for reply in wire.send_many(commands)]
        assert [reply["ok"] for reply in replies] == [True] * 100 + [False] * 20
        assert {reply["error"] for reply in replies[100:]} == {"Rate limit exceeded"}
        for cmd in ("Ping", "Stats", "NoSuchCommand"):
            assert await wire.error(cmd) == "Rate limit exceeded"
        wire.write(b"\x00\x00\x00\x01\xc1")  # rubbish costs as much
        assert (await wire.next_stray())["error"] == "Rate limit exceeded"
        assert (await other.ok("GetJobCounts", queue="q"))["counts"]["waiting"] == 100
        assert wire.alive


async def test_too_many_connections(make_server: StartServer) -> None:
    server = make_server("--max-connections", "5")
    server.start()
    wires = [await Wire.open(server.address) for _ in range(5)]
    for wire in wires:
        await wire.ok("Ping")
    surplus = await Wire.open(server.address)
    told = await surplus.next_stray()
    assert (told["error"], told["code"]) == ("Too many connections (max 5)", "TOO_MANY_CONNECTIONS")
    await surplus.until_ended()
    await wires[0].ok("PUSH", queue="q", data=1)
    await wires.pop().close()

    async def let_in() -> bool:
        wire = await Wire.open(server.address)
        wires.append(wire)
        try:
            return bool((await wire.call("Ping"))["ok"])
        except ConnectionEnded:
            return False

    await eventually(let_in, "the place of the closed connection is free")
    for wire in wires:
        wire.abort()
        await wire.until_ended()


# In flight


async def test_replies_to_one_queue_come_in_order(wire: Wire, prefix: str) -> None:
    queue = queue_on(0, prefix)
    pushes = wire.send_many({"cmd": "PUSH", "queue": queue, "data": n} for n in range(1000))
    counts = wire.send("GetJobCounts", queue=queue)
    pulls = wire.send_many({"cmd": "PULL", "queue": queue} for _ in range(1000))
    ids = [(await reply)["id"] for reply in pushes]
    assert ids == sorted(ids)
    assert (await counts)["counts"]["waiting"] == 1000
    jobs = [(await reply)["job"] for reply in pulls]
    assert [job["id"] for job in jobs] == ids
    assert [job["data"] for job in jobs] == list(range(1000))


async def test_a_jobs_whole_life_in_one_write(wire: Wire, prefix: str) -> None:
    """Each command sees what the one before it did, even if all come in one packet."""
    queue = queue_on(1, prefix)
    job_id = await push(wire, queue)
    commands: list[dict[str, Any]] = [
        {"cmd": "PULL", "queue": queue},
        {"cmd": "Progress", "id": job_id, "progress": 5},
        {"cmd": "GetProgress", "id": job_id},
        {"cmd": "ACK", "id": job_id, "result": "done"},
        {"cmd": "GetResult", "id": job_id},
        {"cmd": "ACK", "id": job_id},
    ]
    replies = [await reply for reply in wire.send_many(commands)]
    assert [reply["ok"] for reply in replies] == [True] * 5 + [False]
    assert replies[2]["progress"] == 5
    assert replies[4]["result"] == "done"


async def test_the_fifty_first_command_waits(wire: Wire, other: Wire, prefix: str) -> None:
    queues = list(islice(queues_on(0, prefix), 25)) + list(islice(queues_on(1, prefix), 25))
    assert len(queues) == MAX_PARKED
    polls = wire.send_many({"cmd": "PULL", "queue": queue, "timeout": LONG_MS} for queue in queues)
    behind = wire.send("Ping")
    await asyncio.sleep(0.3)  # in which it would be answered
    await other.ok("Ping")
    assert not behind.done()
    job_id = await push(other, queues[30])
    assert (await polls[30])["job"]["id"] == job_id
    assert (await behind)["ok"]
    assert sum(poll.done() for poll in polls) == 1


@pytest.mark.parametrize(
    "refused",
    [
        {"cmd": "PUSH", "queue": "not valid!", "data": 1, "timeout": 1000},
        {"cmd": "PUSH", "queue": "q", "priority": "high", "timeout": 1000},
        {"cmd": "PULL", "queue": "not valid!", "timeout": 1000},
        {"cmd": "PULL", "queue": "q", "timeout": 1e9},
        {"cmd": "PULL", "queue": "q", "timeout": "soon"},
        {"cmd": "PULLB", "queue": "q", "count": 0, "timeout": 1000},
        {"cmd": "PULLB", "queue": "q", "timeout": 1000},
        {"cmd": "PULL", "queue": "q", "timeout": True},
        {"cmd": "PULL", "timeout": 1000},
        {"cmd": "ACKB", "ids": [GHOST.format(slot=0), GHOST.format(slot=1)]},
        {"cmd": "Stats", "timeout": 1000},
    ],
    ids=lambda command: "-".join(f"{key}={value}" for key, value in command.items() if key != "data")[:40],
)
async def test_what_is_refused_neither_uses_nor_makes_room_for_polls(
    wire: Wire, other: Wire, prefix: str, refused: dict[str, Any]
) -> None:
    """The count of what is parked is kept in two processes, which must agree."""
    answers = [await reply for reply in wire.send_many([refused] * 60)]
    assert {answer["ok"] for answer in answers} <= {refused["cmd"] == "Stats"}
    queue = queue_on(0, prefix.translate(str.maketrans("=! '{}", "------")))
    polls = wire.send_many({"cmd": "PULL", "queue": queue, "timeout": LONG_MS} for _ in range(MAX_PARKED - 1))
    assert (await wire.call("Ping"))["ok"], "49 polls leave room"
    polls += wire.send_many([{"cmd": "PULL", "queue": queue, "timeout": LONG_MS}])
    behind = wire.send("Ping")
    await asyncio.sleep(0.3)  # in which it would be answered
    await other.ok("Ping")
    assert not behind.done(), "50 polls leave none"
    await push(other, queue)
    await behind
    assert sum(poll.done() for poll in polls) == 1


async def test_polls_that_end_make_room(wire: Wire, prefix: str) -> None:
    queue = queue_on(0, prefix)
    begun = time.monotonic()
    polls = wire.send_many({"cmd": "PULL", "queue": queue, "timeout": 200} for _ in range(3 * MAX_PARKED))
    assert [(await poll)["job"] for poll in polls] == [None] * (3 * MAX_PARKED)
    assert time.monotonic() - begun >= 0.4, "all of them waited at once"


async def test_a_push_on_one_connection_serves_the_poll_of_another(
    wire: Wire, other: Wire, prefix: str
) -> None:
    for queue in (queue_on(0, prefix), queue_on(1, prefix)):
        poll = wire.send("PULL", queue=queue, timeout=LONG_MS, owner="w")
        batch = wire.send("PULLB", queue=queue, timeout=LONG_MS, count=10)
        await wire.ok("Ping")
        ids = (await other.ok("PUSHB", queue=queue, jobs=[{"data": n} for n in range(3)]))["ids"]
        reply = await poll
        assert reply["job"]["id"] == ids[0]
        assert reply["token"]
        assert [job["id"] for job in (await batch)["jobs"]] == ids[1:]


async def test_a_poll_waits_for_a_delayed_job(wire: Wire, prefix: str) -> None:
    job_id = await push(wire, queue_on(1, prefix), delay=300)
    reply = await wire.ok("PULL", queue=queue_on(1, prefix), timeout=LONG_MS)
    assert reply["job"]["id"] == job_id
    assert reply["job"]["startedAt"] >= reply["job"]["runAt"]


async def test_the_poll_of_a_closed_connection_takes_no_job(
    wire: Wire, shared_server: Server, prefix: str
) -> None:
    queue = queue_on(0, prefix)
    async with await Wire.open(shared_server.address) as gone:
        gone.send("PULL", queue=queue, timeout=LONG_MS)
        await gone.ok("Ping")
    job_id = await push(wire, queue)
    assert (await wire.ok("PULL", queue=queue, timeout=LONG_MS))["job"]["id"] == job_id


@pytest.mark.parametrize("owner", [None, "w"], ids=["unlocked", "locked"])
async def test_disconnect_releases_jobs_of_all_shards(
    wire: Wire, shared_server: Server, prefix: str, owner: str | None
) -> None:
    queues = (queue_on(0, prefix), queue_on(1, prefix))
    ids = {queue: [await push(wire, queue) for _ in range(3)] for queue in queues}
    lock = {"owner": owner} if owner else {}
    async with await Wire.open(shared_server.address) as gone:
        tokens = []
        for queue in queues:
            tokens += (await pull_many(gone, queue, 3, **lock)).get("tokens", [])
    for queue in queues:
        reply = await wire.ok("PULL", queue=queue, timeout=LONG_MS)
        job = reply["job"]
        assert (job["id"], job["attempts"], job["stallCount"]) == (ids[queue][0], 0, 0)
        rest = await pull_many(wire, queue, 2)
        assert [job["id"] for job in rest["jobs"]] == ids[queue][1:]  # their old order
    if owner:
        await wire.ok("ACK", id=ids[queues[0]][0], token=tokens[0])  # unlocked now: any token is ignored


async def test_a_renewed_lock_outlives_its_connection(wire: Wire, shared_server: Server, prefix: str) -> None:
    queue = queue_on(1, prefix)
    job_id = await push(wire, queue)
    async with await Wire.open(shared_server.address) as gone:
        token = (await gone.ok("PULL", queue=queue, owner="w"))["token"]
        await wire.ok("JobHeartbeat", id=job_id, token=token)
    assert (await wire.ok("PULL", queue=queue, timeout=500))["job"] is None
    await wire.ok("ACK", id=job_id, token=token)


# Several shards


async def test_ids_say_where_their_job_lives(wire: Wire, other: Wire, prefix: str) -> None:
    queues = [(shard, queue) for shard in (0, 1) for queue in islice(queues_on(shard, prefix), 5)]
    jobs = [(shard, queue, await push(wire, queue, data=queue)) for shard, queue in queues]
    slots: dict[str, int] = {}
    for shard, queue, job_id in jobs:
        assert slot_of(job_id) & 1 == shard
        assert slots.setdefault(queue, slot_of(job_id)) == slot_of(job_id)
        job = (await other.ok("GetJob", id=job_id))["job"]
        assert (job["id"], job["queue"], job["data"]) == (job_id, queue, queue)
    for shard, queue, _ in jobs:
        reply = await wire.ok("PULL", queue=queue, owner="w")
        assert slot_of(reply["token"]) & 1 == shard
        await other.ok("ACK", id=reply["job"]["id"], token=reply["token"], result=shard)
        assert (await wire.ok("GetResult", id=reply["job"]["id"]))["result"] == shard


@pytest.mark.parametrize("job_id", ["", "x", "my own id", "é" * 36, "0" * 5000, GHOST.format(slot=7)])
async def test_ids_of_no_job(wire: Wire, job_id: str) -> None:
    assert await wire.error("GetJob", id=job_id) == "Job not found"
    assert (await wire.ok("GetState", id=job_id)) | {"reqId": 0} == {
        "ok": True,
        "id": job_id,
        "state": "unknown",
        "reqId": 0,
    }
    assert "result" not in await wire.ok("GetResult", id=job_id)
    assert await wire.error("ACK", id=job_id) == f"Job not found or not in processing state: {job_id}"


async def mixed(wire: Wire, prefix: str, count: int = 4) -> tuple[list[str], list[str]]:
    """Locked jobs of both shards, taking turns, and their tokens."""
    parts = []
    for shard in (0, 1):
        queue = queue_on(shard, prefix)
        await wire.ok("PUSHB", queue=queue, jobs=[{"data": n} for n in range(count)])
        reply = await pull_many(wire, queue, count, owner="w", lockTtl=LONG_MS)
        parts.append(list(zip((job["id"] for job in reply["jobs"]), reply["tokens"], strict=True)))
    turns = [pair for pairs in zip(*parts, strict=True) for pair in pairs]
    return [job_id for job_id, _ in turns], [token for _, token in turns]


async def states(wire: Wire, ids: list[str]) -> list[str]:
    return [await state(wire, job_id) for job_id in ids]


async def test_ackb_over_several_shards(wire: Wire, prefix: str) -> None:
    ids, tokens = await mixed(wire, prefix)
    results = [{"n": n} for n in range(len(ids))]
    reply = await wire.ok("ACKB", ids=ids, tokens=tokens, results=results)
    assert set(reply) == {"ok", "reqId"}
    for job_id, result in zip(ids, results, strict=True):
        assert (await wire.ok("GetResult", id=job_id))["result"] == result


@pytest.mark.parametrize("place", [0, 1, 4, 8])
async def test_ackb_with_an_unknown_id_completes_the_others(wire: Wire, prefix: str, place: int) -> None:
    ids, tokens = await mixed(wire, prefix)
    ghost = GHOST.format(slot=place & 1)
    results: list[Any] = list(range(len(ids)))
    asked = [*ids[:place], ghost, *ids[place:]]
    error = await wire.error(
        "ACKB",
        ids=asked,
        tokens=[*tokens[:place], "t", *tokens[place:]],
        results=[*results[:place], "ghost", *results[place:]],
    )
    assert error == f"Job not found or not in processing state: {ghost}"
    assert await states(wire, ids) == ["completed"] * len(ids)
    assert [(await wire.ok("GetResult", id=job_id))["result"] for job_id in ids] == results


async def test_ackb_names_the_first_unknown_id_of_several(wire: Wire, prefix: str) -> None:
    ids, tokens = await mixed(wire, prefix, 1)
    ghosts = [GHOST.format(slot=slot) for slot in (1, 0, 3)]
    error = await wire.error("ACKB", ids=[*ghosts, *ids], tokens=["a", "b", "c", *tokens])
    assert error.endswith(ghosts[0])
    assert await states(wire, ids) == ["completed"] * 2


@pytest.mark.parametrize("place", [2, 5])
async def test_ackb_with_a_wrong_token_refuses_that_shards_jobs(wire: Wire, prefix: str, place: int) -> None:
    ids, tokens = await mixed(wire, prefix)
    wrong = [*tokens[:place], "wrong", *tokens[place + 1 :]]
    error = await wire.error("ACKB", ids=ids, tokens=wrong)
    assert error == f"Invalid or expired lock token for job {ids[place]}"
    after = await states(wire, ids)
    assert after[place % 2 :: 2] == ["active"] * 4
    assert after[(place + 1) % 2 :: 2] == ["completed"] * 4
    rest = slice(place % 2, None, 2)
    await wire.ok("ACKB", ids=ids[rest], tokens=tokens[rest])
    assert await states(wire, ids) == ["completed"] * 8


async def test_ackb_lists_of_other_lengths_change_nothing(wire: Wire, prefix: str) -> None:
    ids, tokens = await mixed(wire, prefix)
    error = await wire.error("ACKB", ids=ids, tokens=tokens, results=[1])
    assert error == "ACKB results length must match ids length"
    error = await wire.error("ACKB", ids=ids, tokens=tokens[:-1])
    assert error == "ACKB tokens length must match ids length"
    assert await states(wire, ids) == ["active"] * len(ids)


async def test_ackb_with_the_same_id_twice(wire: Wire, prefix: str) -> None:
    ids, tokens = await mixed(wire, prefix, 1)
    await wire.call("ACKB", ids=[*ids, *ids], tokens=[*tokens, *tokens], results=[1, 2, 3, 4])
    assert [(await wire.ok("GetResult", id=job_id))["result"] for job_id in ids] == [1, 2]


async def test_ackb_of_nothing(wire: Wire) -> None:
    await wire.ok("ACKB", ids=[])


async def test_heartbeats_over_several_shards(wire: Wire, prefix: str) -> None:
    ids, tokens = await mixed(wire, prefix)
    tokens[1] = "wrong"
    reply = await wire.ok("JobHeartbeatB", ids=[*ids, GHOST.format(slot=1)], tokens=[*tokens, "t"])
    assert reply["data"] == {"ok": True, "count": 7}


async def test_large_batches_over_several_shards(wire: Wire, prefix: str) -> None:
    ids, tokens = await mixed(wire, prefix, 1000)
    assert (await wire.ok("JobHeartbeatB", ids=ids, tokens=tokens))["data"]["count"] == 2000
    await wire.ok("ACKB", ids=ids, tokens=tokens, results=["x" * 1000] * 2000)
    for shard in (0, 1):
        counts = (await wire.ok("GetJobCounts", queue=queue_on(shard, prefix)))["counts"]
        assert counts["completed"] == 1000


async def test_gathered_commands_among_many_others(wire: Wire, prefix: str) -> None:
    """Hundreds in one write: each gets its own answer, and nothing is mixed up."""
    ids, tokens = await mixed(wire, prefix, 100)
    commands: list[dict[str, Any]] = []
    for start in range(0, 200, 2):
        part = slice(start, start + 2)
        commands.append({"cmd": "ACKB", "ids": ids[part], "tokens": tokens[part], "results": [start, start]})
        commands += [{"cmd": "Stats"}, {"cmd": "ListQueues"}, {"cmd": "Ping"}]
    replies = [await reply for reply in wire.send_many(commands)]
    assert all(reply["ok"] for reply in replies)
    assert all("stats" in reply for reply in replies[1::4])
    assert all("queues" in reply for reply in replies[2::4])
    assert all("data" in reply for reply in replies[3::4])
    results = [(await wire.ok("GetResult", id=job_id))["result"] for job_id in ids]
    assert results == [number // 2 * 2 for number in range(200)]


async def test_list_queues_and_stats_over_all_shards(make_server: StartServer) -> None:
    server = make_server(shards=4)
    server.start()
    async with await Wire.open(server.address) as wire:
        assert (await wire.ok("ListQueues"))["queues"] == []
        names = [queue_on(shard, shards=4) for shard in range(4)]
        for weight, name in enumerate(names, 1):
            await wire.ok(
                "PUSHB", queue=name, jobs=[{"data": n, "maxAttempts": 1} for n in range(4 * weight)]
            )
            await push(wire, name, delay=LONG_MS)
            reply = await pull_many(wire, name, 3 * weight)
            ids = [job["id"] for job in reply["jobs"]]
            await wire.ok("ACKB", ids=ids[:weight])
            for job_id in ids[weight : 2 * weight]:
                await wire.ok("FAIL", id=job_id)
        queues = sorted((await wire.ok("ListQueues"))["queues"], key=lambda queue: str(queue["name"]))
        assert queues == [
            {"name": name, "waiting": weight, "delayed": 1, "active": weight, "paused": False}
            for weight, name in sorted(enumerate(names, 1), key=lambda pair: pair[1])
        ]
        stats = (await wire.ok("Stats"))["stats"]
        expected = {"queued": 10, "waiting": 10, "processing": 10, "active": 10, "delayed": 4}
        expected |= {"dlq": 10, "failed": 10, "completed": 10}
        assert {key: stats[key] for key in expected} == expected
        assert 0 < stats["uptime"] < 600_000
        assert 0 <= stats["pushPerSec"] < 1000


async def test_one_shard_and_many(make_server: StartServer, tmp_path: Path) -> None:
    for shards in (1, 8):
        server = make_server(shards=shards, data_dir=tmp_path / str(shards))
        server.start()
        async with await Wire.open(server.address) as wire:
            names = [queue_on(shard, shards=shards) for shard in range(shards)]
            ids = [await push(wire, name) for name in names]
            for name in names:
                await wire.ok("PULL", queue=name)
            await wire.ok("ACKB", ids=ids)
            assert (await wire.ok("Stats"))["stats"]["completed"] == shards
        assert server.stop() == 0


# Request ids


@table("req_id", [0, -1, 2**53, "text", "", 1.5, None, True, [1, "a"], {"a": {"b": 1}}])
@table(
    "command",
    [
        {"cmd": "Ping"},
        {"cmd": "Stats"},
        {"cmd": "GetJobCounts", "queue": "q"},
        {"cmd": "PULL", "queue": "q", "timeout": 1},
        {"cmd": "ACKB", "ids": [GHOST.format(slot=0), GHOST.format(slot=1)]},
        {"cmd": "NoSuchCommand"},
        {"cmd": "PUSH"},
    ],
    ids=lambda command: command["cmd"],
)
async def test_request_ids_come_back_as_they_were(wire: Wire, command: dict[str, Any], req_id: Any) -> None:
    wire.write(pack(command | {"reqId": req_id}))
    reply = await wire.next_stray()
    assert reply["reqId"] == req_id
    assert type(reply["reqId"]) is type(req_id)
    wire.write(pack(command))
    assert "reqId" not in await wire.next_stray()


# Kept in memory


def files_below(folder: Path, pattern: str) -> list[Path]:
    return list(folder.rglob(pattern))


async def test_a_server_that_keeps_nothing(make_server: StartServer, tmp_path: Path) -> None:
    server = make_server(data_dir=":memory:")
    server.start()
    assert "data=:memory:" in server.ready
    async with await Wire.open(server.address) as wire:
        jobs = [await push(wire, queue_on(shard), durable=True) for shard in (0, 1)]
        for shard, job_id in enumerate(jobs):
            assert (await wire.ok("PULL", queue=queue_on(shard)))["job"]["id"] == job_id
        await wire.ok("ACKB", ids=jobs, results=[1, 2])
        assert [(await wire.ok("GetResult", id=job_id))["result"] for job_id in jobs] == [1, 2]
        failed = await push(wire, queue_on(0), maxAttempts=1)
        await wire.ok("PULL", queue=queue_on(0))
        await wire.ok("FAIL", id=failed)
        assert (await wire.ok("RetryDlq", queue=queue_on(0)))["count"] == 1
    assert server.stop() == 0
    server.until_gone()
    assert files_below(tmp_path, "shard-*") == []
    server.restart()
    async with await Wire.open(server.address) as wire:
        assert (await wire.ok("ListQueues"))["queues"] == []

"""Router and real shards together: what one command needs of several shards, and what outlives whom."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from router_harness import Client, RouterServer, alive, queue_of_shard, wait_for
from support.procfs import open_files

SHARDS = 4
LONG_MS = 60_000  # a timeout that is never reached
QUEUES = [queue_of_shard(shard, "work", SHARDS) for shard in range(SHARDS)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouterServer]:
    with RouterServer(tmp_path_factory.mktemp("server"), shards=SHARDS) as server:
        yield server


@pytest.fixture
def client(server: RouterServer) -> Iterator[Client]:
    with server.connect() as client:
        yield client
        for queue in QUEUES:  # leave nothing to the next test
            while (jobs := client.call(cmd="PULLB", queue=queue, count=100)["jobs"]) != []:
                client.call(cmd="ACKB", ids=[job["id"] for job in jobs])


def pull_all(client: Client, owner: str = "w") -> list[tuple[str, str]]:
    """One job of each queue, pushed and pulled: id and token."""
    taken = []
    for queue in QUEUES:
        assert client.call(cmd="PUSH", queue=queue, data=queue)["ok"]
        reply = client.call(cmd="PULL", queue=queue, owner=owner)
        taken.append((reply["job"]["id"], reply["token"]))
    return taken


def state(client: Client, job_id: str) -> str:
    return str(client.call(cmd="GetState", id=job_id)["state"])


def test_every_queue_works_on_its_shard_and_every_id_finds_it(client: Client) -> None:
    for job_id, token in pull_all(client):
        assert client.call(cmd="GetJob", id=job_id)["job"]["state"] == "active"
        assert client.call(cmd="ACK", id=job_id, token=token, result={"r": 1})["ok"]
        assert client.call(cmd="GetResult", id=job_id)["result"] == {"r": 1}


def test_pipelined_commands_for_all_shards_are_all_answered(client: Client) -> None:
    commands = [{"cmd": "PUSH", "queue": QUEUES[n % SHARDS], "data": n, "reqId": n} for n in range(1000)]
    client.send(*commands)
    replies = [client.recv() for _ in commands]
    assert {reply["reqId"] for reply in replies} == set(range(1000))
    for queue in QUEUES:
        jobs = client.call(cmd="PULLB", queue=queue, count=1000)["jobs"]
        assert [job["data"] for job in jobs] == [n for n in range(1000) if QUEUES[n % SHARDS] == queue]


def test_a_batch_of_acks_reaches_all_shards(client: Client) -> None:
    taken = pull_all(client)
    ids, tokens = [job_id for job_id, _ in taken], [token for _, token in taken]
    reply = client.call(cmd="ACKB", ids=ids, tokens=tokens, results=[0, "one", None, {"three": 3}], reqId="r")
    assert reply == {"ok": True, "reqId": "r"}
    assert {state(client, job_id) for job_id in ids} == {"completed"}
    assert client.call(cmd="GetResult", id=ids[3])["result"] == {"three": 3}


def test_the_first_wrong_id_of_a_batch_is_named(client: Client) -> None:
    ids = [job_id for job_id, _ in pull_all(client)]
    reply = client.call(cmd="ACKB", ids=ids, tokens=[None, None, "no", "no"])
    assert reply["ok"] is False
    assert reply["error"].endswith(ids[0])
    assert (
        client.call(cmd="ACKB", ids=ids, tokens=["a"])["error"] == "ACKB tokens length must match ids length"
    )


def test_a_batch_of_heartbeats_is_counted_over_all_shards(client: Client) -> None:
    taken = pull_all(client)
    ids, tokens = [job_id for job_id, _ in taken], [token for _, token in taken]
    stranger = "01900000-0000-7001-8000-000000000000"
    reply = client.call(cmd="JobHeartbeatB", ids=[*ids, stranger], tokens=[*tokens, "x"], reqId=1)
    assert reply == {"ok": True, "data": {"ok": True, "count": SHARDS}, "reqId": 1}


def test_lists_and_numbers_are_those_of_the_whole_server(client: Client) -> None:
    before = client.call(cmd="Stats")["stats"]
    for queue in QUEUES:
        client.call(cmd="PUSHB", queue=queue, jobs=[{"data": n} for n in range(10)])
    queues = {queue["name"]: queue for queue in client.call(cmd="ListQueues")["queues"]}
    assert all(queues[queue]["waiting"] == 10 for queue in QUEUES)
    stats = client.call(cmd="Stats", reqId=5)
    assert stats["stats"]["waiting"] - before["waiting"] == 10 * SHARDS
    assert stats["reqId"] == 5
    assert client.call(cmd="Hello", protocolVersion=3)["ok"]
    assert set(QUEUES) <= set(client.call(cmd="ListQueues")["queues"])


def test_a_long_poll_is_overtaken_but_not_forgotten(client: Client, server: RouterServer) -> None:
    client.send({"cmd": "PULL", "queue": QUEUES[0], "timeout": LONG_MS, "reqId": "poll"})
    assert client.call(cmd="PUSH", queue=QUEUES[1], data=1, reqId="push")["reqId"] == "push"
    with server.connect() as other:
        other.call(cmd="PUSH", queue=QUEUES[0], data="found")
    reply = client.recv()
    assert reply["reqId"] == "poll"
    assert reply["job"]["data"] == "found"


def test_after_fifty_long_polls_everything_waits_on_this_connection_only(server: RouterServer) -> None:
    polled = [queue_of_shard(shard, "polled", SHARDS) for shard in range(SHARDS)]
    with server.connect() as busy, server.connect() as other:
        polls = [
            {"cmd": "PULL", "queue": polled[n % SHARDS], "timeout": LONG_MS, "reqId": n} for n in range(50)
        ]
        busy.send(*polls, {"cmd": "Ping", "reqId": "late"})
        assert busy.silent()
        assert other.call(cmd="Ping")["ok"]
        assert other.call(cmd="PUSH", queue=polled[0], data=1)["ok"]
        first, second = busy.recv(), busy.recv()
        assert first["job"]["data"] == 1
        assert second["reqId"] == "late"


def test_a_client_that_leaves_behind_fifty_long_polls_gives_its_jobs_back(server: RouterServer) -> None:
    polled = [queue_of_shard(shard, "left", SHARDS) for shard in range(SHARDS)]
    with server.connect() as other:
        with server.connect() as worker:
            job_id = worker.call(cmd="PUSH", queue=polled[0])["id"]
            assert worker.call(cmd="PULL", queue=polled[0])["job"]["id"] == job_id
            polls = [{"cmd": "PULL", "queue": polled[n % SHARDS], "timeout": LONG_MS} for n in range(50)]
            worker.send(*polls, *[{"cmd": "Ping"}] * 10)
            assert worker.silent()
        wait_for(lambda: state(other, job_id) == "waiting", "the job to come back", limit=30)


def test_a_client_that_leaves_gives_its_jobs_back(client: Client, server: RouterServer) -> None:
    with server.connect() as worker:
        ids = [job_id for job_id, _ in pull_all(worker)]
    for job_id in ids:
        wait_for(lambda job_id=job_id: state(client, job_id) == "waiting", "the job to come back")


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        (b"", "Invalid command format"),
        (b"\xc1", "Invalid command format"),
        (
            b"\x83\xa3cmd\xa4PUSH\xa5queue\xa1q\xa4data" + b"\x91" * 100_000 + b"\xc0",
            "Invalid command format",
        ),
        (b"\x83\xa3cmd\xa4PUSH\xa5queue\xa1q\xa4name\xa2\xff\xfe", None),
        (b"\x83\xa3cmd\xa4PUSH\xa5queue\xa1q\xa4data" + b"\x91" * 900 + b"\xc0", None),
    ],
)
def test_malformed_payloads_keep_the_connection_and_the_shards(
    server: RouterServer, client: Client, payload: bytes, error: str | None
) -> None:
    pids = server.shard_pids()
    client.socket.sendall(len(payload).to_bytes(4, "big") + payload)
    reply = client.recv()
    assert error is None or (reply["error"], reply["code"]) == (error, "INVALID_COMMAND")
    assert client.call(cmd="Ping")["ok"]
    assert server.shard_pids() == pids


def test_a_killed_shard_comes_back_with_its_jobs(tmp_path: Path) -> None:
    with RouterServer(tmp_path) as server, server.connect() as worker, server.connect() as poller:
        queues = [queue_of_shard(shard) for shard in range(2)]
        ids = [worker.call(cmd="PUSH", queue=queue, data=1)["id"] for queue in queues]
        taken = worker.call(cmd="PULL", queue=queues[0], owner="w", lockTtl=60_000)
        poller.send({"cmd": "PULL", "queue": f"{queues[0]}", "timeout": LONG_MS})
        assert poller.silent()
        (victim,) = (pid for pid in server.shard_pids() if shard_of(pid, server) == 0)
        os.kill(victim, signal.SIGKILL)
        assert poller.closed()
        reply: dict[str, Any] = {}

        def acked() -> bool:
            nonlocal reply
            reply = worker.call(cmd="ACK", id=taken["job"]["id"], token=taken["token"], result=2)
            return bool(reply["ok"])

        wait_for(acked, f"the shard to be back: {reply}")
        assert worker.call(cmd="GetResult", id=ids[0])["result"] == 2
        assert worker.call(cmd="PULL", queue=queues[1])["job"]["id"] == ids[1]


def shard_of(pid: int, server: RouterServer) -> int | None:
    """The shard that a process serves, known by the file that it has open."""
    for path in open_files(pid):
        name = Path(path).name
        if name.startswith("shard-") and name.endswith(".db"):
            return int(name[6:8])
    return None


def test_shards_end_when_the_router_is_killed(tmp_path: Path) -> None:
    with RouterServer(tmp_path) as server:
        pids = server.shard_pids()
        server.process.kill()
        server.process.wait()
        wait_for(lambda: not any(map(alive, pids)), "the shards to end")


def test_what_was_acknowledged_is_there_after_an_orderly_restart(tmp_path: Path) -> None:
    queues = [queue_of_shard(shard) for shard in range(2)]
    with RouterServer(tmp_path) as server, server.connect() as client:
        ids = [client.call(cmd="PUSH", queue=queue, data=queue)["id"] for queue in queues]
    with RouterServer(tmp_path) as server, server.connect() as client:
        assert [client.call(cmd="PULL", queue=queue)["job"]["id"] for queue in queues] == ids

"""A server with several routers: what a client sees does not depend on which one it has reached."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from router_harness import Client, RouterServer, alive, queue_of_shard, wait_for
from support import web
from support.server import Server, dispose, quiet_port
from support.wire import at_router as at_router_of

TOKENS = {"auth_token": ("s3cret",), "read_only_token": ("look",)}


def router_of(client: Client) -> int:
    return int(client.call(cmd="Ping")["data"]["router"])


def secondary_pid(server: RouterServer, number: int = 1) -> int:
    """The process of one of the secondary routers, once there is one."""
    wanted = f"router-{number}"

    def look() -> int:
        for pid in server.shard_pids():
            try:
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            if f"bunqueue router {number}".encode() in command:
                return pid
        return 0

    return int(wait_for(look, wanted))


def at_router(server: RouterServer, number: int, token: str = "") -> Client:
    """A connection that this router has."""

    def look() -> Client | None:
        client = server.connect(token)
        try:
            if router_of(client) == number:
                return client
        except (EOFError, ConnectionError):  # that router is just ending
            pass
        client.socket.close()
        return None

    found: Client = wait_for(look, f"router {number}")
    return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouterServer]:
    with RouterServer(tmp_path_factory.mktemp("routers"), routers=2) as found:
        yield found


@pytest.fixture
def both(server: RouterServer) -> Iterator[tuple[Client, Client]]:
    with at_router(server, 0) as first, at_router(server, 1) as second:
        yield first, second


@pytest.mark.parametrize("shard", [0, 1])
def test_what_is_pushed_at_one_is_pulled_at_the_other(both: tuple[Client, Client], shard: int) -> None:
    for here, there in (both, both[::-1]):
        queue = queue_of_shard(shard, "pushed")
        pushed = here.call(cmd="PUSH", queue=queue, data={"n": 1})
        pulled = there.call(cmd="PULL", queue=queue)
        assert pulled["job"]["id"] == pushed["id"]
        assert here.call(cmd="ACK", id=pushed["id"])["ok"]


def test_a_push_wakes_a_pull_that_waits_at_the_other(both: tuple[Client, Client]) -> None:
    for at, (here, there) in enumerate((both, both[::-1])):
        here.send({"cmd": "PULL", "queue": f"woken-{at}", "timeout": 60_000})
        assert here.silent(0.05)
        there.call(cmd="PUSH", queue=f"woken-{at}", data={"at": at})
        assert here.recv()["job"]["data"] == {"at": at}


def test_waiting_for_a_job_that_ends_at_the_other(both: tuple[Client, Client]) -> None:
    first, second = both
    job = first.call(cmd="PUSH", queue="awaited", data={})["id"]
    second.send({"cmd": "WaitJob", "id": job, "timeout": 60_000})
    assert second.silent(0.05)
    first.call(cmd="PULL", queue="awaited")
    first.call(cmd="ACK", id=job, result={"r": 1})
    assert second.recv()["result"] == {"r": 1}


def test_events_reach_the_subscribers_of_both(both: tuple[Client, Client], server: RouterServer) -> None:
    for client in both:
        assert client.call(cmd="SubscribeEvents", queue="watched")["ok"]
    with at_router(server, 1) as other:
        job = other.call(cmd="PUSH", queue="watched", data={})["id"]
    for client in both:
        assert client.recv()["event"]["jobId"] == job


def test_workers_are_those_of_both(both: tuple[Client, Client]) -> None:
    first, second = both
    register = {"cmd": "RegisterWorker", "name": "w", "queues": ["work"]}
    ids = [client.call(**register)["data"]["workerId"] for client in both]
    for client in both:
        listed = client.call(cmd="ListWorkers")["data"]["workers"]
        assert {worker["id"] for worker in listed} >= set(ids)
    assert first.call(cmd="ControlWorker", workerId=ids[1], paused=True)["ok"]
    assert second.call(cmd="Heartbeat", id=ids[1])["data"]["paused"] is True
    second.socket.close()
    wait_for(
        lambda: ids[1] not in {w["id"] for w in first.call(cmd="ListWorkers")["data"]["workers"]},
        "the end of the registration",
    )


def test_lists_and_numbers_are_those_of_the_server(both: tuple[Client, Client]) -> None:
    first, second = both
    for shard, client in enumerate(both):
        client.call(cmd="PUSH", queue=queue_of_shard(shard, "listed"), data={})

    def names(client: Client) -> set[str]:
        return {queue["name"] for queue in client.call(cmd="ListQueues")["queues"]}

    assert names(first) == names(second) >= {queue_of_shard(shard, "listed") for shard in (0, 1)}

    def metrics() -> str:
        return str(second.call(cmd="Prometheus")["data"]["metrics"])

    wait_for(
        lambda: 'bunqueue_connections{transport="tcp"} 2.0' in metrics(), "those of other tests are gone"
    )
    assert 'bunqueue_process_cpu_seconds_total{process="router-1"}' in metrics()
    assert 'bunqueue_router_connections{router="1"} 1.0' in metrics()
    assert first.call(cmd="Metrics")["metrics"]["activeConnections"] == 2


def test_a_closed_connection_gives_its_jobs_back(both: tuple[Client, Client]) -> None:
    first, second = both
    first.call(cmd="PUSH", queue="given-back", data={})
    assert second.call(cmd="PULL", queue="given-back")["job"]
    second.socket.close()
    assert first.call(cmd="PULL", queue="given-back", timeout=60_000)["job"]


def test_who_guesses_tokens_is_known_to_both(tmp_path: Path) -> None:
    with RouterServer(tmp_path, routers=2, shards=1, **TOKENS) as server:
        with server.connect() as stranger:
            for _ in range(3):
                assert not stranger.call(cmd="Auth", token="guess")["ok"]
        with at_router(server, 1, "s3cret") as client:
            counted = 'bunqueue_wrong_tokens_total{transport="tcp"} 3.0'
            wait_for(lambda: counted in client.call(cmd="Prometheus")["data"]["metrics"], "they are counted")
        with at_router(server, 1, "look") as reader:
            assert reader.call(cmd="ListWorkers")["ok"]
            assert reader.call(cmd="RegisterWorker", name="w", queues=[])["code"] == "FORBIDDEN"


def test_the_bound_of_connections_is_for_both_together(tmp_path: Path) -> None:
    with RouterServer(tmp_path, routers=2, shards=1, max_connections=6) as server:
        clients = [server.connect() for _ in range(6)]
        for client in clients:
            assert client.call(cmd="Ping")["ok"]
        with server.connect() as seventh:
            assert seventh.recv()["code"] == "TOO_MANY_CONNECTIONS"
        for client in clients:
            client.socket.close()


def test_a_router_that_is_killed_takes_only_its_connections_along(tmp_path: Path) -> None:
    """While pushes with idempotency keys go on: what was acknowledged is there, each once."""
    with RouterServer(tmp_path, routers=2) as server:
        acknowledged: set[int] = set()

        def push(worker: int) -> None:
            left = list(range(worker * 1000, worker * 1000 + 300))
            while left:
                with suppress(EOFError, ConnectionError), server.connect() as client:
                    while left:
                        command = {"cmd": "PUSH", "queue": f"q{worker}", "data": {"n": left[0]}}
                        if client.call(**command, idempotencyKey=str(left[0]))["ok"]:
                            acknowledged.add(left.pop(0))

        stays, ends = at_router(server, 0), at_router(server, 1)
        stays.call(cmd="PUSH", queue="held", data={})
        assert ends.call(cmd="PULL", queue="held")["job"]
        pid = secondary_pid(server)
        threads = [threading.Thread(target=push, args=(worker,)) for worker in range(6)]
        for thread in threads:
            thread.start()
        wait_for(lambda: len(acknowledged) > 100, "some pushes")
        os.kill(pid, signal.SIGKILL)
        assert ends.closed()
        ends.socket.close()
        assert stays.call(cmd="PULL", queue="held", timeout=60_000)["job"], "it came back"
        for thread in threads:
            thread.join()
        at_router(server, 1).socket.close()  # it was started again
        found: list[int] = []
        for worker in range(6):
            while job := stays.call(cmd="PULL", queue=f"q{worker}").get("job"):
                found.append(job["data"]["n"])
        assert sorted(found) == sorted(acknowledged)
        assert len(acknowledged) == 1800
        stays.socket.close()


def test_a_router_that_stands_still_keeps_nobody_else_waiting(tmp_path: Path) -> None:
    """Its clients wait, also those that listen to what others do, and go on when it does."""
    patient = {"secondary.supervisor.SILENT_PINGS": 600}  # it is not replaced, however long this takes
    with RouterServer(tmp_path, routers=2, changes=patient) as server:
        goes_on, stands = at_router(server, 0), at_router(server, 1)
        assert stands.call(cmd="SubscribeEvents", queue="watched")["ok"]
        pid = secondary_pid(server)
        os.kill(pid, signal.SIGSTOP)
        try:
            stands.send({"cmd": "PUSH", "queue": "waits", "data": {}})
            for number in range(200):
                assert goes_on.call(cmd="PUSH", queue="watched", data={"n": number})["ok"]
            assert goes_on.call(cmd="Count", queue="waits")["count"] == 0
        finally:
            os.kill(pid, signal.SIGCONT)
        heard = [stands.recv() for _ in range(201)]
        assert [message["ok"] for message in heard if "event" not in message] == [True]
        for client in (goes_on, stands):
            client.socket.close()


async def test_the_gateway_is_beside_both(tmp_path: Path) -> None:
    server = Server(tmp_path / "data", "--routers", "2", http_port=quiet_port())
    try:
        server.start()
        async with web.client(server) as http, web.events(http, "/events?queue=q&event=pushed") as stream:
            for router in (0, 1):
                wire = await at_router_of(server.address, router)
                job = (await wire.ok("PUSH", queue="q", data={"router": router}))["id"]
                assert (await stream.next())["jobId"] == job
                assert (await http.get(f"/jobs/{job}")).json()["job"]["data"] == {"router": router}
                added = (await http.post(f"/queues/back-{router}/jobs", json={"data": 1})).json()["id"]
                assert (await wire.ok("PULL", queue=f"back-{router}"))["job"]["id"] == added
                await wire.close()
    finally:
        dispose(server)


def test_a_shard_that_is_killed_serves_both_again(tmp_path: Path) -> None:
    with RouterServer(tmp_path, routers=2, shards=1) as server:
        first, second = at_router(server, 0), at_router(server, 1)
        second.call(cmd="PUSH", queue="q", data={})
        job = second.call(cmd="PULL", queue="q", owner="w", lockTtl=60_000)
        shard = next(pid for pid in server.shard_pids() if pid != secondary_pid(server))
        os.kill(shard, signal.SIGKILL)
        wait_for(lambda: "shard ended" in server.log(), "its end")

        def pushed(client: Client) -> bool:
            return bool(client.call(cmd="PUSH", queue="q2", data={})["ok"])

        wait_for(lambda: knows_again(server, 1), "the second router has reached it")
        for client in (first, second):
            wait_for(lambda client=client: pushed(client), "the shard")
        reply = second.call(cmd="ACK", id=job["job"]["id"], token=job.get("token"))
        assert reply["ok"], "the connection has kept its job"
        first.socket.close()
        second.socket.close()


def knows_again(server: RouterServer, number: int) -> bool:
    """Whether a router reaches the shard; a connection that asks as it learns of its end is cut."""
    with suppress(EOFError, ConnectionError), at_router(server, number) as client:
        return bool(client.call(cmd="PUSH", queue="q3", data={})["ok"])
    return False


def test_what_is_under_way_is_answered_at_the_end(tmp_path: Path) -> None:
    with RouterServer(tmp_path, routers=2) as server:
        second = at_router(server, 1)
        pid = secondary_pid(server)
        pushes: list[dict[str, Any]] = [
            {"cmd": "PUSH", "queue": f"q{number % 8}", "data": {}, "reqId": str(number)}
            for number in range(2000)
        ]
        second.send(*pushes)
        assert second.recv()["ok"]
        server.process.terminate()
        answered = 1
        with suppress(EOFError, ConnectionError):
            while True:
                answered += second.recv()["ok"]
        second.socket.close()
        assert server.wait() == 0
        assert not alive(pid)
        assert "killed" not in server.log()
    with RouterServer(tmp_path, routers=2) as server, server.connect() as client:
        counts = [client.call(cmd="Count", queue=f"q{number}")["count"] for number in range(8)]
        assert sum(counts) == answered, "what was carried out was answered, and the reverse"


def test_they_end_with_the_first(tmp_path: Path) -> None:
    with RouterServer(tmp_path, routers=3, shards=1) as server:
        pids: list[int] = wait_for(lambda: len(found := server.shard_pids()) == 3 and found, "all three")
        server.process.kill()
        wait_for(lambda: not any(map(alive, pids)), "their end")


def test_another_server_cannot_share_the_port(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    with RouterServer(tmp_path, routers=2, shards=1) as server:
        second = RouterServer(other, routers=2, shards=1, tcp_port=server.port).launch()
        assert second.wait() != 0
        assert "cannot listen on" in second.log()
        second.kill()

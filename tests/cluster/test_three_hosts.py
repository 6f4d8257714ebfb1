"""What clients may rely on, wherever they are connected and where their jobs are: three hosts, one cluster.

The hosts are shared by all tests here.  The last ones kill a host and start it again.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import orjson
import pytest
import yaml
from cluster.conftest import SHARDS, new_hosts
from cluster.hosts import Hosts
from support.cli import Cli
from support.postgres import Postgres
from support.receiver import receiving
from support.server import ROOT, Server
from support.waiting import PATIENCE_S, eventually, wait_until
from support.web import client as web_of
from support.web import events
from support.websocket import socket
from support.wire import Wire

from bunqueue import Admin, ConnectionOptions, FlowJob, FlowProducer, Queue, QueueEvents, Worker
from bunqueue.errors import ShardUnavailable

NAMES = ("a", "b", "c")
LONG_MS = 180_000


@pytest.fixture(scope="module")
def hosts(store_cluster: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with new_hosts(store_cluster, tmp_path_factory.mktemp("hosts")) as made:
        made.start(*NAMES, flags=("--webhook-addresses", "any"), http=True)
        yield made


@contextmanager
def working(queue: str, handler: Callable[..., object], server: Server) -> Iterator[Worker]:
    """A worker of a queue, at a host."""
    worker = Worker(queue, handler, port=server.port)
    thread = threading.Thread(target=worker.run_forever, daemon=True)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop_soon()
        thread.join()


def at(hosts: Hosts, name: str) -> Server:
    return hosts.servers[name]


def test_events_and_results_arrive_at_other_hosts(hosts: Hosts) -> None:
    name = hosts.queue_of("a")
    with (
        Queue(name, port=at(hosts, "b").port) as queue,
        QueueEvents(name, types="completed", port=at(hosts, "c").port) as heard,
    ):
        heard.open()
        with working(name, lambda job: job.data + 1, at(hosts, "c")):
            job = queue.add("sum", 1)
            assert job.result(timeout=LONG_MS) == 2
            event = heard.next(timeout=LONG_MS)
    assert event is not None
    assert event.job_id == job.id


def test_listings_and_counts_are_of_all_hosts(hosts: Hosts) -> None:
    mine = {hosts.queue_of(name) for name in NAMES}
    for name in mine:
        with Queue(name, port=at(hosts, "a").port) as queue:
            queue.add_bulk([("job", number) for number in range(5)])
    for host in NAMES:
        with Admin(port=at(hosts, host).port) as admin:
            listed = {found.name: found for found in admin.list_queues() if found.name in mine}
            assert listed.keys() == mine
            assert [found.waiting for found in listed.values()] == [5, 5, 5]
        for name in mine:
            with Queue(name, port=at(hosts, host).port) as queue:
                assert len(queue.get_jobs("waiting")) == queue.counts().waiting == 5


def test_a_running_job_is_cancelled_through_another_host(hosts: Hosts) -> None:
    name = hosts.queue_of("a")
    begun, seen = threading.Event(), threading.Event()

    async def handler(job: object) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            seen.set()

    with working(name, handler, at(hosts, "b")), Queue(name, port=at(hosts, "c").port) as queue:
        job = queue.add("endless", 1)
        assert begun.wait(PATIENCE_S)
        assert job.cancel("enough") is False, "it ends when its worker has heard of it"
        assert seen.wait(PATIENCE_S), "the worker heard of it"
        wait_until(lambda: job.state() != "active", "the job has ended")


def test_workers_of_all_hosts_are_registered(hosts: Hosts) -> None:
    name = hosts.queue_of("a")
    with working(name, print, at(hosts, "b")), working(name, print, at(hosts, "c")):
        for host in NAMES:
            with Admin(port=at(hosts, host).port) as admin:
                wait_until(lambda admin=admin: len(admin.list_workers(name)) == 2, "both are listed")


async def test_workers_are_controlled_through_any_host(hosts: Hosts) -> None:
    """Whichever host the command reaches, and whichever the worker is connected to, from its first moment."""
    for here in NAMES:
        async with await Wire.open(at(hosts, here).address) as worker:
            registered = await worker.ok("RegisterWorker", name="w", queues=["x", "y"])
            known = registered["data"]["workerId"]
            for wanted, host in enumerate(NAMES, 2):
                async with await Wire.open(at(hosts, host).address) as wire:
                    shown = await wire.ok("ControlWorker", workerId=known, paused=True, concurrency=wanted)
                    assert (shown["data"]["id"], shown["data"]["name"]) == (known, "w")
                    beat = (await worker.ok("Heartbeat", id=known, wish=0))["data"]
                    assert (beat["paused"], beat["concurrency"]) == (True, wanted)
                    refused = await wire.call("ControlWorker", workerId=known, concurrency=1)
                    assert (
                        refused["error"] == "concurrency must be at least 2, one for each queue of the worker"
                    )
                    assert (refused["field"], refused["value"], refused["bound"]) == ("concurrency", 1, 2)
                    refused = await wire.call("ControlWorker", workerId="none", paused=False)
                    told = refused["code"], refused["field"], refused["value"]
                    assert told == ("WORKER_NOT_FOUND", "workerId", "none")


def test_a_flow_over_three_hosts(hosts: Hosts) -> None:
    parent, one, two = (hosts.queue_of(name) for name in NAMES)
    handler = lambda job: [job.name]  # noqa: E731
    with FlowProducer(port=at(hosts, "b").port) as flows, working(one, handler, at(hosts, "a")):
        node = flows.add(
            FlowJob("parent", queue=parent).after(FlowJob("x", queue=one), FlowJob("y", queue=two))
        )
        with working(two, handler, at(hosts, "c")), working(parent, handler, at(hosts, "b")):
            assert node.job.result(timeout=LONG_MS) == ["parent"]
        tree = flows.get_flow(node.job.id)
    assert tree is not None
    assert sorted(child.job.name for child in tree.children) == ["x", "y"]


def test_dependencies_and_own_ids_over_hosts(hosts: Hosts) -> None:
    first, second = hosts.queue_of("a"), hosts.queue_of("b")
    with Queue(first, port=at(hosts, "c").port) as one, Queue(second, port=at(hosts, "c").port) as two:
        for number in range(8):  # their directory is on all shards
            own = f"{first}/{number}"
            assert one.add("job", number, job_id=own).id == own
            with Queue(first, port=at(hosts, "b").port) as again:
                assert again.add("job", number, job_id=own).id == own
        waits = two.add("job", 1, depends_on=[f"{first}/{number}" for number in range(8)])
        assert one.counts().waiting == 8
        assert waits.state() == "waiting-children"
        with working(first, lambda job: None, at(hosts, "b")):
            wait_until(lambda: waits.state() == "waiting", "all it depends on is done")
        with Admin(port=at(hosts, "a").port) as admin:
            assert {admin.get_state(f"{first}/{number}") for number in range(8)} == {"completed"}


def test_a_webhook_is_delivered_by_one_host(hosts: Hosts) -> None:
    """Each event is delivered once, though each host has a gateway."""
    names = [hosts.queue_of(name) for name in NAMES]
    with receiving() as receiver, Admin(port=at(hosts, "b").port) as admin:
        hook = admin.add_webhook(receiver.url, ["job.pushed"])
        added = []
        for round_ in range(5):
            for name in names:
                with Queue(name, port=at(hosts, "c").port) as queue:
                    added.append(queue.add("job", round_).id)
            receiver.wait_for(len(added))
        assert Counter(message["jobId"] for message in receiver.arrived()) == Counter(added)
        admin.remove_webhook(hook)


async def test_a_listener_resumes_at_another_host(hosts: Hosts) -> None:
    names = [hosts.queue_of(name) for name in NAMES]

    def add(number: int) -> list[str]:
        ids = []
        for name in names:
            with Queue(name, port=at(hosts, "a").port) as queue:
                ids.append(queue.add("job", number).id)
        return ids

    path = "/events?event=pushed&" + "&".join(f"queue={name}" for name in names)
    async with web_of(at(hosts, "b")) as web, events(web, path) as stream:
        first = await asyncio.to_thread(add, 1)
        assert {event["jobId"] for event in await stream.take(3)} == set(first)
        place = stream.last_id
    second = await asyncio.to_thread(add, 2)
    async with web_of(at(hosts, "c")) as web, events(web, path, headers={"Last-Event-ID": place}) as stream:
        assert {event["jobId"] for event in await stream.take(3)} == set(second)
        third = await asyncio.to_thread(add, 3)
        assert {event["jobId"] for event in await stream.take(3)} == set(third)


def test_alerts_and_the_page_name_metrics_that_there_are(hosts: Hosts) -> None:
    with Admin(port=at(hosts, "b").port) as admin:
        known = set(re.findall(r"^# TYPE (\w+)", admin.prometheus(), re.MULTILINE))
    alerts = (ROOT / "config" / "cluster_alerts.yml").read_text()
    rules = [rule for group in yaml.safe_load(alerts)["groups"] for rule in group["rules"]]
    assert len(rules) >= 5
    for rule in rules:
        assert set(re.findall(r"bunqueue_\w+", rule["expr"])) <= known, rule
    page = (ROOT / "docs" / "cluster.md").read_text()
    named = set(re.findall(r"`(bunqueue_cluster_\w+)`", page))
    assert named == {name for name in known if name.startswith("bunqueue_cluster_")}


def test_doctor_and_check_know_the_cluster(hosts: Hosts) -> None:
    cli = Cli(at(hosts, "b"))
    found = [row for row in cli.json("doctor") if row["check"] == "cluster"]
    assert found == [
        {
            "status": "ok",
            "check": "cluster",
            "finding": f"3 hosts share {SHARDS} shards, all have owners and copies",
        }
    ]
    assert cli.json("cluster", "check") == []
    cli("cluster", "drain", "c")
    drained = "the host c is draining: replace it, or bunqueue cluster drain --undo c"
    assert drained in [row["finding"] for row in cli.json("doctor") if row["status"] == "warning"]
    cli("cluster", "drain", "--undo", "c")
    hosts.until_shared(*NAMES)


MOVE, DRAIN, FORGET = "ClusterMove", "ClusterDrain", "ClusterForget"
LAST = SHARDS - 1


@pytest.mark.parametrize(
    ("command", "fields", "told", "words", "status", "http"),
    [
        (DRAIN, {"host": "zz"}, ("HOST_NOT_FOUND", "host", "zz", None), "there are a, b, c", 3, 404),
        (DRAIN, {"host": ""}, ("INVALID_FIELD", "host", "", 1), "must be a non-empty string", 2, None),
        (DRAIN, {"host": "x" * 64}, ("INVALID_FIELD", "host", "x" * 64, 63), "at most 63 characters", 2, 422),
        (MOVE, {"shard": 0, "host": "zz"}, ("HOST_NOT_FOUND", "host", "zz", None), "there are a, b", 3, 404),
        (MOVE, {"shard": 7, "host": "b"}, ("INVALID_FIELD", "shard", 7, LAST), f"most {LAST}", 1, 422),
        (MOVE, {"shard": 64, "host": "b"}, ("INVALID_FIELD", "shard", 64, 63), "at most 63", 2, 422),
        (MOVE, {"shard": 1.5, "host": "b"}, ("INVALID_FIELD", "shard", 1.5, None), "", 2, 422),
        (MOVE, {"shard": "NaN", "host": "b"}, ("INVALID_FIELD", "shard", "NaN", None), "", 2, 422),
        (FORGET, {"host": "b"}, ("HOST_STATE", "host", "b", None), "stop its server first", 7, 409),
        (FORGET, {"host": "zz"}, ("HOST_NOT_FOUND", "host", "zz", None), "there are a, b, c", 3, 404),
    ],
)
async def test_operators_mistakes(
    hosts: Hosts,
    command: str,
    fields: dict[str, Any],
    told: tuple[str, str, object, object],
    words: str,
    status: int,
    http: int | None,
) -> None:
    """Over TCP, HTTP and on the command line; nothing changes."""
    server, before = at(hosts, "b"), hosts.ask("select id, wanted from bunqueue.shards order by id")
    async with await Wire.open(server.address) as wire:
        reply = await wire.call(command, **fields)
    known = tuple(reply.get(name) for name in ("code", "field", "value", "bound"))
    assert (reply["ok"], known) == (False, told)
    assert words in reply["error"]
    if http is not None:
        method, path = {
            DRAIN: ("POST", "/cluster/hosts/{host}/drain"),
            MOVE: ("PUT", "/cluster/shards/{shard}"),
            FORGET: ("DELETE", "/cluster/hosts/{host}"),
        }[command]
        body = {"host": fields["host"]} if command == MOVE else {} if command == DRAIN else None
        async with web_of(server) as web:
            answer = await web.request(method, path.format(**fields), json=body)
        assert (answer.status_code, answer.json()["code"], answer.json()["field"]) == (http, *told[:2])
    verb = command.removeprefix("Cluster").lower()
    done = await asyncio.to_thread(
        Cli(server),
        "cluster",
        verb,
        *map(str, fields.values()),
        *(["--yes"] * (verb == "forget")),
        status=status,
    )
    assert words in done.err
    assert "--host" not in done.err, "it is an argument"
    assert hosts.ask("select id, wanted from bunqueue.shards order by id") == before


def test_while_the_store_does_not_answer(hosts: Hosts, store_cluster: Postgres) -> None:
    """Nobody is taken for dead who could not give a sign of life, and changes are refused."""
    cli = Cli(at(hosts, "b"))
    store_cluster.leader.pause()
    try:
        wait_until(lambda: cli.json("cluster", "status")["error"], "it is noticed")
        (found,) = cli.json("cluster", "check", status=1)
        assert found["finding"].startswith("the store cannot be read: it has not answered for ")
        assert found["fix"] == "bunqueue store check"
        away = {
            "status": "problem",
            "check": "shards",
            "finding": "they run, and refuse commands while the store is unavailable",
        }
        wait_until(lambda: away in cli.json("doctor", status=1), "doctor says so")
        with Admin(port=at(hosts, "b").port, connection=ConnectionOptions(command_timeout=10_000)) as admin:
            for change in (admin.rebalance, lambda: admin.drain_host("a"), lambda: admin.move_shard(0, "c")):
                with pytest.raises(ShardUnavailable, match="the store cannot be changed now") as caught:
                    change()
                assert caught.value.server_code == "STORE_UNAVAILABLE"
    finally:
        store_cluster.leader.resume()
    wait_until(lambda: cli("cluster", "check", status=None).status == 0, "all is well")


async def test_when_a_host_dies(hosts: Hosts) -> None:
    """What needs all shards waits for the take-over; listeners and the webhooks go on elsewhere; and a host
    that comes back owns and follows shards again."""
    names = [hosts.queue_of(name) for name in NAMES]
    victim = hosts.owners()[0]  # it has the webhooks
    one, two = (name for name in NAMES if name != victim)
    path = "/events?event=pushed&" + "&".join(f"queue={name}" for name in names)

    def add(number: int) -> list[str]:
        ids = []
        for name in names:
            with Queue(name, port=at(hosts, one).port) as queue:
                ids.append(queue.add("job", number).id)
        return ids

    def list_queues() -> set[str]:
        with Admin(port=at(hosts, two).port) as admin:
            return {found.name for found in admin.list_queues()}

    def until_doctor_says_so() -> None:
        fix = f"start its server, or bunqueue cluster forget {victim}"
        finding = f"the host {victim} is dead: its beats have stopped: {fix}"
        expected = {"status": "problem", "check": "cluster", "finding": finding}
        doctor = Cli(at(hosts, two))
        wait_until(
            lambda: expected in orjson.loads(doctor("doctor", "--json", status=None).out or "[]"),
            "doctor knows",
        )

    with receiving() as receiver, Admin(port=at(hosts, one).port) as admin:
        hook = await asyncio.to_thread(lambda: admin.add_webhook(receiver.url, ["job.pushed"]))
        async with (
            web_of(at(hosts, victim)) as web,
            events(web, path) as stream,
            socket(at(hosts, victim)) as ws,
        ):
            await ws.call("Subscribe", queues=names, types=["pushed"])
            added = await asyncio.to_thread(add, 1)
            assert {event["jobId"] for event in await stream.take(3)} == set(added)
            assert {event["jobId"] for event in await ws.until(3)} == set(added)
            place, place_of_ws = stream.last_id, ws.last_id
        await asyncio.to_thread(receiver.wait_for, 3)
        at(hosts, victim).kill_all()
        looking = asyncio.create_task(asyncio.to_thread(until_doctor_says_so))
        listing = asyncio.create_task(asyncio.to_thread(list_queues))
        late = await asyncio.to_thread(add, 2)
        assert set(names) <= await listing, "nobody was refused"
        await looking
        async with (
            web_of(at(hosts, one)) as web,
            events(web, path, headers={"Last-Event-ID": place}) as stream,
            socket(at(hosts, two)) as ws,
        ):
            resumed = await stream.take(3)
            assert {event.get("jobId") for event in resumed} == set(late), (place, resumed)
            await ws.call("Subscribe", queues=names, types=["pushed"], after=place_of_ws)
            resumed = await ws.until(3)
            assert {event.get("jobId") for event in resumed} == set(late), (place_of_ws, resumed)
        await eventually(
            lambda: {message["jobId"] for message in receiver.arrived()} == {*added, *late}, "all arrive"
        )
        arrived = Counter(message["jobId"] for message in receiver.arrived())
        assert all(arrived[job] == 1 for job in late), "those of before may come again, as for any webhook"
        await asyncio.to_thread(admin.remove_webhook, hook)
    await asyncio.to_thread(at(hosts, victim).restart)
    await asyncio.to_thread(hosts.until_shared, *NAMES)
    await asyncio.to_thread(lambda: wait_until(lambda: hosts.follows(victim) > 0, "it follows again"))
    assert await asyncio.to_thread(list_queues) >= set(names)

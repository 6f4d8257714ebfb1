"""Hosts that share shards: any client may talk to any host, and a host may die."""

from __future__ import annotations

import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from cluster.conftest import SHARDS
from cluster.hosts import QUEUES, Hosts
from support.procfs import signal_all
from support.server import NotStarted, Server
from support.waiting import PATIENCE_S, wait_until

from bunqueue import Admin, ConnectionOptions, Queue, Worker, __version__
from bunqueue.client.models.views import TakenJob
from bunqueue.errors import CommandFailed, NotFound, WrongState
from bunqueue.model.ids import slot_of_queue

PACE_S = 0.01  # from one job to the next: the cores are the hosts', too


def shard_of(name: str) -> int:
    return slot_of_queue(name) & (SHARDS - 1)


class Load:
    """Adds jobs to all queues, one after the other, until it is stopped."""

    def __init__(self, *servers: Server) -> None:
        """It knows the addresses of these servers."""
        self.added: dict[str, str] = {}  # id -> queue
        self.errors: list[str] = []
        self.slowest = 0.0
        self._stop = threading.Event()
        self._url = "bunqueue://" + ",".join(f"127.0.0.1:{server.port}" for server in servers)
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        patient = ConnectionOptions(command_timeout=PATIENCE_S * 1000)
        queues = [Queue(name, url=self._url, connection=patient) for name in QUEUES]
        while not self._stop.is_set():
            for queue in queues:
                begun = time.monotonic()
                try:
                    self.added[queue.add("job", {"number": len(self.added)}).id] = queue.name
                except Exception as error:
                    self.errors.append(repr(error))
                self.slowest = max(self.slowest, time.monotonic() - begun)
                self._stop.wait(PACE_S)
        for queue in queues:
            queue.close()

    def __enter__(self) -> Load:
        self._thread.start()
        wait_until(lambda: len(self.added) > 2 * len(QUEUES), "jobs are added")
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def more(self) -> None:
        """Wait for each queue to get more jobs."""
        before = len(self.added)
        wait_until(lambda: len(self.added) > before + 2 * len(QUEUES), "more jobs are added")


def waiting(server: Server) -> dict[str, int]:
    counts = {}
    for name in QUEUES:
        with Queue(name, port=server.port) as queue:
            counts[name] = queue.counts().waiting
    return counts


@contextmanager
def checked(load: Load, *servers: Server) -> Iterator[None]:
    """Afterwards all that was acknowledged is there, once, whichever host is asked."""
    with load:
        yield
    assert load.errors == []
    expected = {name: list(load.added.values()).count(name) for name in QUEUES}
    for server in servers:
        assert waiting(server) == expected


def test_any_host_serves_all_queues(hosts: Hosts) -> None:
    a, b = hosts.start("a", "b")
    for number, server in enumerate([a, b]):
        for name in QUEUES:
            with Queue(name, port=server.port) as queue:
                queue.add("job", {"number": number})
    assert waiting(a) == waiting(b) == dict.fromkeys(QUEUES, 2)


def test_a_host_that_dies_is_replaced(hosts: Hosts) -> None:
    a, b = hosts.start("a", "b")
    load = Load(a, b)
    with checked(load, b):
        a.kill_all()
        wait_until(lambda: set(hosts.owners()) == {"b"}, "b owns all shards")
        load.more()


def test_a_host_that_comes_back_has_its_share_again(hosts: Hosts) -> None:
    a, b = hosts.start("a", "b")
    a.kill_all()
    wait_until(lambda: set(hosts.owners()) == {"b"}, "b owns all shards")
    load = Load(b)
    with checked(load, a, b):
        a.restart()
        hosts.until_shared("a", "b")
        load.more()


def test_a_host_that_ends_in_order_is_not_missed(hosts: Hosts) -> None:
    a, b = hosts.start("a", "b")
    load = Load(a, b)
    with checked(load, b):
        owned = hosts.owners().count("a")
        before = a.log().count("gave a shard up")
        assert a.stop() == 0
        assert a.log().count("gave a shard up") == before + owned, "its shards were handed over"
        assert set(hosts.owners()) == {"b"}
        load.more()


def test_a_host_that_stood_still_has_lost_its_shards(hosts: Hosts) -> None:
    """It wakes as a zombie, and nobody believes it any more."""
    a, b = hosts.start("a", "b")
    processes = [a.pid, *(shard.pid for shard in a.shard_processes())]
    load = Load(b)
    with checked(load, a, b):
        signal_all(signal.SIGSTOP, processes)  # one may have ended: it has just given its shard up
        wait_until(lambda: set(hosts.owners()) == {"b"}, "b owns all shards")
        signal_all(signal.SIGCONT, processes)
        hosts.until_shared("a", "b")
        load.more()


def test_a_worker_keeps_its_job_when_the_shard_moves(hosts: Hosts) -> None:
    a, b = hosts.start("a", "b")
    runs: list[str] = []
    ended = threading.Event()

    def handler(job: object) -> str:
        runs.append("begun")
        ended.wait()
        return "done"

    mine = next(
        name for name in QUEUES if hosts.owners()[shard_of(name)] == "a"
    )  # a queue whose shard dies with its host
    worker = Worker(mine, handler, port=b.port)
    thread = threading.Thread(target=worker.run_forever, daemon=True)
    thread.start()
    with Queue(mine, port=b.port) as queue:
        job = queue.add("long", 1)
        wait_until(lambda: runs, "the job runs")
        a.kill_all()
        wait_until(lambda: set(hosts.owners()) == {"b"}, "b owns all shards")
        ended.set()
        assert job.result(timeout=180_000) == "done"
    assert runs == ["begun"]
    worker.stop_soon()
    thread.join()


def test_a_pull_that_waits_goes_on_with_the_next_owner(hosts: Hosts) -> None:
    a, b = hosts.start("a", "b")
    name = next(name for name in QUEUES if hosts.owners()[shard_of(name)] == "a")
    found: list[TakenJob | None] = []
    with Queue(name, port=b.port) as queue, Queue(name, port=b.port) as other:
        thread = threading.Thread(target=lambda: found.append(queue.pull(timeout=60_000)))
        thread.start()
        wait_until(lambda: other.counts() is not None, "the other one is connected")
        assert a.stop() == 0
        job = other.add("job", 1)
        thread.join()
    assert found[0] is not None
    assert found[0].job.id == job.id


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (("--cluster", "other"), "the store is that of the cluster 'test', not of 'other'"),
        (("--cluster-host", "a"), "is the host 'a' already"),
    ],
)
def test_a_host_that_is_not_let_in(hosts: Hosts, flags: tuple[str, ...], text: str) -> None:
    hosts.start("a")
    with pytest.raises(NotStarted) as caught:
        hosts.make("b", *flags).start()
    assert text in caught.value.refusals[0]


def test_a_host_whose_version_nobody_understands(hosts: Hosts) -> None:
    hosts.start("a")
    hosts.ask("update bunqueue.hosts set version = '9.1.0', link_versions = int4range(7, 9)")
    with pytest.raises(NotStarted) as caught:
        hosts.make("b").start()
    assert caught.value.status == 2, "to start it again does not help"
    (text,) = caught.value.refusals
    assert "the host 'a' runs 9.1.0 and speaks 7 to 8 of the protocol between hosts" in text
    assert f"this one runs {__version__} and speaks 1 to 1" in text
    assert hosts.ask("select name from bunqueue.hosts") == [("a",)], "it has not joined"


def test_operators_see_and_move_shards(hosts: Hosts) -> None:
    a, b = hosts.start("a", "b")
    with Admin(port=a.port) as admin:
        found = admin.cluster_status()
        assert (found.cluster, found.host, found.error) == ("test", "a", None)
        all_well = [(name, True, True) for name in sorted(hosts.servers)]
        wait_until(
            lambda: [(h.name, h.alive, h.reached) for h in admin.cluster_status().hosts] == all_well,
            "all is well",
        )
        wait_until(lambda: all(host.load is not None for host in admin.cluster_status().hosts), "loads")
        assert all(host.load >= 0 for host in admin.cluster_status().hosts)

        def are_fresh() -> bool:
            return all(0 <= host.beat_age < 4000 for host in admin.cluster_status().hosts)

        wait_until(are_fresh, "ms; a beat comes each second")
        wait_until(lambda: sum(host.owns for host in admin.cluster_status().hosts) == SHARDS, "all are owned")
        mine = hosts.owners().index("a")
        admin.move_shard(mine, "b")
        wait_until(lambda: hosts.owners()[mine] == "b", "the shard has moved")
        hosts.until_shared("a", "b")
        assert (hosts.owners()[mine], admin.cluster_status().shards[mine].wanted) == ("b", "b"), "it stays"
        admin.drain_host("a")
        wait_until(lambda: set(hosts.owners()) == {"b"}, "a has no shard any more")
        with pytest.raises(WrongState, match="no other host could have the shards of 'b'"):
            admin.drain_host("b")
        admin.drain_host("a", draining=False)
        hosts.until_shared("a", "b")
        with pytest.raises(NotFound, match="there is no host 'c' in the cluster; there are a, b"):
            admin.drain_host("c")
        with pytest.raises(WrongState, match="is alive"):
            admin.forget_host("b")
        with pytest.raises(CommandFailed, match="shard must be at most 3"):
            admin.move_shard(4, "b")
        b.kill_all()
        wait_until(lambda: not admin.cluster_status().hosts[1].alive, "b is known to be dead")
        wait_until(lambda: admin.cluster_status().hosts[1].beat_age > 3000, "its last beat is long ago")
        wait_until(lambda: admin.cluster_status().hosts[1].load is None, "nobody knows its load any more")
        wait_until(lambda: set(hosts.owners()) == {"a"}, "a owns all shards")
        found = admin.forget_host("b")
        assert [host.name for host in found.hosts] == ["a"]
        assert {shard.wanted for shard in found.shards} == {""}, "nothing waits for a host that is gone"


def test_a_shard_moves_to_a_host_that_was_late_to_take_it_over(hosts: Hosts) -> None:
    """That host's process still waits for the owner before, which has died."""
    a, b, _ = hosts.start("a", "b", "c", flags=("--cluster-copies", "2"))

    def has_all(name: str) -> bool:
        return hosts.follows(name) + hosts.owners().count(name) == SHARDS

    wait_until(lambda: has_all("b") and has_all("c"), "they own or follow all shards")
    theirs = [shard for shard, owner in enumerate(hosts.owners()) if owner == "a"]
    a.kill_all()
    wait_until(lambda: not {"a", ""} & set(hosts.owners()), "a's shards have owners")
    with Admin(port=b.port) as admin:
        for shard in theirs:
            to = "c" if hosts.owners()[shard] == "b" else "b"
            admin.move_shard(shard, to)
            wait_until(lambda shard=shard, to=to: hosts.owners()[shard] == to, f"shard {shard} is at {to}")
    hosts.until_shared("b", "c")


def test_a_server_without_a_cluster(shared_server: Server) -> None:
    with Admin(port=shared_server.port) as admin:
        for call in (admin.cluster_status, admin.rebalance):
            with pytest.raises(CommandFailed, match="not a host of a cluster") as caught:
                call()
            assert caught.value.server_code == "NO_CLUSTER"


def test_workers_are_listed_on_all_hosts(hosts: Hosts) -> None:
    a, b = hosts.start("a", "b")
    worker = Worker("q1", lambda job: None, port=b.port, name="mine")
    thread = threading.Thread(target=worker.run_forever, daemon=True)
    thread.start()
    with Admin(port=a.port) as admin:
        wait_until(lambda: [found.name for found in admin.list_workers()] == ["mine"], "a knows the worker")
        worker.stop_soon()
        thread.join()
        wait_until(lambda: not admin.list_workers(), "a knows that it has gone")


def test_new_hosts_go_on_when_all_are_lost(hosts: Hosts) -> None:
    """As docs/cluster.md says: the same store, the same cluster, no files."""
    old = hosts.start("a", "b")
    with Queue("q1", port=old[0].port) as queue:
        ids = {queue.add("job", number).id for number in range(20)}
    for server in old:
        server.kill_all()
        shutil.rmtree(server.data_dir)
    new = hosts.make("c")
    new.start()
    wait_until(lambda: set(hosts.owners()) == {"c"}, "c owns all shards")
    with Admin(port=new.port) as admin, Queue("q1", port=new.port) as queue:
        wait_until(lambda: not any(h.alive for h in admin.cluster_status().hosts if h.name != "c"), "known")
        for name in ("a", "b"):
            admin.forget_host(name)
        assert [host.name for host in admin.cluster_status().hosts] == ["c"]
        assert {job.id for job in queue.get_jobs("waiting")} == ids

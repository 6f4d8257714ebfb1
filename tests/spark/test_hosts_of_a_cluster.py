"""Files of a cluster's hosts, which own shards and follow those of others, and snapshots of the store."""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cluster.hosts import Hosts
from plain import rows_of
from support.cli import Cli
from support.naming import queue_on
from support.postgres import Postgres
from support.waiting import wait_until

from bunqueue import Admin, Queue
from bunqueue.server.folder import shard_file
from bunqueue.spark import NotReadable, copy
from bunqueue.store.setup import init

SHARDS, BATCH = 2, 50
QUEUES = tuple(queue_on(shard, SHARDS) for shard in range(SHARDS))


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where snapshots of the store are."""
    return tmp_path_factory.mktemp("snapshots")


@pytest.fixture(scope="module")
def hosts(kept: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Two hosts: each owns one shard, and follows the other one."""
    with Postgres() as postgres:
        url = postgres.new_database()
        init(url, SHARDS)
        with Hosts(url, tmp_path_factory.mktemp("hosts"), SHARDS) as made:
            made.start("a", "b", flags=("--store-snapshots", str(kept)))
            yield made


def folder(hosts: Hosts, name: str) -> Path:
    return Path(hosts.servers[name].data_dir)


@contextmanager
def pushing(hosts: Hosts) -> Iterator[dict[str, int]]:
    """Batches are pushed to all queues meanwhile; how many jobs each has got."""
    added, enough = dict.fromkeys(QUEUES, 0), threading.Event()

    def push() -> None:
        while not enough.is_set():
            for name in QUEUES:
                with Queue(name, port=hosts.servers["a"].port) as queue:
                    queue.add_bulk([("job", number) for number in range(BATCH)])
                added[name] += BATCH

    thread = threading.Thread(target=push)
    thread.start()
    try:
        wait_until(lambda: min(added.values()) > 0, "all queues have jobs")
        yield added
    finally:
        enough.set()
        thread.join()


def counts(place: Path, **options: str) -> dict[str, int]:
    return Counter(row["queue"] for row in rows_of(place, columns="queue", **options))


def test_each_host_shows_all_shards_while_it_follows(hosts: Hosts, tmp_path: Path) -> None:
    with pushing(hosts) as added:
        for name in ("a", "b"):
            known = dict(added)
            owner = hosts.owners()
            found = counts(folder(hosts, name))
            assert all(count % BATCH == 0 for count in found.values()), "a record is applied as a whole"
            own = QUEUES[owner.index(name)]
            assert found[own] >= known[own], "its own shard has what was acknowledged"
        copied = copy(folder(hosts, "b"), tmp_path / "copy")
    for name in ("a", "b"):
        wait_until(lambda name=name: counts(folder(hosts, name)) == added, f"{name} has caught up")
    assert counts(copied) == counts(copied)
    assert all(count % BATCH == 0 for count in counts(copied).values())


@pytest.mark.nightly
def test_snapshots_of_the_store(hosts: Hosts, kept: Path, tmp_path: Path) -> None:
    Cli(hosts.servers["a"])(
        *("store", "snapshot", "--store", hosts.store, "--store-snapshots", str(kept)),
        *("--data-dir", str(folder(hosts, "a"))),
    )
    assert counts(kept) == counts(folder(hosts, "a"))
    with pytest.raises(NotReadable, match="read them as they are"):
        copy(kept, tmp_path / "copy")
    broken = tmp_path / "broken"
    shutil.copytree(kept, broken)
    half = max(broken.glob("shard-00.*"))
    half.write_bytes(half.read_bytes()[:-100])
    with pytest.raises(NotReadable, match="damaged, or not whole"):
        counts(broken)
    assert counts(broken, unreadable="skip").keys() == {QUEUES[1]}
    half.unlink()
    for older in broken.glob("shard-00.*"):
        older.unlink()
    with pytest.raises(NotReadable, match="no snapshot of shard 00, or not any more"):
        counts(broken)


def test_what_a_host_has_let_go_of_is_not_read(
    hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts.start("c")
    place = folder(hosts, "b")
    with Admin(port=hosts.servers["a"].port) as admin:
        admin.drain_host("b")
        wait_until(lambda: "b" not in hosts.owners(), "b owns nothing")
        wait_until(lambda: hosts.follows("b") == 0, "b follows nothing")
    assert (place / "shard-00.db").exists()
    monkeypatch.setattr(shard_file, "CHANGES_HANDS_S", 0.0)
    with pytest.raises(NotReadable, match="is old: this host does not keep it up to date"):
        counts(place)
    with pytest.raises(NotReadable, match="bunqueue cluster status --shards"):
        copy(place, tmp_path / "copy")
    words = ("snapshot", "--data-dir", str(place), "--out", str(tmp_path / "out"))
    done = Cli(hosts.servers["b"])(*words, status=None)
    assert done.status != 0
    assert "is old" in done.err
    assert counts(place, unreadable="skip") == {}
    (place / "shard-00.db").unlink()
    with pytest.raises(NotReadable, match="this host has no copy of the shard"):
        counts(place)

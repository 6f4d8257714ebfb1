"""Jobs move into a store with their data folder, and out of it again, whatever interrupts that."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import msgspec
import psycopg
import pytest
from replication.conftest import SHARDS, StoredServer
from support.budget import budget
from support.cli import command
from support.everything import fill, shown
from support.folders import as_they_are, contents, is_sound
from support.killed_at_step import killed_at, steps_of
from support.postgres import ask
from support.server import ROOT, NotStarted, Server, StartServer
from support.small_folder import make
from support.waiting import wait_until
from support.warm import run
from support.wire import Wire

from bunqueue import Queue
from bunqueue.cli.framework import exits
from bunqueue.server.folder.data_folder import (
    FORMAT_WITH_STORE,
    DataFolderError,
    read_identified,
    read_manifest,
    save_manifest,
    shard_file,
)
from bunqueue.store import moving
from bunqueue.store.database import ADOPTING, StoreError, connected, read
from bunqueue.store.setup import init
from shardproc.store_commands.adopt import adopt
from shardproc.store_commands.folder import use_of
from shardproc.store_commands.leave import leave, leave_without
from shardproc.store_commands.progress import Progress

KILLS = budget(3, 24)
ROOMS = (
    "shardproc/store_commands",
    "bunqueue/store",
    "bunqueue/server/folder/data_folder.py",
    "shardproc/replication",
)


WAITS = """
    select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()
"""


@pytest.fixture
def store(database: str) -> str:
    init(database, SHARDS)
    return database


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data folder with a bit of everything, as a crash leaves it."""
    make(tmp_path / "data", SHARDS)
    return tmp_path / "data"


def program(*arguments: str, status: int = exits.DONE) -> str:
    done = run(command("store", *arguments), env=environ())
    assert done.returncode == status, done
    return done.stdout if status == exits.DONE else done.stderr


def environ() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


async def test_nobody_notices_that_the_jobs_are_in_a_store(
    store: str, stored_server: StoredServer, make_server: StartServer, tmp_path: Path
) -> None:
    """A folder full of everything moves into a store; its server is killed; they move into a new folder."""
    plain = make_server(data_dir=tmp_path / "plain")
    plain.start()
    async with await client(plain) as wire:
        made = await fill(wire)
        before = await shown(wire, made)
        plain.kill_all()
    plain.until_gone()
    program("adopt", "--store", store, "--data-dir", str(plain.data_dir))
    kept = stored_server(store, data_dir=Path(plain.data_dir))
    kept.start()
    async with await client(kept) as wire:
        assert await shown(wire, made) == before
        kept.kill_all()
    kept.until_gone()
    program("leave", "--store", store, "--data-dir", str(tmp_path / "new"))
    again = make_server(data_dir=tmp_path / "new")
    again.start()
    async with await client(again) as wire:
        assert await shown(wire, made) == before


async def client(server: Server) -> Wire:
    wire = await Wire.open(server.address)
    await wire.ok("Hello", protocolVersion=3)
    return wire


def test_adopting_is_killed_at_every_step(database: str, folder: Path, tmp_path: Path) -> None:
    """At each moment the jobs are in the folder, or it says what has to be done; doing it again is enough."""
    before = contents(folder)
    original = tmp_path / "original"
    shutil.copytree(folder, original)
    init(database, SHARDS)

    def work() -> None:
        adopt(database, folder, "", Progress())

    def renew() -> None:
        ask(database, "drop schema bunqueue cascade")
        init(database, SHARDS)
        shutil.rmtree(folder)
        shutil.copytree(original, folder)

    steps = steps_of(work, ROOMS)
    assert steps > 100
    rng = random.Random(steps)
    for step in sorted(rng.sample(range(1, steps), KILLS)):
        renew()
        assert killed_at(step, work, ROOMS)
        if not read_manifest(folder).store:
            assert contents(folder) == before, step
            assert ask(database, "select count(*) from bunqueue.snapshots") == [(0,)]
        adopt(database, folder, "", Progress())
        taken = tmp_path / f"taken-{step}"
        leave(database, taken, Progress())
        assert contents(taken) == before, step
        assert is_sound(taken)


def test_leaving_is_killed_at_every_step(database: str, folder: Path, tmp_path: Path) -> None:
    before = contents(folder)
    init(database, SHARDS)
    adopt(database, folder, "", Progress())
    rng = random.Random(1)
    target = tmp_path / "left"

    def work() -> None:
        leave(database, target, Progress())

    def renew() -> None:
        """As if nobody had ever left."""
        shutil.rmtree(target, ignore_errors=True)
        ask(database, "update bunqueue.store set use = ''")

    steps = steps_of(work, ROOMS)
    assert steps > 100
    for step in sorted(rng.sample(range(1, steps), KILLS)):
        renew()
        assert killed_at(step, work, ROOMS)
        ((use,),) = ask(database, "select use from bunqueue.store")
        plain = (target / "manifest.json").exists() and not read_manifest(target).store
        assert bool(use) or not plain, "in two places"
        leave(database, target, Progress())
        assert contents(target) == before, step
        assert not read_manifest(target).store


@pytest.mark.parametrize(
    "is_marked", [False, True], ids=["folder as it was", "folder says it is the store's"]
)
def test_an_adoption_that_is_given_up(store: str, folder: Path, is_marked: bool) -> None:
    """It was interrupted, and is no longer wanted: leave undoes it."""
    before = contents(folder)
    manifest = read_identified(folder)
    with connected(store) as connection:
        moving.begin_adopting(connection, SHARDS, use_of(ADOPTING, manifest, folder))
        made = msgspec.structs.replace(manifest, format=FORMAT_WITH_STORE, store=read(connection).id)
    save_manifest(folder, made if is_marked else manifest)
    leave(store, folder, Progress())
    assert ask(store, "select use from bunqueue.store") == [("",)]
    assert not read_manifest(folder).store
    assert contents(folder) == before


def test_a_folder_whose_adoption_was_interrupted_is_not_served_by_the_store(
    store: str, folder: Path, stored_server: StoredServer, tmp_path: Path
) -> None:
    ask(store, f"update bunqueue.store set use = 'adopting {'0' * 16} elsewhere:/data'")
    with pytest.raises(NotStarted) as caught:
        stored_server(store, data_dir=tmp_path / "other").start()
    assert "taking over the data folder elsewhere:/data" in caught.value.refusals[0]
    with pytest.raises(StoreError, match="elsewhere:/data"):
        adopt(store, folder, "", Progress())


def test_a_store_that_was_left_is_not_served(store: str, stored_server: StoredServer, tmp_path: Path) -> None:
    server = stored_server(store)
    server.start()
    with Queue("q", port=server.port) as queue:
        queue.add("job", 1)
    server.stop()
    assert leave(store, tmp_path / "new", Progress()).jobs == 1
    with pytest.raises(NotStarted) as caught:
        server.restart()
    assert f"{tmp_path / 'new'}: start that one without --store" in caught.value.refusals[0]


def test_a_server_that_waits_for_its_turn_does_not_get_a_store_that_was_left(
    store: str, stored_server: StoredServer, tmp_path: Path
) -> None:
    """It had looked whether it may work on the store long before."""
    first = stored_server(store)
    first.start()
    second = stored_server(store, data_dir=tmp_path / "second")
    second.launch()
    wait_until(lambda: "another server has the shard" in second.log(), "it waits")
    first.kill_all()
    if problem := why_not_left(store, Path(first.data_dir)):  # the other one was quicker
        assert "taken a shard in the meantime" in problem or "is at work" in problem
        assert ask(store, "select use from bunqueue.store") == [("",)]
        second.until_ready()
    else:
        wait_until(lambda: "were taken out of it" in second.log(), "it says why it does not begin")


def why_not_left(store: str, folder: Path) -> str:
    try:
        leave(store, folder, Progress())
    except StoreError as error:
        return str(error)
    return ""


def test_a_living_server_keeps_its_jobs(store: str, stored_server: StoredServer, tmp_path: Path) -> None:
    server = stored_server(store)
    server.start()
    with pytest.raises(DataFolderError, match="in use by another server"):
        leave(store, Path(server.data_dir), Progress())
    with pytest.raises(StoreError, match="is at work on shard 0"):
        leave(store, tmp_path / "new", Progress())
    assert not (tmp_path / "new" / "manifest.json").exists()
    with Queue("q", port=server.port) as queue:
        queue.add("job", 1)


def test_a_store_for_other_folders_is_refused(
    store: str, database: str, folder: Path, tmp_path: Path
) -> None:
    before = as_they_are(folder)
    make(tmp_path / "four", 4)
    with pytest.raises(StoreError, match="was made for 2 shards, and the data folder for 4"):
        adopt(store, tmp_path / "four", "", Progress())
    ask(store, "update bunqueue.shards set epoch = 1 where id = 1")
    with pytest.raises(StoreError, match="a server has used the store already"):
        adopt(store, folder, "", Progress())
    after = as_they_are(folder)
    assert {name: after[name] for name in before if name.endswith(".db")} == {
        name: data for name, data in before.items() if name.endswith(".db")
    }


def test_a_damaged_folder_is_not_taken_over(store: str, folder: Path) -> None:
    file = shard_file(folder, 1)
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("pragma wal_checkpoint(truncate)")
    data = bytearray(file.read_bytes())
    data[3 * 8192 :] = b"\xff" * (len(data) - 3 * 8192)
    file.write_bytes(data)
    with pytest.raises(DataFolderError, match=r"shard-01\.db is damaged .*: run bunqueue doctor --repair"):
        adopt(store, folder, "", Progress())
    assert ask(store, "select use from bunqueue.store") == [("",)]


def test_a_lost_store_leaves_what_the_folder_holds(
    store: str, stored_server: StoredServer, make_server: StartServer, database: str
) -> None:
    """The database is gone for good; the folder goes on alone, and into another store."""
    server = stored_server(store)
    server.start()
    with Queue("q", port=server.port) as queue:
        queue.add_bulk([("job", number) for number in range(10)])
    server.kill_all()
    server.until_gone()
    ask(database, "drop schema bunqueue cascade")
    folder = Path(server.data_dir)
    assert leave_without(folder).jobs == 10
    with pytest.raises(DataFolderError, match="belongs to no store"):
        leave_without(folder)
    init(database, SHARDS)
    adopt(database, folder, "", Progress())
    server.restart()
    with Queue("q", port=server.port) as queue:
        assert queue.counts().waiting == 10
        queue.add("job", 10)
    server.kill_all()
    server.until_gone()
    shutil.rmtree(folder)
    server.restart()
    with Queue("q", port=server.port) as queue:
        assert queue.counts().waiting == 11


def test_the_command_is_interrupted_and_run_again(store: str, folder: Path) -> None:
    """Ctrl-C, and what it says then."""
    before = contents(folder)
    with psycopg.connect(store) as holder:
        holder.execute("select 1 from bunqueue.store for update")  # it has to wait
        work = subprocess.Popen(
            command("store", "adopt", "--data-dir", str(folder)),
            env=environ() | {"BUNQUEUE_STORE": store},
            stderr=subprocess.PIPE,
            text=True,
        )
        wait_until(lambda: ask(store, WAITS) == [(1,)], "it waits for the store")
        assert "postgresql://" not in Path(f"/proc/{work.pid}/cmdline").read_text()
        work.send_signal(signal.SIGINT)
        _, said = work.communicate(timeout=240)
    assert work.returncode == exits.INTERRUPTED, said
    assert said == "bunqueue: interrupted; run bunqueue store adopt again to finish it\n"
    assert contents(folder) == before
    done = program("adopt", "--store", store, "--data-dir", str(folder), "--json")
    assert done == '{"shards":2,"jobs":104}\n'


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["reshard", "--shards", "4"], "has its number of shards for ever: take the jobs out of it"),
        (["accept-loss", "--shard", "0", "--yes"], "nothing is lost with shard-00.db; remove it"),
        (["doctor", "--repair"], "remove a damaged file, and the next start builds it again"),
    ],
)
def test_what_would_break_a_folder_of_a_store_is_refused(
    store: str, folder: Path, arguments: list[str], text: str
) -> None:
    adopt(store, folder, "", Progress())
    before = as_they_are(folder)
    verb, *options = arguments
    done = run(command(verb, "--data-dir", str(folder), *options), env=environ())
    assert done.returncode != exits.DONE
    assert text in " ".join(done.stderr.split())
    assert as_they_are(folder) == before


def test_embedded_jobs_are_not_mixed_with_those_of_a_store(
    database: str, stored_server: StoredServer, tmp_path: Path
) -> None:
    init(database, 1)
    server = stored_server(database, shards=1)
    server.start()
    server.stop()
    shard_file(Path(server.data_dir), 0).unlink()
    with Queue("q", embedded=True, data_path=str(tmp_path / "jobs.db")) as queue:
        queue.add("job", 1)
    done = subprocess.run(
        command("adopt", str(tmp_path / "jobs.db"), "--data-dir", str(server.data_dir)),
        env=environ(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == exits.USAGE
    assert "is a copy of what a store keeps" in done.stderr
    assert (tmp_path / "jobs.db").exists()

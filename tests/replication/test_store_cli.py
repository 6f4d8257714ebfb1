"""``bunqueue store init``, ``check``, ``status``, ``snapshot`` and ``verify``, as users call them."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from replication.conftest import SHARDS, StoredServer
from support.cli import Cli, Done
from support.naming import queue_on
from support.postgres import Postgres, ask
from support.server import NotStarted
from support.waiting import wait_until

from bunqueue import Queue
from bunqueue.cli.framework import exits
from bunqueue.server.folder.data_folder import shard_file
from bunqueue.store.setup import init

NOWHERE = "postgresql://somebody:secret@127.0.0.1:1/jobs?connect_timeout=1"


@pytest.fixture
def cli() -> Cli:
    """Commands that need no server."""
    nobody: Any = SimpleNamespace(host="127.0.0.1", port=1)
    return Cli(nobody)


@pytest.fixture
def store(database: str) -> str:
    init(database, SHARDS)
    return database


@pytest.fixture
def unprotected(cluster: Postgres) -> Iterator[None]:
    """PostgreSQL acknowledges without a standby."""

    def protect(names: str) -> None:
        cluster.leader.ask(f"alter system set synchronous_standby_names = '{names}'")
        cluster.leader.ask("select pg_reload_conf()")
        wait_until(lambda: cluster.leader.ask("show synchronous_standby_names") == [(names,)], "it is set")

    protect("")
    yield
    protect("ANY 1 (standby)")


def findings(done: Done) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for row in done.json:
        found.setdefault(row["status"], []).append(row["finding"])
    return found


# -- init and check


def test_a_store_is_made_and_checked(cli: Cli, database: str) -> None:
    before = findings(cli("store", "check", "--store", database, "--json"))
    assert any("run 'bunqueue store init'" in text for text in before["warning"])
    made = cli("store", "init", "--store", database, "--shards", "4").value
    after = findings(cli("store", "check", "--store", database, "--json"))
    assert f"store {made} for 4 shards" in after["ok"]
    assert "synchronous standbys: standby (ANY 1 (standby))" in after["ok"]
    assert any(text.startswith("a commit takes") for text in after["ok"] + after["warning"])
    again = cli("store", "init", "--store", database, "--shards", "4", status=exits.FAILED)
    assert again.err == (
        "bunqueue: the database has a store already, made for 4 shards: start with --store, or give another "
        "database\n"
    )


def test_a_postgresql_without_a_synchronous_standby_is_refused(
    cli: Cli, database: str, unprotected: None
) -> None:
    done = cli("store", "check", "--store", database, "--json", status=exits.FAILED)
    (problem,) = [row for row in done.json if row["status"] == "problem"]
    assert problem["finding"] == "no synchronous standby: what is acknowledged is lost with this one machine"
    assert "synchronous_mode_strict" in problem["fix"]
    assert "--storage-replicates" in problem["fix"]
    done = cli("store", "init", "--store", database, "--shards", "2", status=exits.FAILED)
    assert "no synchronous standby" in done.err
    assert "nothing was changed" in done.err
    assert ask(database, "select count(*) from pg_namespace where nspname = 'bunqueue'") == [(0,)]


def test_storage_that_replicates_needs_no_standby(cli: Cli, database: str, unprotected: None) -> None:
    cli("store", "check", "--store", database, "--storage-replicates")
    cli("store", "init", "--store", database, "--shards", "2", "--storage-replicates")
    cli("store", "check", "--store", database)  # the store remembers it
    found = cli("store", "status", "--store", database, "--json").json["store"]
    assert found["storageReplicates"] is True


def test_a_store_that_does_not_answer(cli: Cli) -> None:
    for verb in (["check"], ["init", "--shards", "2"], ["status"]):
        done = cli("store", *verb, "--store", NOWHERE, "--json", status=exits.NO_CONNECTION)
        assert '"code":"store_unavailable"' in done.err
        assert "the store at 127.0.0.1:1/jobs does not answer" in done.err
        assert "secret" not in done.err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["check"], "store: give --store, the variable BUNQUEUE_STORE, or a config file that names it"),
        (
            ["init", "--store", NOWHERE],
            "--shards: give the number of shards; it cannot be changed afterwards",
        ),
        (["init", "--store", NOWHERE, "--shards", "3"], "give a power of two from 1 to 64"),
        (["check", "--store", "mysql://x"], "the value (not shown) is not allowed; give a URL of PostgreSQL"),
        (["verify", "--store", NOWHERE, "--data-dir", ":memory:"], "give a data_dir that is a folder"),
        (["adopt", "--store-snapshots", "x"], "an absolute path, s3://bucket/prefix, or nothing"),
    ],
)
def test_wrong_arguments(cli: Cli, arguments: list[str], text: str) -> None:
    done = cli("store", *arguments, status=exits.USAGE)
    assert text in done.err
    assert "postgresql://" not in done.err.replace("such as postgresql://user@host/database", "")


def test_a_role_that_may_not_do_it_is_told(cli: Cli, store: str) -> None:
    name = store.rpartition("/")[2]
    ask(store, f"create role poor_{name} login")
    poor = store.replace("postgres@", f"poor_{name}@")
    try:
        done = cli("store", "status", "--store", poor, status=exits.FAILED)
        assert "the role may not read the store's tables" in done.err
        ask(store, f"grant usage on schema bunqueue to poor_{name}")
        ask(store, f"grant select on all tables in schema bunqueue to poor_{name}")
        done = cli("store", "check", "--store", poor, "--json", status=exits.FAILED)
        assert "the role may not write the log" in findings(done)["problem"]
        cli("store", "status", "--store", poor)
    finally:
        ask(store, f"drop owned by poor_{name}; drop role poor_{name}")


def test_the_url_comes_from_the_variable_or_the_file(
    cli: Cli, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "bunqueue.toml"
    config.write_text(f'store = "{store}"\n')
    assert len(cli("store", "status", "--config", str(config), "--json").json["shards"]) == SHARDS
    monkeypatch.setenv("BUNQUEUE_STORE", store)
    assert len(cli("store", "status").out.splitlines()) == SHARDS


def test_a_place_for_snapshots_that_is_none_is_a_problem(cli: Cli, store: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    where = str(tmp_path / "file")
    done = cli("store", "check", "--store", store, "--store-snapshots", where, "--json", status=exits.FAILED)
    assert any("the snapshots' place" in text for text in findings(done)["problem"])
    good = str(tmp_path / "good")
    cli("store", "check", "--store", store, "--store-snapshots", good)
    assert list(Path(good).iterdir()) == [], "the trial is removed"


# -- status, snapshot and verify


@pytest.fixture
def stopped(store: str, stored_server: StoredServer) -> tuple[str, Path]:
    """The store and the folder of a server that has ended, with jobs on both shards."""
    server = stored_server(store)
    server.start()
    for shard in range(SHARDS):
        with Queue(queue_on(shard, shards=SHARDS), port=server.port) as queue:
            queue.add_bulk([("job", number) for number in range(50)])
            job = queue.pull()
            assert job is not None
            queue.add("later", 1, delay=10**9)
    server.stop()
    return store, Path(server.data_dir)


def verify(cli: Cli, store: str, folder: Path, *more: str, status: int = exits.DONE) -> list[dict[str, Any]]:
    done = cli.program(
        "store", "verify", "--data-dir", str(folder), "--json", *more, env={"BUNQUEUE_STORE": store}
    )
    assert done.status == status, done
    found: list[dict[str, Any]] = done.json
    return found


def test_status_says_where_each_shard_is(cli: Cli, stopped: tuple[str, Path]) -> None:
    store, folder = stopped
    found = cli("store", "status", "--store", store, "--json").json
    assert found["store"]["synchronousStandbys"] == ["standby"]
    for shard, row in enumerate(found["shards"]):
        assert (row["shard"], row["owner"], row["snapshotAt"]) == (shard, None, None)
        assert row["epoch"] >= 1, "more, if PostgreSQL was slow to answer"
        assert row["position"] > 2
        assert row["log"] == row["since"] > 100
    made = cli("store", "snapshot", "--store", store, "--data-dir", str(folder), "--json").json
    assert [row["made"] for row in made] == [True, True]
    assert [row["made"] for row in again(cli, store, folder)] == [False, False], "there is nothing new"
    found = cli("store", "status", "--store", store, "--json").json
    for before, row in zip(made, found["shards"], strict=True):
        assert row["snapshot"] == row["position"] == before["position"]
        assert row["snapshotBytes"] == before["bytes"] > 1000
        assert row["since"] == 0 < row["log"]


def again(cli: Cli, store: str, folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cli(
        "store", "snapshot", "--store", store, "--data-dir", str(folder), "--json"
    ).json
    return found


def test_a_folder_of_another_store_makes_no_snapshots(
    cli: Cli, stopped: tuple[str, Path], cluster: Postgres
) -> None:
    _, folder = stopped
    other = cluster.new_database()
    init(other, SHARDS)
    done = cli("store", "snapshot", "--store", other, "--data-dir", str(folder), status=exits.FAILED)
    assert "does not belong to the store" in done.err
    done = cli("store", "snapshot", "--store", other, "--data-dir", str(folder / "no"), status=exits.FAILED)
    assert "is not one: there is no manifest.json in it" in done.err


def test_what_is_right_is_verified(cli: Cli, stopped: tuple[str, Path]) -> None:
    """From the whole log, from a snapshot, of one shard, and of a folder that has no copies."""
    store, folder = stopped
    rows = verify(cli, store, folder)
    assert [(row["status"], row["begun"], row["problems"]) for row in rows] == [("ok", 0, [])] * SHARDS
    assert all(row["compared"] == [row["position"]] for row in rows)
    again(cli, store, folder)
    rows = verify(cli, store, folder, "--shard", "1")
    assert [(row["shard"], row["compared"]) for row in rows] == [(1, [rows[0]["position"]] * 2)]
    rows = verify(cli, store, folder / "elsewhere")
    assert [(row["status"], len(row["compared"])) for row in rows] == [("ok", 1)] * SHARDS
    assert not list(folder.glob(".*")), "nothing is left behind"


def change_file(store: str, folder: Path) -> None:
    with closing(sqlite3.connect(shard_file(folder, 1))) as file:
        file.execute("update jobs set priority = 7 where seq = (select max(seq) from jobs)")
        file.commit()


def change_queue(store: str, folder: Path) -> None:
    with closing(sqlite3.connect(shard_file(folder, 1))) as file:
        file.execute("update queues set created_at = created_at + 1")
        file.commit()


def lose_record(store: str, folder: Path) -> None:
    ask(store, "delete from bunqueue.log where shard = 1 and seq = 2")


def lose_end(store: str, folder: Path) -> None:
    ask(store, "delete from bunqueue.log where shard = 1 and seq > 2")


def spoil_record(store: str, folder: Path) -> None:
    ask(store, "update bunqueue.log set body = '\\xff00' where shard = 1 and seq = 2")


def spoil_snapshot(store: str, folder: Path) -> None:
    ask(
        store,
        "update bunqueue.snapshot_chunks set body = overlay(body placing '\\x00ff' from 200) where shard = 1",
    )


WRONG: list[tuple[Callable[[str, Path], None], bool, str]] = [
    (change_file, False, "the folder's file at "),
    (change_queue, False, ": queues, row 1: "),
    (lose_record, False, "position 2 is missing"),
    (lose_end, False, "the log ends at 2"),
    (spoil_record, False, "a record of the log cannot be read"),
    (spoil_snapshot, True, "is damaged"),
]


@pytest.mark.parametrize(
    ("spoil", "has_snapshots", "text"), WRONG, ids=[wrong[0].__name__ for wrong in WRONG]
)
def test_what_is_wrong_is_found(
    cli: Cli,
    stopped: tuple[str, Path],
    spoil: Callable[[str, Path], None],
    has_snapshots: bool,
    text: str,
) -> None:
    store, folder = stopped
    if has_snapshots:
        again(cli, store, folder)
    spoil(store, folder)
    good, bad = verify(cli, store, folder, status=exits.FAILED)
    assert good["status"] == "ok"
    assert bad["status"] == "problem"
    assert text in bad["problems"][0], bad


def test_a_server_at_work_is_verified(cli: Cli, store: str, stored_server: StoredServer) -> None:
    server = stored_server(store)
    server.start()
    with Queue("q", port=server.port) as queue:
        queue.add_bulk([("job", number) for number in range(1000)])
    assert {row["status"] for row in verify(cli, store, Path(server.data_dir))} == {"ok"}
    server.kill_all()
    server.until_gone()
    assert {row["status"] for row in verify(cli, store, Path(server.data_dir))} == {"ok"}


def test_a_file_that_is_too_old_is_not_compared(cli: Cli, stopped: tuple[str, Path], tmp_path: Path) -> None:
    """What its log was is in a snapshot."""
    store, folder = stopped
    old = tmp_path / "old.db"
    shutil.copy(shard_file(folder, 0), old)
    with closing(sqlite3.connect(old)) as file:
        file.execute("update meta set value = '1' where key = 'applied'")
        file.commit()
    again(cli, store, folder)
    ask(store, "delete from bunqueue.log where shard = 0")
    shutil.copy(old, shard_file(folder, 0))
    row, _ = verify(cli, store, folder, status=exits.FAILED)
    assert "the folder's file is at position 1, and the log goes back to" in row["problems"][0]


def test_on_a_terminal_there_are_tables(cli: Cli, stopped: tuple[str, Path]) -> None:
    store, _ = stopped
    terminal = cli.terminal("store", "status", "--store", store)
    try:
        said = terminal.end().out
    finally:
        terminal.dispose()
    assert "snapshot at" in said
    assert "log kept" in said


def test_without_psycopg_the_start_says_what_to_install(
    store: str, stored_server: StoredServer, tmp_path: Path
) -> None:
    (tmp_path / "blocked").mkdir()
    (tmp_path / "blocked" / "psycopg.py").write_text("raise ImportError('not installed')\n")
    server = stored_server(store)
    server.environ = {"PYTHONPATH": f"{tmp_path / 'blocked'}:{os.getcwd()}"}
    with pytest.raises(NotStarted) as caught:
        server.start()
    assert caught.value.refusals == ["bunqueue: store: a store needs psycopg: pip install 'bunqueue[store]'"]

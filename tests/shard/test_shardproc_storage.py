"""A shard's file: who may open it, what is written when, and what others read in it."""

from __future__ import annotations

import gc
import os
import re
import sqlite3
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgpack
import pytest
from engine.shard_driver import Driver

from bunqueue.protocol.codec import encode_frame
from bunqueue.protocol.framing import HEADER, MAX_FRAME
from bunqueue.protocol.measure import MAX_BYTES
from shardproc.core import Shard
from shardproc.storage import database, schema, store
from shardproc.storage.database import Database, DatabaseBusy
from shardproc.storage.schema import CURRENT, OF_JOBS, TABLES, Table, WrongSchema

NAMES = {table.name for table in TABLES}
ROOT = Path(schema.__file__).parents[1]


def names(connection: sqlite3.Connection, kind: str) -> set[str]:
    query = "select name from sqlite_master where type = ? and name not like 'sqlite_%'"
    return {name for (name,) in connection.execute(query, (kind,))}


# -- opening ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", [":memory:", "file"])
def test_the_schema_applies(where: str, path: str) -> None:
    opened = Database(path if where == "file" else where, full_sync=False)
    assert names(opened.connection, "table") == NAMES
    assert names(opened.connection, "view") == {"cron", "job_history"}
    assert opened.connection.execute("pragma user_version").fetchone() == (CURRENT,)
    opened.close()


# Times that no statement of `TABLES` shifts, and why.
KEPT_TIMES = {
    ("queues", "created_at"): "nothing is counted from it",
    ("locks", "started_at"): "live jobs are shifted in memory, and written as they are then",
    ("locks", "until"): "like started_at",
    ("dead_letters", "next_retry_at"): "MOVE_RETRIES shifts it, as the engine has to know of it",
}


def test_the_list_of_tables_agrees_with_the_schema() -> None:
    """Whoever adds a table, or a time, declares it there."""
    opened = Database(":memory:", full_sync=False)
    kept = set()
    for table in TABLES:
        columns = opened.connection.execute(f"pragma table_info({table.name})").fetchall()
        key = {place: name for _, name, *_, place in columns if place}
        assert table.key == tuple(key[place] for place in sorted(key)), table.name
        times = {name for _, name, *_ in columns if re.fullmatch(r"at|since|until|\w+_at", name)}
        if not table.is_derived:
            kept |= {(table.name, name) for name in times if not re.search(rf"\b{name} =", table.shift)}
        _check_statements(table, {name for _, name, *_ in columns})
    opened.close()
    assert kept == set(KEPT_TIMES)
    assert OF_JOBS[0].name == "jobs"


def _check_statements(table: Table, columns: set[str]) -> None:
    assert (table.of == "job") == (not table.is_derived and "seq" in columns)
    assert bool(table.delete) == (table.of == "job" and table.name != "locks")
    if table.delete:
        assert table.delete.startswith(f"delete from {table.name} where ")
        assert "seq between ? and ?" in table.delete
    if table.shift:
        assert re.match(rf"update (or ignore )?{table.name} set ", table.shift)


def test_opening_again_changes_nothing(path: str) -> None:
    one = Database(path, full_sync=False)
    before = one.connection.execute("select sql from sqlite_master order by name").fetchall()
    one.close()
    two = Database(path, full_sync=False)
    assert two.connection.execute("select sql from sqlite_master order by name").fetchall() == before
    two.close()


@pytest.mark.parametrize(("full_sync", "level"), [(False, 1), (True, 2)])
def test_pragmas(path: str, full_sync: bool, level: int) -> None:
    opened = Database(path, full_sync=full_sync)
    for pragma, value in (
        ("journal_mode", "wal"),
        ("synchronous", level),
        ("page_size", database.PAGE_SIZE),
        ("wal_autocheckpoint", database.CHECKPOINT_PAGES),
    ):
        assert opened.connection.execute(f"pragma {pragma}").fetchone() == (value,)
    opened.close()


def made_by_another_version(path: str, version: int = CURRENT + 1) -> None:
    Database(path, full_sync=False).close()
    other = sqlite3.connect(path)
    other.execute(f"pragma user_version = {version}")
    other.close()


def problem_of_opening(path: str) -> str:
    """Why a file cannot be opened; "" when it can."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # see test_a_refused_file_is_let_go
        try:
            Database(path, full_sync=False).close()
        except (WrongSchema, DatabaseBusy, sqlite3.Error) as error:
            text = f"{type(error).__name__}: {error}"
        else:
            text = ""
        gc.collect()
    return text


@pytest.mark.parametrize(
    ("version", "words"),
    [
        (CURRENT + 1, "by a newer version (schema {}, this one knows {}): install that version or restore"),
        (CURRENT - 1, "by a version before 0.1.0 (schema {}, this one knows {}): finish its jobs with that"),
    ],
)
def test_a_file_of_another_version_is_refused(path: str, version: int, words: str) -> None:
    made_by_another_version(path, version)
    before = Path(path).read_bytes()
    text = problem_of_opening(path)
    assert text.startswith("WrongSchema")
    assert words.format(version, CURRENT) in text
    assert "\n" not in text
    assert Path(path).read_bytes() == before


def test_a_refused_file_is_let_go(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "LOCK_WAIT_S", 0.0)
    made_by_another_version(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            Database(path, full_sync=False)
        except WrongSchema:
            second = problem_of_opening(path)
        gc.collect()
    assert second.startswith("WrongSchema"), "and not DatabaseBusy"


# -- one owner -------------------------------------------------------------------------------------

OWNER = """
import sys
from shardproc.storage.database import Database
opened = Database(sys.argv[1], full_sync=False)
print("open", flush=True)
sys.stdin.read()
opened.close()
"""


@contextmanager
def python(code: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Another process; it is gone when the block ends."""
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def test_a_second_owner_is_refused(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "LOCK_WAIT_S", 0.0)
    with python(OWNER, path) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "open\n"
        with pytest.raises(DatabaseBusy) as caught:
            Database(path, full_sync=False)
        text = str(caught.value)
        assert path in text
        assert "in use" in text
        assert "\n" not in text


@pytest.mark.parametrize("how", ["closes", "is killed"])
def test_the_next_owner_waits_for_the_last(path: str, how: str) -> None:
    with python(OWNER, path) as owner:
        assert owner.stdout is not None
        assert owner.stdin is not None
        assert owner.stdout.readline() == "open\n"
        if how == "closes":
            owner.stdin.close()
        else:
            owner.kill()
        opened = Database(path, full_sync=False)  # LOCK_WAIT_S is time enough
        opened.close()


def test_a_second_owner_in_the_same_process_is_refused(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "LOCK_WAIT_S", 0.0)
    one = Database(path, full_sync=False)
    with pytest.raises(DatabaseBusy):
        Database(path, full_sync=False)
    one.close()
    Database(path, full_sync=False).close()


def test_files_of_other_shards_are_not_concerned(tmp_path: Path) -> None:
    opened = [Database(str(tmp_path / f"shard-{number:02d}.db"), full_sync=False) for number in range(3)]
    for one in opened:
        one.close()


DIES = """
import os, sqlite3, sys
from shardproc.core import Shard
from shardproc.storage import database
connect = sqlite3.connect
def watched(*arguments, **options):
    connection = connect(*arguments, **options)
    connection.set_trace_callback(lambda sql: os._exit(9) if sys.argv[2] in sql else None)
    return connection
database.sqlite3.connect = watched
database.Database(sys.argv[1], full_sync=False)
"""


@pytest.mark.parametrize(
    "at",
    [
        "create table meta",
        *(
            statement
            for statement in (
                "create table queues",
                "create table locks",
                "create view",
                "pragma user_version =",
            )
        ),
    ],
)
def test_a_kill_while_the_file_is_made(path: str, at: str) -> None:
    with python(DIES, path, at) as process:
        assert process.wait() == 9
    assert problem_of_opening(path) == ""
    opened = Database(path, full_sync=False)
    assert names(opened.connection, "table") == NAMES
    opened.close()


# -- what is flushed when --------------------------------------------------------------------------


@pytest.fixture
def flushes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The file descriptors that were flushed; they really are."""
    seen: list[int] = []
    real = os.fdatasync

    def spy(descriptor: int) -> None:
        seen.append(descriptor)
        real(descriptor)

    monkeypatch.setattr(os, "fdatasync", spy)
    return seen


def test_a_durable_push_is_flushed_once_a_batch(driver: Driver, flushes: list[int]) -> None:
    driver.ask(cmd="PUSH", queue="q")
    assert flushes == []
    driver.ask(cmd="PUSH", queue="q", durable=True)
    assert len(flushes) == 1
    driver.batch([{"cmd": "PUSH", "queue": "q", "durable": number % 2 == 0} for number in range(10)])
    assert len(flushes) == 2
    driver.ask(cmd="PUSHB", queue="q", jobs=[{}, {"durable": True}, {}])
    assert len(flushes) == 3
    driver.ask(cmd="PULL", queue="q")
    assert len(flushes) == 3


def test_what_is_flushed_is_the_log(driver: Driver, path: str, flushes: list[int]) -> None:
    driver.ask(cmd="PUSH", queue="q", durable=True)
    assert os.path.samefile(f"/proc/self/fd/{flushes[0]}", f"{path}-wal")


def test_a_durable_push_that_is_refused_flushes_nothing(driver: Driver, flushes: list[int]) -> None:
    assert driver.ask(cmd="PUSH", queue="bad name", durable=True)["ok"] is False
    driver.ask(cmd="PUSH", queue="q")
    assert flushes == []


@pytest.mark.parametrize(
    "known", [{"uniqueKey": "k"}, {"jobId": "own"}, {"idempotencyKey": "again", "tags": []}]
)
def test_a_durable_push_of_what_is_there_flushes_it(
    driver: Driver, flushes: list[int], known: dict[str, Any]
) -> None:
    """Who repeats a push because its answer was lost is promised as much as with the first answer."""
    first = driver.ask(cmd="PUSH", queue="q", **known)
    assert flushes == []
    assert driver.ask(cmd="PUSH", queue="q", durable=True, **known)["id"] == first["id"]
    assert len(flushes) == 1


def test_with_full_sync_sqlite_flushes_itself(path: str, flushes: list[int]) -> None:
    driver = Driver(path, full_sync=True)
    driver.ask(cmd="PUSH", queue="q", durable=True)
    driver.close()
    assert flushes == []


def test_in_memory_there_is_nothing_to_flush(flushes: list[int]) -> None:
    driver = Driver()
    assert driver.ask(cmd="PUSH", queue="q", durable=True)["ok"]
    driver.close()
    assert flushes == []


# -- one transaction and one write a batch --------------------------------------------------------------


def statements(driver: Driver, requests: list[dict[str, Any]]) -> list[str]:
    """The statements of one batch, as SQLite saw them."""
    seen: list[str] = []
    connection = driver.shard.store.database.connection
    connection.set_trace_callback(seen.append)
    driver.batch(requests)
    connection.set_trace_callback(None)
    return [" ".join(sql.lower().split()) for sql in seen]


def test_a_batch_is_one_transaction(driver: Driver) -> None:
    seen = statements(driver, [{"cmd": "PUSH", "queue": "q"}] * 20 + [{"cmd": "PULL", "queue": "q"}] * 10)
    assert [sql for sql in seen if sql.startswith(("begin", "commit", "rollback"))] == [
        "begin immediate",
        "commit",
    ]


def test_a_batch_that_only_reads_is_no_transaction(driver: Driver) -> None:
    driver.ask(cmd="PUSH", queue="q")
    reads: list[dict[str, Any]] = [
        {"cmd": "GetJobs", "queue": "q"},
        {"cmd": "GetJobCounts", "queue": "q"},
        {"cmd": "GetState", "id": "x"},
        {"cmd": "Dlq", "queue": "q"},
        {"cmd": "Stats"},
    ]
    assert not [sql for sql in statements(driver, reads) if not sql.startswith("select")]


def changes(driver: Driver, requests: list[dict[str, Any]]) -> int:
    """How many rows a batch wrote, but for those that are one for many jobs: of the event log, and of when
    jobs of a block finished."""
    connection = driver.shard.store.database.connection
    shared, before = _shared_rows(driver), connection.total_changes
    driver.batch(requests)
    return connection.total_changes - before - (_shared_rows(driver) - shared)


def _shared_rows(driver: Driver) -> int:
    query = "select (select count(*) from events) + (select count(*) from search_finishes)"
    return int(driver.rows(query)[0][0])


def test_a_job_is_written_once_a_batch_however_often_it_moves(driver: Driver) -> None:
    job_id = driver.ask(cmd="PUSH", queue="q")["id"]
    busy: list[dict[str, Any]] = [{"cmd": "PULL", "queue": "q"}]
    busy += [{"cmd": "Progress", "id": job_id, "progress": number} for number in range(10)]
    busy += [{"cmd": "JobHeartbeat", "id": job_id}] * 10
    assert changes(driver, busy) == 1, "its lock"
    assert changes(driver, [{"cmd": "Progress", "id": job_id, "progress": 5}] * 10) == 1
    done: list[dict[str, Any]] = [
        {"cmd": "Progress", "id": job_id, "progress": 50},
        {"cmd": "ACK", "id": job_id, "result": 1},
    ]
    assert changes(driver, done) == 3, "its outcome comes, its lock goes, its queue counts it"


def pushed_in_a_batch(driver: Driver, **options: Any) -> str:
    """The id of a job whose push is not yet committed."""
    ((_, reply),) = driver.execute(1, msgpack.packb({"cmd": "PUSH", "queue": "q", **options}))
    return str(reply["id"])


def test_a_whole_life_in_one_batch_is_a_job_and_its_outcome(driver: Driver) -> None:
    driver.ask(cmd="PUSH", queue="q", delay=60_000)  # the queue itself is a row
    job_id = pushed_in_a_batch(driver)
    rest: list[dict[str, Any]] = [
        {"cmd": "PULL", "queue": "q"},
        {"cmd": "Progress", "id": job_id, "progress": 5},
        {"cmd": "ACK", "id": job_id, "result": 1},
    ]
    assert changes(driver, rest) == 3


def test_only_the_first_heartbeat_is_written(driver: Driver) -> None:
    job_id = driver.ask(cmd="PUSH", queue="q")["id"]
    token = driver.ask(cmd="PULL", queue="q", owner="w")["token"]
    beat = {"cmd": "JobHeartbeat", "id": job_id, "token": token}
    assert changes(driver, [{"cmd": "JobHeartbeat", "id": job_id}] * 5) == 0, "no token, no renewal"
    assert changes(driver, [beat] * 5) == 1, "that it was renewed; until when is not kept"
    assert changes(driver, [beat] * 5) == 0


def test_a_job_that_comes_and_goes_within_a_batch_leaves_no_row(driver: Driver) -> None:
    driver.ask(cmd="PUSH", queue="q", delay=60_000)
    job_id = pushed_in_a_batch(driver, removeOnComplete=True)
    assert changes(driver, [{"cmd": "PULL", "queue": "q"}, {"cmd": "ACK", "id": job_id}]) == 0
    assert driver.rows("select count(*) from jobs") == [(1,)]


@pytest.mark.parametrize("take", [1, 2, 3, 7, 50])
def test_locks_of_neighbours_end_together_and_of_others_stay(driver: Driver, take: int) -> None:
    """Locks are deleted by ranges of numbers; no other job's lock may be in a range."""
    driver.ask(cmd="PUSHB", queue="q", jobs=[{}] * 50)
    jobs = driver.ask(cmd="PULLB", queue="q", count=50)["jobs"]
    done = [job["id"] for job in jobs[::take]]
    driver.ask(cmd="ACKB", ids=done)
    left = driver.rows("select jobs.id from locks join jobs using (seq)")
    assert {job_id for (job_id,) in left} == {job["id"] for job in jobs} - set(done)
    assert driver.rows("select count(*) from completed") == [(len(done),)]


# -- attempts --------------------------------------------------------------------------------------


def attempts(driver: Driver) -> list[tuple[Any, ...]]:
    return driver.rows("select number, worker, outcome, error, stack from attempts order by seq, number")


def test_every_failed_attempt_has_a_row(driver: Driver) -> None:
    job_id = driver.ask(cmd="PUSH", queue="q", backoff=0, maxAttempts=2)["id"]
    token = driver.ask(cmd="PULL", queue="q", owner="w1")["token"]
    driver.ask(cmd="FAIL", id=job_id, token=token, error="one", stack=["a", "b"])
    driver.ask(cmd="PULL", queue="q")
    driver.ask(cmd="FAIL", id=job_id, error="two")
    first, second = attempts(driver)
    assert first == (1, "w1", "explicit_fail", "one", "a\nb")
    assert (second[0], second[2:]) == (2, ("explicit_fail", "two", None))
    assert not second[1]


def test_attempts_of_timeouts_and_lost_locks(driver: Driver) -> None:
    driver.ask(cmd="PUSH", queue="q", timeout=10, backoff=0)
    driver.ask(cmd="PULL", queue="q")
    driver.tick(driver.now + 10)
    driver.ask(cmd="PULL", queue="q", owner="w", lockTtl=1)
    driver.tick(driver.now + 5000)
    driver.commit()
    outcomes = [(number, outcome) for number, _, outcome, _, _ in attempts(driver)]
    # the second attempt ran into its timeout before the sweep looked at its lock
    assert outcomes == [(1, "timeout"), (2, "timeout")]
    driver.ask(cmd="PUSH", queue="p")
    driver.ask(cmd="PULL", queue="p", owner="w", lockTtl=1)
    driver.tick(driver.now + 5000)
    driver.commit()
    assert [(number, outcome) for number, _, outcome, _, _ in attempts(driver)][-1] == (1, "stalled")


def test_attempts_outlive_retry_and_restart(path: str) -> None:
    driver = Driver(path)
    job_id = driver.ask(cmd="PUSH", queue="q", maxAttempts=1)["id"]
    for number in range(3):
        driver.tick(driver.now + 10)
        driver.ask(cmd="PULL", queue="q")
        driver.ask(cmd="FAIL", id=job_id, error=f"e{number}")
        driver.ask(cmd="RetryDlq", queue="q")
    driver.close()
    driver = Driver(path, now=driver.now)
    assert [error for _, _, _, error, _ in attempts(driver)] == ["e0", "e1", "e2"]
    driver.close()


def test_attempts_go_with_their_job(driver: Driver) -> None:
    job_id = driver.ask(cmd="PUSH", queue="q", backoff=0, removeOnComplete=True)["id"]
    driver.ask(cmd="PULL", queue="q")
    driver.ask(cmd="FAIL", id=job_id)
    assert len(attempts(driver)) == 1
    driver.ask(cmd="PULL", queue="q")
    driver.ask(cmd="ACK", id=job_id)
    assert driver.rows("select count(*) from jobs") == [(0,)]
    assert attempts(driver) == []


@pytest.mark.parametrize("batched", [False, True])
def test_the_last_attempt_goes_with_its_job(driver: Driver, batched: bool) -> None:
    job_id = driver.ask(cmd="PUSH", queue="q", maxAttempts=1, removeOnFail=True)["id"]
    requests = [{"cmd": "PULL", "queue": "q"}, {"cmd": "FAIL", "id": job_id}]
    if batched:
        driver.batch(requests)
    else:
        for request in requests:
            driver.ask(**request)
    assert driver.rows("select count(*) from jobs") == [(0,)]
    assert attempts(driver) == []


def test_long_errors_and_stacks_are_cut(driver: Driver) -> None:
    job_id = driver.ask(cmd="PUSH", queue="q", maxAttempts=1)["id"]
    driver.ask(cmd="PULL", queue="q")
    driver.ask(cmd="FAIL", id=job_id, error="e" * 200_000, stack="s" * 200_000)
    ((_, _, _, error, stack),) = attempts(driver)
    assert (len(error), len(stack)) == (65_536, 16_384)
    (job,) = driver.ask(cmd="Dlq", queue="q")["jobs"]
    assert job["failedReason"] == "e" * 65_536


# -- the view for people ------------------------------------------------------------------------------


def test_job_history_shows_the_states(path: str) -> None:
    driver = Driver(path, now=time.time_ns() // 1_000_000)  # the view compares with SQLite's clock
    ids: dict[str, str] = {}
    for name in ("completed", "failed", "retried", "active"):
        ids[name] = driver.ask(cmd="PUSH", queue="q", name=name, maxAttempts=2, priority=9)["id"]
    driver.ask(cmd="PULLB", queue="q", count=3, owner="w1")
    tokens = {
        job.id: job.lock.token for job in driver.shard.engine.state.jobs.values() if job.lock is not None
    }
    driver.ask(cmd="ACK", id=ids["completed"], token=tokens[ids["completed"]])
    driver.ask(cmd="FAIL", id=ids["failed"], token=tokens[ids["failed"]], error="dead", unrecoverable=True)
    driver.ask(cmd="FAIL", id=ids["retried"], token=tokens[ids["retried"]], error="once")
    driver.ask(cmd="PULL", queue="q", owner="w2")
    ids["waiting"] = driver.ask(cmd="PUSH", queue="q", name="waiting", priority=3)["id"]
    ids["delayed"] = driver.ask(cmd="PUSH", queue="q", name="delayed", delay=600_000)["id"]
    columns = "name, id, queue, state, attempts, worker, failure_reason, error, priority"
    found = {row[0]: row[1:] for row in driver.rows(f"select {columns} from job_history")}
    assert found == {
        "completed": (ids["completed"], "q", "completed", 0, "w1", None, None, 9),
        "failed": (ids["failed"], "q", "failed", 1, "w1", "unrecoverable", "dead", 9),
        "retried": (ids["retried"], "q", "delayed", 1, None, None, "once", 9),
        "active": (ids["active"], "q", "active", 0, "w2", None, None, 9),
        "waiting": (ids["waiting"], "q", "waiting", 0, None, None, None, 3),
        "delayed": (ids["delayed"], "q", "delayed", 0, None, None, None, 0),
    }
    times = driver.rows("select name, started_at, finished_at from job_history")
    assert {name for name, started, _ in times if started is not None} == {"completed", "failed", "active"}
    assert {name for name, _, finished in times if finished is not None} == {"completed", "failed"}
    driver.close()


def test_job_history_has_one_row_a_job_through_a_whole_life(driver: Driver) -> None:
    job_id = driver.ask(cmd="PUSH", queue="q", maxAttempts=1)["id"]

    def state() -> str:
        ((found,),) = driver.rows("select state from job_history where id = ?", job_id)
        return str(found)

    for _ in range(3):
        assert state() == "waiting"
        driver.tick(driver.now + 10)
        driver.ask(cmd="PULL", queue="q")
        assert state() == "active"
        driver.ask(cmd="FAIL", id=job_id)
        assert state() == "failed"
        driver.ask(cmd="RetryDlq", queue="q")
    driver.ask(cmd="PULL", queue="q")
    driver.ask(cmd="ACK", id=job_id)
    assert state() == "completed"


def test_others_may_read_while_the_shard_writes(driver: Driver, path: str) -> None:
    driver.ask(cmd="PUSH", queue="q")
    reader = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    reader.execute("begin")
    assert reader.execute("select count(*) from job_history").fetchone() == (1,)
    driver.ask(cmd="PUSH", queue="q")
    assert reader.execute("select count(*) from job_history").fetchone() == (1,)
    reader.execute("commit")
    assert reader.execute("select count(*) from job_history").fetchone() == (2,)
    reader.close()


# -- recovery ----------------------------------------------------------------------------------------


def test_progress_of_recovery_is_reported(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(path)
    driver.ask(cmd="PUSHB", queue="q", jobs=[{}] * 25)
    driver.close()
    monkeypatch.setattr(store, "PROGRESS_EVERY", 10)
    seen: list[tuple[int, int]] = []
    shard = Shard(path, full_sync=False)
    assert shard.recover(driver.now, "epoch", lambda *numbers: seen.append(numbers)) == 25
    shard.close()
    assert seen == [(10, 25), (20, 25)]


@pytest.mark.parametrize(
    ("epoch", "live", "holders"), [("same", [1], {1}), ("same", [], {0}), ("new", [1], {0})]
)
def test_connections_of_an_earlier_router_mean_nothing(
    path: str, epoch: str, live: list[int], holders: set[int]
) -> None:
    driver = Driver(path, epoch="same")
    driver.ask(cmd="PUSH", queue="q")
    driver.ask(cmd="PULL", queue="q", owner="w")
    driver.close()
    driver = Driver(path, epoch=epoch, live=live)
    assert driver.held().keys() == holders
    driver.close()


def test_numbers_of_jobs_go_on_after_a_restart(path: str) -> None:
    driver = Driver(path)
    driver.ask(cmd="PUSHB", queue="q", jobs=[{}] * 3)
    driver.ask(cmd="PUSH", queue="p")
    driver.close()
    driver = Driver(path, now=driver.now + 1)
    driver.ask(cmd="PUSH", queue="new")
    assert driver.rows("select seq from jobs order by seq") == [(1,), (2,), (3,), (4,), (5,)]
    assert driver.rows("select id, name from queues order by id") == [(1, "q"), (2, "p"), (3, "new")]
    driver.close()


def test_what_was_not_committed_is_not_there(path: str) -> None:
    driver = Driver(path)
    driver.ask(cmd="PUSH", queue="q")
    driver.execute(1, msgpack.packb({"cmd": "PUSH", "queue": "q"}))
    driver.shard.store.close()  # as an error in the shard ends it
    again = Driver(path)
    assert again.ask(cmd="Count", queue="q")["count"] == 1
    again.close()


# -- large payloads --------------------------------------------------------------------------------------

MIB = 1024 * 1024


def frame_of(driver: Driver, **request: Any) -> tuple[bytes, dict[str, Any]]:
    """The reply to a command as a frame, and what is in it."""
    before = len(driver.shard.engine.out.replies)
    driver.shard.execute(driver.shard.client(1, 2), msgpack.packb(request), driver.now)
    (_, reply), *more = driver.shard.engine.out.replies[before:]
    assert not more
    frame = encode_frame(reply)
    driver.shard.commit()
    found = msgpack.unpackb(frame[HEADER:], max_str_len=MAX_FRAME * 2, max_bin_len=MAX_FRAME * 2)
    return frame, found


def test_a_batch_stops_near_32_mib() -> None:
    driver = Driver()
    for _ in range(5):
        assert driver.ask(cmd="PUSH", queue="q", data="x" * (9 * MIB))["ok"]
    frame, reply = frame_of(driver, cmd="PULLB", queue="q", count=10, owner="w")
    assert len(reply["jobs"]) == len(reply["tokens"]) == 3
    assert 27 * MIB <= len(frame) <= 32 * MIB
    ids = [job["id"] for job in reply["jobs"]]
    counts = driver.ask(cmd="GetJobCounts", queue="q")["counts"]
    assert (counts["waiting"], counts["active"]) == (2, 3)
    _, reply = frame_of(driver, cmd="PULLB", queue="q", count=10, owner="w")
    ids += [job["id"] for job in reply["jobs"]]
    assert len(ids) == 5, "what was left behind is still there"
    assert ids == sorted(ids), "and in its place"
    assert driver.ask(cmd="GetJobCounts", queue="q")["counts"]["active"] == 5
    driver.close()


def test_a_page_that_does_not_fit_ends_sooner() -> None:
    driver = Driver()
    for _ in range(7):
        driver.ask(cmd="PUSH", queue="q", data="x" * (9 * MIB))
    frame, reply = frame_of(driver, cmd="GetJobs", queue="q")
    assert len(frame) <= MAX_FRAME
    assert reply["more"]
    frame, rest = frame_of(driver, cmd="GetJobs", queue="q", cursor=reply["cursor"])
    assert len(frame) <= MAX_FRAME
    assert len(reply["jobs"]) + len(rest["jobs"]) == 7
    driver.close()


@pytest.mark.parametrize(("extra", "ok"), [(0, True), (1, False)])
def test_ten_megabytes_of_json_are_the_limit(extra: int, ok: bool) -> None:
    driver = Driver()
    data = "x" * (10 * MIB - 2 + extra)  # and two quotes
    reply = driver.ask(cmd="PUSH", queue="q", data=data)
    assert reply["ok"] is ok
    if not ok:
        assert reply["error"] == "Job data too large (max 10MB)"
        assert driver.ask(cmd="PUSHB", queue="q", jobs=[{}, {"data": data}])["error"] == (
            "jobs[1]: Job data too large (max 10MB)"
        )
        assert driver.ask(cmd="Count", queue="q")["count"] == 0
    driver.close()


def test_data_that_is_short_as_json_and_long_as_messagepack() -> None:
    """Small extensions are nothing in JSON.  The most that is taken is delivered, one byte more refused."""
    driver, (count, rest) = Driver(), divmod(MAX_BYTES - 5, 18)
    head = b"\xdd" + (count + 1).to_bytes(4, "big") + (b"\xd8\x05" + bytes(16)) * count
    largest, larger = (head + msgpack.packb("x" * (rest - 1 + more)) for more in (0, 1))
    assert len(largest) == MAX_BYTES
    push = b"\x83" + msgpack.packb({"cmd": "PUSH", "queue": "q"})[1:] + msgpack.packb("data")
    (_, reply), *_ = driver.execute(1, push + largest)
    assert reply["ok"]
    (_, reply), *_ = driver.execute(1, push + larger)
    refused = f"Job data too large ({MAX_BYTES + 1} bytes of MessagePack, max {MAX_BYTES})"
    assert reply["error"] == refused
    driver.commit()
    driver.shard.execute(driver.shard.client(1, 2), msgpack.packb({"cmd": "PULL", "queue": "q"}), driver.now)
    ((_, found),) = driver.shard.commit()
    assert MAX_BYTES < len(encode_frame(found)) - HEADER <= MAX_FRAME
    driver.close()


def test_a_batch_of_wide_characters_fits_into_a_frame() -> None:
    """Four bytes in MessagePack, one character of JSON: within the limit of 10 MB of JSON text."""
    driver = Driver()
    for size in (15 * MIB // 2, 10 * MIB - 2):
        assert driver.ask(cmd="PUSH", queue="q", data="\N{ROCKET}" * size)["ok"]
    frame, _ = frame_of(driver, cmd="PULLB", queue="q", count=10)
    driver.close()
    assert len(frame) - HEADER <= MAX_FRAME


def test_a_job_with_large_data_and_a_large_result_fits_into_a_frame() -> None:
    driver = Driver()
    job_id = driver.ask(cmd="PUSH", queue="q", data="x" * (9 * MIB))["id"]
    driver.ask(cmd="PULL", queue="q")
    assert driver.ask(cmd="ACK", id=job_id, result="y" * (58 * MIB))["ok"]
    frame, _ = frame_of(driver, cmd="GetJob", id=job_id)
    driver.close()
    assert len(frame) - HEADER <= MAX_FRAME


@pytest.mark.parametrize(
    "field",
    [{"name": "n" * (33 * MIB)}, {"uniqueKey": "k" * (33 * MIB)}, {"tags": ["t" * MIB] * 33}],
    ids=["name", "uniqueKey", "tags"],
)
def test_a_batch_of_jobs_with_long_texts_fits_into_a_frame(field: dict[str, Any]) -> None:
    driver = Driver()
    for number in range(2):
        driver.ask(cmd="PUSH", queue="q", priority=number, **field)
        if "uniqueKey" in field:
            field = {"uniqueKey": field["uniqueKey"] + "2"}
    frame, _ = frame_of(driver, cmd="PULLB", queue="q", count=10)
    driver.close()
    assert len(frame) - HEADER <= MAX_FRAME


@pytest.mark.nightly
def test_jobs_that_failed_at_length_fit_into_a_frame() -> None:
    """A job without data tells each of its failures, in up to 64 Ki characters."""
    driver, count = Driver(), 45
    ids = driver.ask(cmd="PUSHB", queue="q", jobs=[{"maxAttempts": 20, "backoff": 0}] * count)["ids"]
    for _ in range(6):
        while driver.ask(cmd="PULLB", queue="q", count=20)["jobs"]:
            pass
        for job_id in ids:
            driver.ask(cmd="FAIL", id=job_id, error="\N{ROCKET}" * 65_536)
    listed, page = frame_of(driver, cmd="GetJobs", queue="q")
    assert len(listed) - HEADER <= MAX_FRAME
    assert 0 < len(page["jobs"]) < count
    assert page["more"]
    frame, pulled = frame_of(driver, cmd="PULLB", queue="q", count=1000)
    driver.close()
    assert len(frame) - HEADER <= MAX_FRAME
    assert 0 < len(pulled["jobs"]) < count


def test_an_answer_that_fits_into_no_frame_is_an_error() -> None:
    driver = Driver()
    children = [f"c{number}" for number in range(8)]
    for child in children:
        driver.ask(cmd="PUSH", queue="q", jobId=child)
        driver.ask(cmd="PULL", queue="q")
        driver.ask(cmd="ACK", id=child, result="r" * (9 * MIB))
    parent = driver.ask(cmd="PUSH", queue="q", childrenIds=children)["id"]
    frame, reply = frame_of(driver, cmd="GetChildrenValues", id=parent, reqId=7)
    driver.close()
    assert reply["ok"] is False
    assert reply["reqId"] == 7
    assert reply["error"].endswith(f"does not fit into a frame (max {MAX_FRAME})")
    assert len(frame) < 1000

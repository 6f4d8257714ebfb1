"""The event log: whole, in order, numbered for ever, and no longer than it may be."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgpack
import pytest
from engine.shard_driver import Driver
from hypothesis import given, settings
from hypothesis import strategies as st
from support.budget import budget

from bunqueue.model.events import NAMES
from shardproc.storage.event_log import ROW_EVENTS, TRIM_EVERY_MS, EventLog, LoggedEvent, Retention, read

ALL = 1_000_000


def log(driver: Driver, after: int = 0, limit: int = ALL) -> list[LoggedEvent]:
    driver.commit()
    return read(driver.shard.store.database.connection, after, limit)


def told(driver: Driver, after: int = 0) -> list[tuple[str, str]]:
    return [(event.kind, event.job_id) for event in log(driver, after)]


def test_the_life_of_a_job(driver: Driver) -> None:
    job_id = driver.ask(cmd="PUSH", queue="q", data=1, maxAttempts=2, backoff=0)["id"]
    driver.ask(cmd="PULL", queue="q")
    driver.ask(cmd="Progress", id=job_id, progress=5, message="m")
    driver.ask(cmd="FAIL", id=job_id, error="E" * 5000)
    driver.ask(cmd="PULL", queue="q")
    driver.ask(cmd="ACK", id=job_id, result={"r": 1})
    kinds = ["pushed", "pulled", "progress", "failed", "retried", "pulled", "completed"]
    events = log(driver)
    assert [event.kind for event in events] == kinds
    assert {event.job_id for event in events} == {job_id}
    assert [event.seq for event in events] == list(range(1, 8))
    assert {event.at for event in events} == {driver.now}
    assert events[2].fields == {"progress": 5.0, "message": "m"}
    assert events[3].fields == {"error": "E" * 1024, "terminal": False}
    assert events[4].fields == {"prev": "failed"}
    assert events[6].fields == {}, "the result is in the table of completed jobs"


@pytest.mark.parametrize("gap", [(), (1,), (3, 4, 5, 6, 7, 8), (2, 4, 6, 8), (1, 2, 3, 9)])
def test_reading_from_a_time_on_where_numbers_are_missing(driver: Driver, gap: tuple[int, ...]) -> None:
    """As in a log whose other half went to another shard."""
    start = driver.now
    for _ in range(10):
        driver.now += 1000
        driver.ask(cmd="PUSH", queue="q")
    for number in gap:
        driver.tamper("delete from events where first_seq = ?", number)
    driver.restart()
    for second in range(12):
        reply = driver.ask(cmd="GetEvents", since=start + 1000 * second)
        left = [number for number in range(max(1, second), 11) if number not in gap]
        assert [event["seq"] for event in reply["events"]] == left
        assert reply["places"][0]["after"] == reply["places"][0]["last"] == 10


def test_how_else_a_life_may_go(driver: Driver) -> None:
    gone = driver.ask(cmd="PUSH", queue="q", removeOnComplete=True)["id"]
    driver.ask(cmd="PULL", queue="q")
    driver.ask(cmd="ACK", id=gone)
    held = driver.ask(cmd="PUSH", queue="q", uniqueKey="k", maxAttempts=1)["id"]
    driver.ask(cmd="PUSHB", queue="q", jobs=[{"uniqueKey": "k"}])
    driver.ask(conn=2, cmd="PULL", queue="q")
    driver.disconnect(2)
    driver.ask(cmd="PULL", queue="q")
    driver.ask(cmd="FAIL", id=held)
    driver.ask(cmd="RetryDlq", queue="q", jobId=held)
    assert told(driver) == [
        ("pushed", gone),
        ("pulled", gone),
        ("completed", gone),
        ("dropped", gone),
        ("pushed", held),
        ("duplicated", held),
        ("pulled", held),
        ("released", held),
        ("pulled", held),
        ("failed", held),
        ("revived", held),
    ]


def test_the_log_tells_what_expired_from_what_was_drained(driver: Driver) -> None:
    late = driver.ask(cmd="PUSH", queue="q", ttl=10)["id"]
    driver.now += 11
    assert driver.ask(cmd="PULL", queue="q")["job"] is None
    drained = driver.ask(cmd="PUSH", queue="q")["id"]
    driver.ask(cmd="Drain", queue="q")
    events = driver.ask(cmd="GetEvents")["events"]
    dropped = {event["jobId"]: event.get("reason") for event in events if event["eventType"] == "dropped"}
    assert dropped == {late: "expired", drained: None}


def test_a_stall_and_a_late_job(driver: Driver) -> None:
    job_id = driver.ask(cmd="PUSH", queue="q", delay=100, maxAttempts=1)["id"]
    driver.tick(driver.now + 100)
    driver.ask(cmd="PULL", queue="q", owner="w", lockTtl=1)
    driver.ask(cmd="JobHeartbeat", id=job_id)
    driver.tick(driver.now + 5000)
    kinds = [kind for kind, _ in told(driver)]
    assert kinds[:3] == ["pushed", "ready", "pulled"]
    assert kinds[3:] in (["stalled", "failed"], ["released"])


def test_what_was_not_committed_did_not_happen(tmp_path: Path) -> None:
    driver = Driver(str(tmp_path / "q.db"))
    first = driver.ask(cmd="PUSH", queue="q")["id"]
    driver.execute(1, msgpack.packb({"cmd": "PUSH", "queue": "q"}))
    driver.close()
    driver = Driver(str(tmp_path / "q.db"))
    second = driver.ask(cmd="PUSH", queue="q")["id"]
    assert [(event.seq, event.job_id) for event in log(driver)] == [(1, first), (2, second)]
    driver.close()


def test_a_large_batch_is_several_rows_and_reading_may_begin_and_end_anywhere(driver: Driver) -> None:
    ids = driver.ask(cmd="PUSHB", queue="q", jobs=[{}] * (2 * ROW_EVENTS + 500))["ids"]
    assert driver.rows("select first_seq, count from events") == [(1, 1000), (1001, 1000), (2001, 500)]
    for after, limit in ((0, 5), (998, 5), (999, 1), (1000, 1100), (2499, 5), (2500, 5)):
        assert [event.job_id for event in log(driver, after, limit)] == ids[after : after + limit]


def test_a_batch_without_events_has_no_row(driver: Driver) -> None:
    driver.ask(cmd="PUSH", queue="q")
    driver.ask(cmd="GetJobCounts", queue="q")
    driver.ask(cmd="PULL", queue="other")
    assert driver.rows("select count(*) from events") == [(1,)]


def test_a_newer_kind_of_event_can_be_read(driver: Driver) -> None:
    payload = msgpack.packb([[len(NAMES), 1, "x"]])
    driver.tamper("insert into events (first_seq, at, count, payload) values (1, 0, 1, ?)", payload)
    assert [event.kind for event in log(driver)] == ["unknown"]


# -- retention -------------------------------------------------------------------------------------


def small_log(driver: Driver, retention: Retention) -> None:
    store = driver.shard.store
    store._events = EventLog(store.database.connection, retention, store.database.writer)
    store._events.recover()


def trimmed(driver: Driver, steps: int = 60) -> None:
    for _ in range(steps):
        driver.now += TRIM_EVERY_MS
        driver.shard.store.forget_events(driver.now)
        driver.commit()


def test_no_more_than_so_many_are_kept_and_the_numbers_go_on(driver: Driver) -> None:
    small_log(driver, Retention(max_count=50))
    ids = [driver.ask(cmd="PUSH", queue="q")["id"] for _ in range(500)]
    trimmed(driver)
    assert [(event.seq, event.job_id) for event in log(driver)] == list(enumerate(ids, 1))[-50:]


def test_the_log_stays_bounded_while_it_grows(driver: Driver) -> None:
    small_log(driver, Retention(max_count=100))
    for _ in range(80):
        driver.shard.store.forget_events(driver.now)  # no time passes
        driver.ask(cmd="PUSHB", queue="q", jobs=[{}] * 100)
        assert driver.rows("select sum(count) from events")[0][0] <= 100 + 100 + ROW_EVENTS + 200


def test_none_is_older_than_it_may_be_but_the_newest_row_stays(tmp_path: Path) -> None:
    driver = Driver(str(tmp_path / "q.db"))
    small_log(driver, Retention(max_age_ms=60_000))
    for _ in range(700):  # three goes of deleting
        driver.ask(cmd="PUSH", queue="q")
    driver.shard.store.forget_events(driver.now + 59_999)
    assert len(log(driver)) == 700
    driver.now += 60_001
    trimmed(driver, steps=1)
    assert len(log(driver)) == 500
    assert driver.shard.store.forgets
    assert driver.shard.wait_ms() <= 20
    trimmed(driver, steps=2)
    assert len(log(driver)) == 100
    trimmed(driver)
    assert [event.seq for event in log(driver)] == [700]
    assert not driver.shard.store.forgets
    driver.close()
    driver = Driver(str(tmp_path / "q.db"), now=driver.now)
    driver.ask(cmd="PUSH", queue="q")
    assert [event.seq for event in log(driver)] == [700, 701]
    driver.close()


def test_an_empty_log_has_nothing_to_forget(driver: Driver) -> None:
    small_log(driver, Retention(max_age_ms=0, max_count=0))
    trimmed(driver, steps=2)
    assert log(driver) == []


def test_trim_forgets_the_oldest_events_of_one_queue(driver: Driver) -> None:
    for _ in range(50):
        driver.ask(cmd="PUSHB", queue="q", jobs=[{}] * 3)
        driver.ask(cmd="PUSH", queue="other")
    before = log(driver)
    reply = driver.ask(cmd="TrimEvents", queue="q", maxLength=7)
    assert reply == {"ok": True, "data": {"removed": 143}}
    others = {event.seq for event in before if event.queue_id == 2}
    mine = [event.seq for event in before if event.queue_id == 1]
    left = log(driver)
    assert {event.seq for event in left} == others | set(mine[-7:])
    assert left == [event for event in before if event.seq in {found.seq for found in left}]
    assert driver.ask(cmd="TrimEvents", queue="q", maxLength=7)["data"] == {"removed": 0}
    assert driver.ask(cmd="TrimEvents", queue="q", maxLength=0)["data"] == {"removed": 7}
    assert driver.ask(cmd="TrimEvents", queue="nobody", maxLength=0)["data"] == {"removed": 0}


# -- replay ----------------------------------------------------------------------------------------

PENDING = {
    "waiting-children",
    "pushed",
    "retried",
    "stalled",
    "released",
    "revived",
    "ready",
    "waiting",
    "delayed",
}
FROM = {  # what a job must have been before
    "pulled": {"pending"},
    "completed": {"active", "pending"},  # pending: a late ack
    "failed": {"active", "pending"},  # pending: after stalled
    "stalled": {"active"},
    "released": {"active"},
    "progress": {"active"},
    "ready": {"pending"},
    "duplicated": {"pending", "active"},
    "waiting-children": {"pending", "active"},
    "waiting": {"active"},
    "delayed": {"active", "pending"},
    "revived": {"failed", "completed"},
    "removed": {"pending"},
    "discarded": {"pending", "active"},
}


def replayed(events: list[LoggedEvent]) -> dict[tuple[int, str], str]:
    """Whether each job that is left is pending, active, completed or failed, by the log alone."""
    jobs: dict[tuple[int, str], str] = {}
    for event in events:
        key = event.queue_id, event.job_id
        if event.kind == "pushed":
            assert key not in jobs
        elif event.kind in FROM:
            assert jobs.get(key) in FROM[event.kind], event
        if event.kind in PENDING or (event.kind == "failed" and not event.fields["terminal"]):
            jobs[key] = "pending"
        elif event.kind == "pulled":
            jobs[key] = "active"
        elif event.kind in ("completed", "failed", "discarded"):
            jobs[key] = "completed" if event.kind == "completed" else "failed"
        elif event.kind in ("removed", "dropped"):
            del jobs[key]
        elif event.kind == "purged":
            gone = set(event.fields["seqs"])
            for queue_id, job_id in list(jobs):
                if queue_id == event.queue_id and int(job_id[-12:], 16) in gone:
                    assert jobs.pop((queue_id, job_id)) == event.fields["finished"]
        elif event.kind == "obliterated":
            jobs = {key: state for key, state in jobs.items() if key[0] != event.queue_id}
    return jobs


def counts(driver: Driver, queue: str) -> Counter[str]:
    found = driver.ask(cmd="GetJobCounts", queue=queue)["counts"]
    return +Counter(
        pending=found["waiting"] + found["delayed"],
        active=found["active"],
        completed=found["completed"],
        failed=found["failed"],
    )


QUEUES = ("a", "b")
options = st.fixed_dictionaries(
    {},
    optional={
        "delay": st.sampled_from([0, 500]),
        "maxAttempts": st.integers(1, 2),
        "backoff": st.sampled_from([0, 100]),
        "removeOnComplete": st.booleans(),
        "removeOnFail": st.booleans(),
        "uniqueKey": st.sampled_from(["k", "l"]),
        "timeout": st.just(300),
        "ttl": st.just(2000),
        "priority": st.integers(0, 2),
    },
)
queues = st.sampled_from(QUEUES)
index = st.integers(0, 50)
steps = st.one_of(
    st.tuples(st.just("push"), queues, st.lists(options, min_size=1, max_size=3)),
    st.tuples(st.just("pull"), queues, st.integers(1, 2), st.booleans()),
    st.tuples(st.just("ACK"), index),
    st.tuples(st.just("FAIL"), index),
    st.tuples(st.just("Progress"), index),
    st.tuples(st.sampled_from(["Cancel", "Discard", "Promote", "MoveToDelayed", "MoveToWait"]), index),
    st.tuples(st.sampled_from(["RetryDlq", "RetryCompleted", "PurgeDlq", "Drain", "Clean"]), queues),
    st.tuples(st.sampled_from(["Pause", "Resume", "Obliterate"]), queues),
    st.tuples(st.just("dependent"), queues, index),
    st.tuples(st.just("disconnect"), st.integers(1, 2)),
    st.tuples(st.just("tick"), st.sampled_from([1, 200, 5000, 40_000])),
    st.tuples(st.just("restart")),
)


class History:
    def __init__(self, path: str) -> None:
        self.driver = Driver(path)
        self.ids: list[str] = []
        self.tokens: dict[str, str] = {}

    def step(self, what: str, *how: Any) -> None:
        driver = self.driver
        if what == "push":
            self.ids += driver.ask(cmd="PUSHB", queue=how[0], jobs=how[1])["ids"]
        elif what == "pull":
            owner = "w" if how[2] else None
            reply = driver.ask(how[1], cmd="PULLB", queue=how[0], count=2, owner=owner, lockTtl=100)
            self.tokens |= dict(
                zip([job["id"] for job in reply["jobs"]], reply.get("tokens", []), strict=False)
            )
        elif what == "dependent":
            on = [self.ids[-1 - how[1] % len(self.ids)]] if self.ids else None
            reply = driver.ask(cmd="PUSH", queue=how[0], dependsOn=on)
            self.ids += [reply["id"]] if reply["ok"] else []
        elif what[0].isupper() and isinstance(how[0], int) and self.ids:
            job_id = self.ids[-1 - how[0] % len(self.ids)]
            token = self.tokens.get(job_id)
            driver.ask(cmd=what, id=job_id, token=token, progress=3, delay=50, error="E")
        elif what[0].isupper() and isinstance(how[0], str):
            driver.ask(cmd=what, queue=how[0], grace=0, limit=5)
        elif what == "disconnect":
            driver.disconnect(how[0])
        elif what == "tick":
            driver.tick(driver.now + how[0])
        elif what == "restart":
            driver.commit()
            driver.close()
            self.driver = Driver(driver.path, now=driver.now)


@settings(max_examples=budget(25, 1000))
@given(st.lists(steps, min_size=5, max_size=60))
def test_the_log_replayed_gives_the_state_of_every_job(tmp_path_factory: Any, history: list[Any]) -> None:
    run = History(str(tmp_path_factory.mktemp("log") / "q.db"))
    for step in history:
        run.step(*step)
    driver = run.driver
    events = log(driver)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    jobs = replayed(events)
    names = dict(driver.rows("select id, name from queues"))
    for queue_id, name in names.items():
        found = Counter(state for (of, _), state in jobs.items() if of == queue_id)
        assert found == counts(driver, name)
    for (_, job_id), state in jobs.items():
        shown = driver.ask(cmd="GetState", id=job_id)["state"]
        assert {"waiting": "pending", "delayed": "pending"}.get(shown, shown) == state
    driver.close()

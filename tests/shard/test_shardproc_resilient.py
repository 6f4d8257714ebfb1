"""A full disk: nothing is told that is not stored, nothing stored is lost, and it passes by itself.

``pragma max_page_count`` makes a disk of a few pages; it holds for the file and not for its log.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import msgpack
import pytest
from engine.shard_driver import START, Answer, Driver
from support.budget import budget

from bunqueue.model.retention import Retention
from bunqueue.server.links import peers
from shardproc.clock import Clock
from shardproc.engine.state import State
from shardproc.resilient import PROBE_MS, Mode, ResilientShard, StorageFailed
from shardproc.storage import statements

BIG = "x" * 50_000


class FakeClock(Clock):
    now = START

    def now_ms(self) -> int:
        return self.now

    def check_jump(self) -> int:
        return 0

    def mark(self, uncertainty: int) -> str:
        return ""


class Full(Driver):
    """A resilient shard whose disk can be filled."""

    kind = ResilientShard

    def __init__(self, path: str, place: tuple[int, int] = (0, 1)) -> None:
        self.clock = FakeClock()
        self.options = {**type(self).options, "clock": self.clock}  # type: ignore[misc]
        super().__init__(path, shard=place[0], shards=place[1])

    @property
    def mode(self) -> Mode:
        assert isinstance(self.shard, ResilientShard)
        return self.shard._mode

    def limit(self, spare: int) -> None:
        """Let the file grow by so many pages and no more."""
        ((pages,),) = self.rows("pragma page_count")
        self.rows(f"pragma max_page_count = {pages + spare}")

    def unlimit(self) -> None:
        self.rows("pragma max_page_count = 1000000")

    def passes(self, ms: int = PROBE_MS) -> list[Answer]:
        """Time, and a turn of the server."""
        self.clock.now += ms
        self.now = self.shard.tick()
        return self.commit()

    def turn(self, *requests: dict[str, Any], conn: int = 1) -> list[Answer]:
        """Commands that are one batch; all replies."""
        client = self.shard.client(conn, 2)
        for request in requests:
            self.shard.execute(client, msgpack.packb(request), self.now)
        self.shard.work()
        return self.commit()


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Full]:
    driver = Full(str(tmp_path / "shard.db"))
    yield driver
    driver.close()


def push(data: str = "x", queue: str = "q", **fields: Any) -> dict[str, Any]:
    return {"cmd": "PUSH", "queue": queue, "data": data, **fields}


def fill(driver: Full) -> dict[str, Any]:
    """Push too much; the refusal."""
    driver.limit(4)
    ((_, reply),) = driver.turn(push(BIG))
    return reply


def test_a_batch_that_cannot_be_committed_has_not_happened(driver: Full) -> None:
    kept = driver.ask(**push("kept"))["id"]
    driver.limit(4)
    answers = driver.turn(
        {"cmd": "PULL", "queue": "q", "reqId": 1},
        push(BIG, reqId=2),
        {"cmd": "GetJob", "id": "nothing", "reqId": 3},
        {"cmd": "Nonsense", "reqId": 4},
    )
    assert [reply["reqId"] for _, reply in answers] == [1, 2, 3, 4]
    for _, reply in answers:
        assert not reply["ok"]
        assert reply["error"].startswith("Storage is full (database or disk is full): free space on /")
    counts = driver.ask(cmd="GetJobCounts", queue="q")["counts"]
    assert (counts["waiting"], counts["active"]) == (1, 0)
    job = driver.ask(cmd="PULL", queue="q")["job"]
    assert (job["id"], job["data"]) == (kept, "kept")


def test_what_the_next_start_need_not_look_at_is_noted_with_the_batch(
    driver: Full, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch whose reply says that it was refused is not there, whatever failed."""
    for _ in range(3):
        driver.ask(**push(removeOnComplete=True))
        driver.ask(cmd="ACK", id=driver.ask(cmd="PULL", queue="q")["job"]["id"])
    noted = "select value from meta where key = 'live_from'"
    monkeypatch.setattr("shardproc.storage.store.MANY", 0)
    broken = "insert into nowhere values (?, ?)"
    monkeypatch.setitem(statements.NUMBER_OF, broken, 0)
    monkeypatch.setattr(statements, "NEW_STRAGGLERS", broken)
    monkeypatch.setattr("shardproc.storage.database._FULL", 1)  # stands for the disk: SQLITE_ERROR
    refused = driver.turn(push(), push())
    monkeypatch.undo()
    assert [reply["ok"] for _, reply in refused] == [False, False]
    assert driver.ask(cmd="Count", queue="q")["count"] == 0
    assert driver.rows(noted) == []


def test_what_needs_no_space_goes_on(driver: Full) -> None:
    ids = [driver.ask(**push())["id"] for _ in range(3)]
    first = driver.ask(cmd="PULL", queue="q", owner="w")
    assert fill(driver)["error"].startswith("Storage is full")
    assert driver.mode is Mode.NO_GROWTH
    refused = driver.ask(**push())
    assert refused["error"].startswith("Storage is full")
    for grows in ({"cmd": "AddLog", "message": "x"}, {"cmd": "Update", "data": "y"}):
        assert driver.ask(**grows, id=ids[2]) == refused
    assert driver.mode is Mode.NO_GROWTH
    assert driver.ask(cmd="ACK", id=first["job"]["id"], token=first["token"]) == {"ok": True}
    assert driver.ask(cmd="PULL", queue="q")["job"]["id"] == ids[1]
    assert driver.ask(cmd="FAIL", id=ids[1])["ok"]
    assert refused["code"] == "STORAGE_FULL"
    status = driver.ask(cmd="StorageStatus")["data"]
    assert (status["diskFull"], status["error"], status["since"]) == (True, refused["error"], float(START))
    assert status["code"] == "STORAGE_FULL"
    driver.close()
    again = Driver(driver.path)
    assert again.ask(cmd="GetState", id=ids[0])["state"] == "completed"
    assert again.ask(cmd="GetState", id=ids[1])["state"] == "delayed"
    again.close()


def test_it_passes_by_itself(driver: Full, caplog: pytest.LogCaptureFixture) -> None:
    fill(driver)
    driver.passes()
    assert driver.mode is Mode.NO_GROWTH
    driver.unlimit()
    driver.passes(PROBE_MS // 2)
    assert not driver.ask(**push())["ok"]
    with caplog.at_level("INFO"):
        driver.passes()
    assert "storage works again" in caplog.text
    status = driver.ask(cmd="StorageStatus")["data"]
    assert (status["diskFull"], status["error"], status["since"]) == (False, None, None)
    assert driver.ask(**push(BIG))["ok"]
    assert driver.mode is Mode.NORMAL


def test_without_any_room_it_can_still_be_read(driver: Full) -> None:
    waiting, held = driver.ask(**push("a"))["id"], driver.ask(**push("b"))["id"]
    assert driver.ask(cmd="PULL", queue="q", owner="w", lockTtl=5000)["job"]["id"] == waiting
    driver.rows("pragma query_only = on")  # stands for a disk that takes nothing
    ((_, reply),) = driver.turn(push())
    text = "Storage fails (attempt to write a readonly database): see to the disk of /"
    assert reply["error"].startswith(text)
    assert driver.mode is Mode.READ_ONLY
    for request in (push(), {"cmd": "PULL", "queue": "q", "timeout": 1000}, {"cmd": "ACK", "id": waiting}):
        assert driver.ask(**request)["error"].startswith("Storage fails")
    assert driver.ask(cmd="GetJob", id=held)["job"]["data"] == "b"
    assert driver.ask(cmd="GetState", id=waiting)["state"] == "active"
    assert [job["id"] for job in driver.ask(cmd="GetJobs", queue="q")["jobs"]] == [waiting, held]
    assert driver.passes(60_000) == []
    assert driver.shard.wait_ms() > 0
    assert driver.ask(cmd="StorageStatus")["data"]["diskFull"] is False

    driver.rows("pragma query_only = off")
    driver.passes(60_000)
    assert driver.mode is Mode.NORMAL
    assert driver.ask(cmd="GetState", id=waiting)["state"] == "active", "nobody could renew its lock"
    for _ in range(3):
        driver.passes(4_000)
    assert driver.ask(cmd="GetState", id=waiting)["state"] == "waiting"
    assert driver.ask(**push())["ok"]


def test_who_left_meanwhile_has_left(driver: Full) -> None:
    job = driver.ask(conn=5, **push())["id"]
    driver.ask(conn=5, cmd="PULL", queue="q")
    driver.rows("pragma query_only = on")
    driver.turn(push())
    driver.shard.disconnect(5, driver.now, severed=False)
    assert driver.ask(cmd="GetState", id=job)["state"] == "active"
    driver.rows("pragma query_only = off")
    driver.passes()
    assert driver.ask(cmd="GetState", id=job)["state"] == "waiting"
    assert driver.held() == {}


def test_who_left_with_a_batch_that_failed_has_left(driver: Full) -> None:
    """The usual trouble, in which most goes on."""
    job = driver.ask(conn=5, **push())["id"]
    driver.ask(conn=5, cmd="SubscribeEvents", queue="q")
    driver.ask(conn=5, cmd="PULL", queue="q")
    driver.limit(4)
    client = driver.shard.client(1, 2)
    for request in (push(BIG), {"cmd": "GetJob", "id": "x"}):  # the second one has the first one written
        driver.shard.execute(client, msgpack.packb(request), driver.now)
    assert driver.mode is Mode.FAILED
    driver.shard.disconnect(5, driver.now, severed=False)
    driver.commit()
    assert driver.mode is Mode.NO_GROWTH
    driver.passes()
    assert driver.ask(cmd="GetState", id=job)["state"] == "waiting"
    assert 5 not in driver.shard.engine.state.clients
    assert driver.shard.engine.state.listeners == {}


def test_parked_commands_are_answered(driver: Full) -> None:
    """The router counts what is in flight: each command has one answer."""
    client = driver.shard.client(7, 2)
    assert driver.turn({"cmd": "PULL", "queue": "none", "timeout": 60_000, "reqId": 1}, conn=7) == []
    many = {"cmd": "PULLB", "queue": "q", "count": 3, "timeout": 60_000, "reqId": 2}
    assert driver.turn(many, conn=7) == []
    job = driver.ask(**push(queue="other"))["id"]
    assert driver.turn({"cmd": "WaitJob", "id": job, "timeout": 60_000, "reqId": 4}, conn=7) == []
    slow = client.slow
    driver.limit(4)
    answers = driver.turn(push(BIG, reqId=3))
    assert sorted((conn, reply["reqId"], reply["ok"]) for conn, reply in answers) == [
        (1, 3, False),
        (7, 1, False),
        (7, 2, False),
        (7, 4, False),
    ]
    assert driver.shard.client(7, 2).slow == slow + 3
    assert driver.passes(120_000) == []


def test_a_heavy_command_that_fails_with_the_disk_is_counted_as_answered(driver: Full) -> None:
    """Else the router would have one place less for such commands of this connection, for ever."""
    driver.limit(4)
    client = driver.shard.client(7, 2)
    slow = client.slow
    for request in (push(BIG), {"cmd": "GetJobs", "queue": "q"}):  # the second one has the first one written
        driver.shard.execute(client, msgpack.packb(request), driver.now)
    assert driver.mode is Mode.FAILED
    assert len(driver.commit()) == 2
    assert driver.shard.client(7, 2).slow == slow + 1


def test_a_disk_that_stays_full_is_not_read_anew_all_the_time(driver: Full) -> None:
    fill(driver)
    rebuilt = 0
    engine = driver.shard.engine
    for _ in range(60):
        driver.turn(push(BIG))
        driver.passes()
        rebuilt += engine is not driver.shard.engine
        engine = driver.shard.engine
    assert rebuilt == 0


def test_subscribers_stay_and_are_told_nothing_of_it(driver: Full) -> None:
    driver.ask(**push())
    assert driver.ask(conn=8, cmd="SubscribeEvents", queue="q")["ok"]
    fill(driver)
    assert not driver.shard.published
    assert driver.ask(cmd="PULL", queue="q")["ok"]
    assert driver.shard.published.keys() == {"q"}
    assert driver.shard.engine.state.listeners == {"q": {8}}
    driver.shard.disconnect(8, driver.now, severed=False)
    assert driver.shard.engine.state.listeners == {}


def test_counters_go_on(driver: Full) -> None:
    for _ in range(3):
        driver.ask(**push())
    driver.ask(cmd="ACK", id=driver.ask(cmd="PULL", queue="q")["job"]["id"])
    fill(driver)
    metrics = driver.ask(cmd="Metrics")["metrics"]
    assert (metrics["totalPushed"], metrics["totalPulled"], metrics["totalCompleted"]) == (4, 1, 1)
    assert driver.ask(cmd="Stats")["stats"]["waiting"] == 2


def for_ever(state: State) -> None:
    state.maintenance.retention = Retention(max_age_s=0, max_count=0)


class KeepsForEver(Full):
    options: ClassVar[dict[str, Any]] = {"prepare": for_ever}


def test_what_is_kept_for_ever_is_so_after_a_full_disk(tmp_path: Path) -> None:
    driver = KeepsForEver(str(tmp_path / "shard.db"))
    job = driver.ask(**push())["id"]
    driver.ask(cmd="PULL", queue="q")
    driver.ask(cmd="ACK", id=job, result=1)
    fill(driver)
    driver.unlimit()
    for _ in range(3):
        driver.passes(8 * 86_400_000)
    assert driver.mode is Mode.NORMAL
    assert driver.ask(cmd="GetResult", id=job)["result"] == 1
    driver.close()


def test_a_disk_that_is_almost_full_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("shardproc.storage.reserve._allocate", full)
    driver = Full(str(tmp_path / "shard.db"))
    assert driver.mode is Mode.NO_GROWTH
    assert driver.ask(**push())["error"].startswith("Storage is full")
    monkeypatch.undo()
    driver.passes()
    assert driver.ask(**push())["ok"]
    driver.close()


@pytest.mark.parametrize("seed", range(budget(3, 60)))
def test_whatever_fails_when_the_books_are_right(tmp_path: Path, seed: int) -> None:
    """Random work on a disk that is full, or broken, now and then: what was answered ok is there, once, and
    what was refused is not."""
    rng, path = random.Random(seed), str(tmp_path / "shard.db")
    driver = Full(path)
    books: Books = {}
    refused = accepted = 0
    for _ in range(400):
        requests = [choose(rng, books, place) for place in range(rng.randrange(1, 5))]
        disk = rng.random()
        if disk < 0.05:
            driver.limit(rng.randrange(3))
        elif disk < 0.08:
            driver.rows("pragma query_only = on")
        elif disk < 0.25:
            driver.unlimit()
            driver.rows("pragma query_only = off")
        for (_, reply), request in zip(driver.turn(*requests), requests, strict=True):
            refused += not reply["ok"]
            accepted += reply["ok"]
            if reply["ok"]:
                note(books, request, reply)
        driver.passes(rng.choice((1, 100, 5 * PROBE_MS)))
    assert min(refused, accepted) > 100
    driver.close()

    again = Driver(path, now=driver.now)
    found = {job["id"]: job["state"] for job in again.ask(cmd="GetJobs", queue="q", limit=10_000)["jobs"]}
    assert found == {job: state for job, (state, _) in books.items()}
    assert set(found.values()) == {"waiting", "active", "completed"}
    again.close()


Books = dict[str, tuple[str, str]]  # id -> state and token, as they were acknowledged


def choose(rng: random.Random, books: Books, place: int) -> dict[str, Any]:
    active = [(job, token) for job, (state, token) in books.items() if state == "active"]
    kind = rng.randrange(4)
    if kind == 0 and len(active) > place:
        job, token = active[place]
        return {"cmd": "ACK", "id": job, "token": token}
    if kind == 1:
        return {"cmd": "PULL", "queue": "q", "owner": "w", "lockTtl": 86_400_000}
    return push(rng.choice(("x", BIG)))


def note(books: Books, request: dict[str, Any], reply: dict[str, Any]) -> None:
    if request["cmd"] == "PUSH":
        books[reply["id"]] = "waiting", ""
    elif request["cmd"] == "ACK":
        books[request["id"]] = "completed", ""
    elif reply["job"] is not None:
        books[reply["job"]["id"]] = "active", reply["token"]


def test_what_other_shards_know_of_ends_the_process(tmp_path: Path) -> None:
    """They have been told, or wait: a new process tells them that it is back."""
    driver = Full(str(tmp_path / "shard.db"), place=(0, 2))
    driver.shard.engine.state.granted["an id of another shard"] = 1
    assert fill(driver)["error"].startswith("Storage is full")
    assert driver.shard.peer_messages() == []
    assert driver.shard.wait_ms() == 0
    with pytest.raises(StorageFailed):
        driver.shard.tick()
    driver.close()


def test_what_other_shards_say_waits_while_nothing_can_be_stored(tmp_path: Path) -> None:
    driver = Full(str(tmp_path / "shard.db"), place=(0, 2))
    driver.commit()
    driver.shard.peer_messages()  # what a start has to say
    driver.rows("pragma query_only = on")
    driver.turn(push())
    assert driver.mode is Mode.READ_ONLY
    driver.shard.engine.out.peer_messages.clear()
    where = peers.encode(peers.PeerMessage(peers.ASKS, 5, peers.Where(["x"])))
    driver.shard.receive(1, where, driver.now)
    driver.commit()
    assert driver.shard.peer_messages() == []
    driver.rows("pragma query_only = off")
    driver.passes()
    ((shard, letter),) = driver.shard.peer_messages()
    assert (shard, peers.decode(letter).number) == (1, 5)
    driver.close()

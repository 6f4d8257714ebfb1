"""Owners and their log in a real PostgreSQL, with a synchronous standby."""

from __future__ import annotations

import random
import select
import socket
import time
from collections.abc import Callable, Iterator
from typing import ClassVar

import pytest
from support.postgres import Postgres
from support.waiting import wait_until

from bunqueue.store.database import StoreNotReady, StoreUnavailable, connected, conninfo
from bunqueue.store.setup import init
from shardproc.replication.errors import Fenced
from shardproc.replication.owner import Entry, Owner, Phase, Uncertain
from shardproc.replication.postgres import PostgresLink

SHARDS = 4
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with Postgres(standby=True) as running:
        init(running.url, SHARDS)
        yield running


@pytest.fixture(autouse=True)
def empty(postgres: Postgres) -> Iterator[None]:
    postgres.leader.ask("truncate bunqueue.log")
    postgres.leader.ask("update bunqueue.shards set epoch = 0, owner = ''")
    yield
    while Shard.made:
        Shard.made.pop().link.close()


class Shard:
    """What a shard does with its owner and link, without a shard: batches are numbered texts."""

    made: ClassVar[list[Shard]] = []

    def __init__(self, url: str, token: str = "a/1", shard: int = 1, position: int = 0) -> None:
        self.owner = Owner(token, position)
        self.link = PostgresLink(url, shard)
        self.read: list[Entry] = []
        self.doubts: list[str] = []
        self.made.append(self)

    def turn(self, timeout: float = 0.02) -> None:
        request = self.owner.next_request(time.monotonic())
        answer = self.link.send(request) if request is not None else None
        if answer is None:
            number = self.link.fileno
            if number is None:
                pause = self.owner.wait_s(time.monotonic()) or timeout
                time.sleep(min(timeout, pause))  # the owner's own, before it connects again
                return
            writes = [number] if self.link.wants_write else []
            ready = select.select([number], writes, [], timeout)
            if not any(ready):
                return
            answer = self.link.receive()
        if answer is not None:
            if isinstance(answer, Uncertain):
                self.doubts.append(answer.why)
            self.read += self.owner.answered(answer, time.monotonic())

    def until(self, condition: Callable[[], object], what: str) -> None:
        end = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < end, f"not in time: {what}; {self.owner.phase}, {self.doubts[-3:]}"
            self.turn()

    def own(self) -> Shard:
        self.until(lambda: self.owner.is_idle, "it owns the shard")
        return self

    def append(self, body: bytes) -> None:
        self.own()
        position = self.owner.position
        self.owner.append(body)
        self.until(lambda: self.owner.position > position, "the record is acknowledged")


def log_of(postgres: Postgres, shard: int = 1) -> list[tuple[int, int, bytes]]:
    return postgres.leader.ask(
        "select seq, epoch, body from bunqueue.log where shard = %s order by seq", shard
    )


def test_records_are_appended_and_read_again(postgres: Postgres) -> None:
    shard = Shard(postgres.url)
    bodies = [b"record %d" % number for number in range(1200)]
    for body in bodies:
        shard.append(body)
    assert log_of(postgres) == [(number, 1, body) for number, body in enumerate(bodies, 1)]
    again = Shard(postgres.url, "a/2").own()
    assert [entry.body for entry in again.read] == bodies
    assert again.owner.epoch == 2
    assert Shard(postgres.url, "a/3", position=1199).own().read == [Entry(1200, 1, bodies[-1])]


def test_a_large_record(postgres: Postgres) -> None:
    body = random.Random(1).randbytes(20_000_000)
    Shard(postgres.url).append(body)
    assert [entry.body for entry in Shard(postgres.url, "a/2").own().read] == [body]


def test_an_acknowledged_record_is_on_the_standby(postgres: Postgres) -> None:
    """While it cannot be there, nothing is acknowledged."""
    shard = Shard(postgres.url).own()
    assert postgres.standby is not None
    postgres.standby.pause()
    try:
        shard.owner.append(b"x")
        shard.until(lambda: waits(postgres), "the append waits for the standby")
        assert shard.owner.position == 0
        assert not shard.owner.owns(time.monotonic() + 2)
    finally:
        postgres.standby.resume()
    shard.until(lambda: shard.owner.position == 1, "the append is acknowledged")


def waits(postgres: Postgres) -> list[tuple[int]]:
    query = "select pid from pg_stat_activity where wait_event = 'SyncRep'"
    return postgres.leader.ask(query)


@pytest.mark.parametrize("quiet", [False, True], ids=["plain", "a role that wants no warnings"])
def test_a_cancelled_wait_is_no_acknowledgement(postgres: Postgres, quiet: bool) -> None:
    if quiet:
        postgres.leader.ask("alter role postgres set client_min_messages = error")
    shard = Shard(postgres.url).own()
    assert postgres.standby is not None
    postgres.standby.pause()
    try:
        shard.owner.append(b"x")
        shard.until(lambda: waits(postgres), "the append waits for the standby")
        postgres.leader.ask(
            "select pg_cancel_backend(pid) from pg_stat_activity where wait_event = 'SyncRep'"
        )
        shard.until(lambda: shard.doubts, "the link is in doubt")
        assert "canceling wait for synchronous replication" in shard.doubts[0]
        assert shard.owner.position == 0
    finally:
        postgres.standby.resume()
        postgres.leader.ask("alter role postgres reset client_min_messages")
    shard.until(lambda: shard.owner.position == 1, "the record is found in the tail")
    assert [(seq, body) for seq, _, body in log_of(postgres)] == [(1, b"x")]


def test_a_zombie_is_fenced(postgres: Postgres) -> None:
    zombie = Shard(postgres.url, "a/1").own()
    zombie.append(b"before")
    heir = Shard(postgres.url, "b/1").own()  # a's beat stands still, as nobody turns it
    assert [entry.body for entry in heir.read] == [b"before"]
    zombie.owner.append(b"zombie")
    with pytest.raises(Fenced, match="b/1"):
        zombie.until(lambda: False, "it is fenced")
    heir.append(b"after")
    assert [body for _, _, body in log_of(postgres)] == [b"before", b"after"]


def test_backends_that_are_killed_lose_and_double_nothing(postgres: Postgres) -> None:
    rng = random.Random(7)
    shard = Shard(postgres.url)
    bodies = []
    for number in range(300):
        shard.own()
        shard.owner.append(body := b"%d" % number)
        bodies.append(body)
        if rng.random() < 0.2:
            shard.turn(0.0)
            kill = (
                "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'bunqueue'"
            )
            postgres.leader.ask(kill)
        shard.until(lambda: shard.owner.position == len(bodies), "the record is acknowledged")
    assert [body for _, _, body in log_of(postgres)] == bodies
    assert len(shard.doubts) > 20


def test_a_server_that_is_killed_loses_and_doubles_nothing(postgres: Postgres) -> None:
    shard = Shard(postgres.url)
    bodies = []
    for number in range(60):
        shard.own()
        shard.owner.append(body := b"%d" % number)
        bodies.append(body)
        if number % 20 == 10:
            shard.turn(0.0)
            postgres.leader.kill()
            postgres.leader.start()
        shard.until(lambda: shard.owner.position == len(bodies), "the record is acknowledged")
    assert [body for _, _, body in log_of(postgres)] == bodies


def test_a_store_that_is_away_is_waited_for(postgres: Postgres) -> None:
    shard = Shard(postgres.url).own()
    postgres.leader.kill()
    try:
        shard.owner.append(b"x")
        shard.until(lambda: len(shard.doubts) > 3, "it tries again and again")
        assert shard.owner.phase is Phase.DISCONNECTED
        assert "refused" in shard.owner.fault
    finally:
        postgres.leader.start()
    shard.until(lambda: shard.owner.position == 1, "the record is acknowledged")


def test_tables_are_made_once(postgres: Postgres) -> None:
    with pytest.raises(StoreNotReady, match=f"has a store already, made for {SHARDS} shards"):
        init(postgres.url, SHARDS)


def test_a_shard_that_the_store_was_not_made_for(postgres: Postgres) -> None:
    shard = Shard(postgres.url, shard=SHARDS)
    shard.until(lambda: shard.doubts, "the store says so")
    assert "no such shard" in shard.doubts[0]


@pytest.mark.parametrize(
    ("sql", "undo", "text"),
    [
        (
            "alter schema bunqueue rename to away",
            "alter schema away rename to bunqueue",
            "bunqueue store init",
        ),
        ("update bunqueue.store set format = 99", "update bunqueue.store set format = 1", "upgrade"),
    ],
)
def test_a_database_that_is_not_ready(postgres: Postgres, sql: str, undo: str, text: str) -> None:
    postgres.leader.ask(sql)
    try:
        shard = Shard(postgres.url)
        shard.until(lambda: shard.doubts, "the store says so")
        assert text in shard.doubts[0]
    finally:
        postgres.leader.ask(undo)
    shard.own()  # by itself, once it is


def test_a_server_that_does_not_exist() -> None:
    shard = Shard("postgresql://postgres@127.0.0.1:1/postgres")
    shard.until(lambda: shard.doubts, "nobody is there")
    assert "Connection refused" in shard.doubts[0]
    with pytest.raises(StoreUnavailable, match="Connection refused"):
        init("postgresql://postgres@127.0.0.1:1/postgres", 2)


def test_a_connection_that_was_cut_on_the_way(postgres: Postgres) -> None:
    """Also in the middle of an append: either it is in the log, or it is sent again."""
    shard = Shard(postgres.url)
    for number in range(30):
        shard.own()
        shard.owner.append(b"%d" % number)
        shard.turn(0.0)
        if number % 3 == 0:
            assert shard.link.fileno is not None
            shard.link.close()
            shard.owner.lost("cut", time.monotonic())
        shard.until(lambda number=number: shard.owner.position == number + 1, "acknowledged")  # type: ignore[misc]
    assert [body for _, _, body in log_of(postgres)] == [b"%d" % number for number in range(30)]
    wait_until(lambda: len(backends(postgres)) == 1, "the other backends have ended")


def backends(postgres: Postgres) -> list[tuple[int]]:
    return postgres.leader.ask("select pid from pg_stat_activity where application_name = 'bunqueue'")


def test_a_host_that_hangs_does_not_hold_up_the_next(postgres: Postgres) -> None:
    """It lets clients in, and never answers, as a process that stands still does."""
    with socket.create_server(("127.0.0.1", 0)) as hung:
        port = hung.getsockname()[1]
        url = f"{postgres.url.replace('@', f'@127.0.0.1:{port},', 1)}"
        assert "connect_timeout=2" in conninfo(url), "less than for a single one"
        with connected(url) as connection:
            assert connection.info.port == postgres.leader.port

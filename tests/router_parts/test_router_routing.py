"""Routing agrees with the ids module for every name and id, and reads no more than it needs."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.table import table

from bunqueue.model.ids import IdFactory, slot_of_id, slot_of_queue
from bunqueue.protocol.codec import InvalidCommand
from bunqueue.protocol.commands import COMMANDS, CommandError, Route
from bunqueue.protocol.lenient import DECODE_ERRORS
from router.core import routing
from router.core.routing import (
    ALL,
    AUDITED,
    FIRST,
    HERE,
    ID,
    IDS,
    QUEUE,
    SLOW,
    SUBSCRIBE,
    Routes,
    peek,
    peek_in_full,
)

COUNTS = [1, 2, 8, 64]


def ids_of(slot: int, count: int = 3) -> list[str]:
    factory = IdFactory(lambda bits: 5)
    return [factory.token(slot, 1_700_000_000_000) for _ in range(count)]


def packed(ids: object) -> bytes:
    return bytes(msgpack.packb(ids))


# An id as clients may make them: anything at all, among it what looks like one of ours.
ANY_ID = st.one_of(
    st.text(max_size=50),
    st.text(min_size=250, max_size=300),
    st.integers(0, 4095).map(lambda slot: ids_of(slot, 1)[0]),
    st.uuids().map(str),
    st.text(min_size=36, max_size=36),
    st.from_regex(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-fA-F_ +-]{3}-[0-9a-f]{4}-[0-9a-f]{12}", fullmatch=True),
    st.from_regex(r"[0-9é]{8}-[0-9]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9]{12}", fullmatch=True),
)


@pytest.mark.parametrize("shards", COUNTS)
def test_a_queue_has_the_shard_of_its_slot_also_when_asked_again(shards: int) -> None:
    routes = Routes(shards)
    for name in ["emails", "a.b:c_d-e", "x" * 256, "ünïcode", ""]:
        assert routes.of_queue(name) == routes.of_queue(name) == slot_of_queue(name) & (shards - 1)


def test_long_names_are_neither_hashed_nor_kept() -> None:
    routes = Routes(64)
    name = "x" * 10_000_000
    assert routes.of_queue(name) == routes.of_queue("x" * 256)
    assert set(routes.queues) == {"x" * 256}
    assert routes.of_id(name) == routes.of_id("x" * 256)


def test_the_cache_of_queues_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "MAX_CACHED_QUEUES", 10)
    routes = Routes(4)
    for number in range(100):
        routes.of_queue(f"q{number}")
        assert len(routes.queues) <= 10


@given(ANY_ID, st.sampled_from(COUNTS))
def test_an_id_has_the_shard_of_its_slot(job_id: str, shards: int) -> None:
    assert Routes(shards).of_id(job_id) == slot_of_id(job_id) & (shards - 1)


@given(st.lists(ANY_ID, max_size=20), st.sampled_from(COUNTS))
def test_ids_have_the_shard_that_each_of_them_has(ids: list[str], shards: int) -> None:
    routes = Routes(shards)
    expected = {routes.of_id(job_id) for job_id in ids}
    found = routes.of_ids(packed(ids))
    assert found == (None if len(expected) > 1 else next(iter(expected), 0))


@pytest.mark.parametrize("count", [1, 15, 16, 1000, 65_535, 65_536])
def test_ids_of_one_queue_share_its_shard(count: int) -> None:
    slot = slot_of_queue("emails")
    assert Routes(8).of_ids(packed(ids_of(slot, count))) == slot & 7


def test_ids_of_several_queues_may_share_a_shard() -> None:
    assert Routes(4).of_ids(packed(ids_of(5) + ids_of(9))) == 1
    assert Routes(4).of_ids(packed(ids_of(5) + ids_of(8))) is None


@pytest.mark.parametrize("ids", [None, 5, "text", {"a": 1}, ["a", 5], [b"x" * 36], b"x" * 38])
def test_what_is_no_list_of_ids_has_no_shard(ids: object) -> None:
    assert Routes(4).of_ids(packed(ids)) is None


def test_a_batch_of_any_size_may_come_from_one_queue_but_not_from_many() -> None:
    limit = routing.MAX_IDS
    assert Routes(4).of_ids(packed(ids_of(5, limit + 1))) == 1
    with pytest.raises(CommandError, match="ids must have at most 10000 entries"):
        Routes(4).of_ids(packed(ids_of(5, limit) + ids_of(9, 1)))
    assert Routes(1).of_ids(packed(ids_of(5, limit) + ids_of(9, 1))) == 0


@table("name", COMMANDS)
def test_every_command_is_peeked_the_way_its_route_says(name: str) -> None:
    spec = COMMANDS[name]
    look = peek(
        packed(
            {
                "x": [1, {"y": 2}],
                "queue": "q",
                "cmd": name,
                "id": "i",
                "customId": "i",
                "ids": ["a"],
                "timeout": 7,
            }
        )
    )
    ways = {
        Route.QUEUE: QUEUE,
        Route.ID: ID,
        Route.IDS: IDS,
        Route.ALL: ALL,
        Route.QUEUE_OR_ALL: ALL,
        Route.QUEUE_OR_EACH: ALL,
        Route.ROUTER: HERE,
        Route.FIRST: FIRST,
    }
    one = spec.route in (Route.QUEUE, Route.ID, Route.FIRST)
    slow = one and (spec.parks or spec.heavy)
    assert look.spec is spec
    assert look.way == ways[spec.route]
    audited = spec.is_audited and (slow or spec.route in (Route.QUEUE, Route.ID))
    handling = SLOW if slow else SUBSCRIBE if spec.subscribes else look.way
    assert look.handling == (AUDITED if audited else handling)
    if spec.route is Route.QUEUE:
        assert look.key == "q"
    if spec.route is Route.ID:
        assert look.key == "i"
    if spec.parks:
        assert look.timeout == 7


def test_what_can_park_belongs_to_one_shard_and_the_slow_go_there() -> None:
    """Gathered commands count as slow in any case."""
    one = (Route.QUEUE, Route.ID, Route.FIRST)
    assert all(spec.route in one for spec in COMMANDS.values() if spec.parks)
    routes = Routes(4)
    job_id = ids_of(6, 1)[0]
    assert routes.of_peek(peek(packed({"cmd": "WaitJob", "id": job_id}))) == routes.of_id(job_id) == 6 % 4
    assert routes.of_peek(peek(packed({"cmd": "PULL", "queue": "q"}))) == routes.of_queue("q")


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (b"", "Invalid command format"),
        (b"\xc1", "Invalid command format"),
        (packed([1]), "Invalid command format"),
        (packed({"cmd": "PUSH"})[:-1], "Invalid command format"),
        (packed({"cmd": "Ping"}) + b"\x00", "Invalid command format"),
        (
            b"\x82\xa3cmd\xa4PUSH\xa5queue\xa2\xff\xfe",
            "queue is malformed: it has text that is not UTF-8 (byte 0xff); send bytes as bytes",
        ),
        (
            b"\x83\xa3cmd\xa4PUSH\xa5queue\xa1q\xa4data" + b"\x91" * 100_000 + b"\xc0",
            "Invalid command format",
        ),
        (packed({}), "Invalid command"),
        (packed({"cmd": None}), "Invalid command"),
        (packed({"cmd": ""}), "Invalid command"),
        (packed({"cmd": "ping"}), "Unknown command: ping"),
        (packed({"cmd": "PUSH"}), "Queue name is required"),
        (packed({"cmd": "PUSH", "queue": 5}), "Queue name must be a string"),
        (packed({"cmd": "PUSH", "queue": None}), "Queue name is required"),
        (packed({"cmd": "ACK", "id": 5}), "id must be a string"),
        (packed({"cmd": "ACK"}), "id is required"),
        (packed({"cmd": "ACKB"}), "ids is required"),
    ],
)
def test_what_the_peek_refuses_is_refused_in_words(payload: bytes, text: str) -> None:
    with pytest.raises(DECODE_ERRORS):
        peek(payload)
    with pytest.raises(InvalidCommand) as error:
        peek_in_full(payload)
    assert str(error.value) == text


@pytest.mark.parametrize("req_id", [1, "x", [1, {"a": None}], None, 2.5, b"x"])
def test_the_request_id_is_kept_as_it_came(req_id: object) -> None:
    assert bytes(routing.request_id(packed({"cmd": "x", "reqId": req_id}))) == packed(req_id)


def test_a_second_look_can_give_the_same_as_the_first() -> None:
    for command in (
        {"cmd": "PULL", "queue": "q", "timeout": 5.0},
        {"cmd": "ACK", "id": "i"},
        {"cmd": "ACKB", "ids": ["i"]},
        {"cmd": "Stats"},
    ):
        first, second = peek(packed(command)), peek_in_full(packed(command))
        assert type(first) is type(second)
        if hasattr(first, "key"):
            assert bytes(msgpack.packb(first.key) if isinstance(first.key, str) else first.key) == bytes(
                msgpack.packb(second.key) if isinstance(second.key, str) else second.key
            )

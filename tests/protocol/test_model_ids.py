"""Ids: their hash, their form, the slot and number inside them, and that they ascend."""

from __future__ import annotations

import itertools
import random
import uuid
from collections.abc import Callable
from itertools import pairwise

import pytest

from bunqueue.model.ids import (
    MAX_SHARDS,
    SLOTS,
    IdFactory,
    fnv1a32,
    is_power_of_two,
    seq_of_id,
    slot_of_id,
    slot_of_queue,
)

NOW = 1_700_000_000_000


def factory(seed: int = 0) -> IdFactory:
    return IdFactory(random.Random(seed).getrandbits)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0x811C9DC5),
        ("a", 0xE40C292C),
        ("foobar", 0xBF9CF968),
        ("b", 0xE70C2DE5),
        ("chongo was here!\n", 0xD49930D5),
    ],
)
def test_fnv1a32_of_the_published_vectors(text: str, value: int) -> None:
    assert fnv1a32(text) == value


def test_fnv1a32_is_of_the_utf8_bytes() -> None:
    value = 0x811C9DC5
    for byte in "grün-\N{SNOWMAN}".encode():
        value = (value ^ byte) * 0x01000193 % 2**32
    assert fnv1a32("grün-\N{SNOWMAN}") == value
    assert 0 <= fnv1a32("\ud800") < 2**32, (
        "a lone surrogate, which no client can send, has a hash all the same"
    )


@pytest.mark.parametrize("queue", ["q", "emails", "a.b:c-d_e", "x" * 256])
def test_slot_survives_the_round_trip_through_an_id(queue: str) -> None:
    slot = slot_of_queue(queue)
    assert slot == fnv1a32(queue) % 4096
    ids = factory()
    assert slot_of_id(ids.job_id(slot, NOW, 7)) == slot
    assert slot_of_id(ids.token(slot, NOW)) == slot


def test_every_slot_survives() -> None:
    ids = factory()
    assert [slot_of_id(ids.job_id(slot, NOW + slot, 1)) for slot in range(SLOTS)] == list(range(SLOTS))
    assert [slot_of_id(ids.token(slot, NOW)) for slot in range(SLOTS)] == list(range(SLOTS))


@pytest.mark.parametrize("shards", [1, 2, 8, MAX_SHARDS])
def test_queue_and_id_meet_on_one_shard_for_every_number_of_shards(shards: int) -> None:
    ids = factory()
    for name in ("a", "b", "emails", "video.encode"):
        slot = slot_of_queue(name)
        assert slot_of_id(ids.job_id(slot, NOW, 1)) & (shards - 1) == fnv1a32(name) & (shards - 1)


@pytest.mark.parametrize("make", [lambda ids: ids.job_id(0xABC, NOW, 5), lambda ids: ids.token(0xABC, NOW)])
def test_form_of_a_uuid7(make: Callable[[IdFactory], str]) -> None:
    text = make(factory())
    parsed = uuid.UUID(text)
    assert str(parsed) == text
    assert parsed.version == 7
    assert parsed.variant == uuid.RFC_4122
    assert parsed.int >> 80 == NOW
    assert parsed.int >> 64 & 0xFFF == 0xABC


# Times at which 50 ids are made one after the other.
CLOCKS = {
    "runs": [NOW + step for step in range(50)],
    "stands": [NOW] * 50,
    "goes back": [NOW - 40 * step for step in range(50)],
    "jumps": [NOW + step for step in (0, 5, 2, 9, 9, 8, 10_000, 0, 10_001, 10_000) for _ in range(5)],
}


@pytest.mark.parametrize("times", CLOCKS.values(), ids=CLOCKS.keys())
@pytest.mark.parametrize("seed", range(5))
def test_job_ids_ascend(times: list[int], seed: int) -> None:
    ids = factory(seed)
    made = [ids.job_id(77, now, seq) for seq, now in enumerate(times, 1)]
    assert made == sorted(set(made))


@pytest.mark.parametrize("times", CLOCKS.values(), ids=CLOCKS.keys())
@pytest.mark.parametrize("seed", range(5))
def test_ids_of_each_slot_ascend_when_slots_alternate(times: list[int], seed: int) -> None:
    ids = factory(seed)
    made: dict[int, list[str]] = {1: [], 2: [], 3: []}
    for seq, (now, slot) in enumerate(zip(times, itertools.cycle(made), strict=False), 1):
        made[slot].append(ids.job_id(slot, now, seq))
        ids.token(slot, now)
    assert all(each == sorted(set(each)) for each in made.values())


@pytest.mark.parametrize("times", CLOCKS.values(), ids=CLOCKS.keys())
def test_tokens_differ_and_are_no_job_ids(times: list[int]) -> None:
    ids = factory()
    tokens = {ids.token(77, now) for now in times}
    assert len(tokens) == len(times)
    assert not tokens & {ids.job_id(77, now, seq) for seq, now in enumerate(times, 1)}


def test_tokens_of_one_millisecond_do_not_follow_from_each_other() -> None:
    ids = factory()
    ends = [int(ids.token(77, NOW)[-12:], 16) for _ in range(1000)]
    assert len({after - before for before, after in pairwise(ends)}) == 999
    assert max(ends) - min(ends) > 2**47


def test_equal_randomness_gives_equal_ids() -> None:
    one, other = factory(3), factory(3)
    for seq, now in enumerate(CLOCKS["jumps"]):
        assert one.job_id(5, now, seq) == other.job_id(5, now, seq)
        assert one.token(5, now) == other.token(5, now)


@pytest.mark.parametrize("seq", [1, 2, 255, 2**32, 2**48 - 1])
def test_seq_survives_the_round_trip_through_an_id(seq: int) -> None:
    assert seq_of_id(factory().job_id(9, NOW, seq)) == seq


@pytest.mark.parametrize(
    "foreign", ["", "mine", "order-1", "x" * 36, "é" * 36, "018bcfe5-6800-4000-8000-000000000001", "-" * 36]
)
def test_foreign_ids_have_the_slot_of_their_hash(foreign: str) -> None:
    assert slot_of_id(foreign) == fnv1a32(foreign) % 4096
    assert seq_of_id(foreign) is None


def test_of_long_ids_the_beginning_counts() -> None:
    assert slot_of_id("x" * 256 + "one") == slot_of_id("x" * 256 + "two") == fnv1a32("x" * 256) % 4096
    assert slot_of_id("x" * 255 + "1") != slot_of_id("x" * 255 + "2")


@pytest.mark.parametrize("middle", ["-01", "+ff", " 1f", "1_f", "0x1", "\N{ARABIC-INDIC DIGIT ONE}11"])
def test_what_only_looks_like_an_id_is_foreign(middle: str) -> None:
    text = f"018bcfe5-6800-7{middle}-8000-000000000001"
    assert len(text) == 36
    assert slot_of_id(text) == fnv1a32(text) % 4096


def test_a_slot_is_never_negative() -> None:
    assert 0 <= slot_of_id("018bcfe5-6800-7-ff-8000-000000000001") < SLOTS


@pytest.mark.parametrize("tail", ["-00000000001", "0x0000000001", "00000_000001", " 00000000001"])
def test_a_strange_number_in_an_id_is_harmless(tail: str) -> None:
    """It may be read as some number: whoever looks a job up compares the whole id."""
    found = seq_of_id(f"018bcfe5-6800-7000-8000-{tail}")
    assert found is None or abs(found) < 2**48


@pytest.mark.parametrize(
    ("number", "answer"), [(-2, False), (0, False), (1, True), (2, True), (3, False), (64, True), (96, False)]
)
def test_powers_of_two(number: int, answer: bool) -> None:
    assert is_power_of_two(number) == answer

"""The sliding minute, and what counts as a long poll."""

from __future__ import annotations

from collections import deque

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bunqueue.model.rate_limit import RateLimit
from router.clients.admission import may_wait
from router.core.routing import peek


def test_a_minute_after_the_first_command_there_is_room_for_one_more() -> None:
    limit = RateLimit(3)
    assert [limit.admit(second) for second in (0, 20, 40, 59.9)] == [True, True, True, False]
    assert limit.admit(60.2)
    assert not limit.admit(60.3)
    assert limit.admit(80.2)


def test_what_is_refused_does_not_count() -> None:
    limit = RateLimit(1)
    assert limit.admit(0)
    assert not any(limit.admit(second) for second in range(1, 60))
    assert limit.admit(61)


@given(st.lists(st.floats(0, 5), max_size=200), st.integers(1, 20))
def test_never_more_than_the_limit_within_a_minute(gaps: list[float], limit: int) -> None:
    rate, now = RateLimit(limit), 0.0
    admitted: deque[float] = deque()
    for gap in gaps:
        now += gap
        recent = [moment for moment in admitted if moment > now - 60]
        if rate.admit(now):
            assert len(recent) < limit
            admitted.append(now)
        else:
            assert len([moment for moment in admitted if moment > now - 60.2]) >= limit


def test_its_memory_is_bounded_whatever_the_limit() -> None:
    limit = RateLimit(1_000_000)
    for step in range(200_000):
        assert limit.admit(step / 1000)
    assert len(limit._counts) <= 602


@pytest.mark.parametrize(
    ("timeout", "counts"),
    [
        (1, True),
        (0.5, True),
        (70_000, True),
        (0, False),
        (-1, False),
        (None, False),
        ("5", False),
        (float("nan"), False),
    ],
)
def test_only_a_pull_with_a_timeout_counts_as_a_poll(timeout: object, counts: bool) -> None:
    assert may_wait(peek(msgpack.packb({"cmd": "PULL", "queue": "q", "timeout": timeout}))) is counts
    assert not may_wait(peek(msgpack.packb({"cmd": "PULL", "queue": "q"})))
    waits = timeout is None or counts
    assert may_wait(peek(msgpack.packb({"cmd": "WaitJob", "id": "x", "timeout": timeout}))) is waits
    assert may_wait(peek(msgpack.packb({"cmd": "WaitJob", "id": "x"})))

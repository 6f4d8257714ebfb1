"""Delays before a retry: the reference server, "Retry, timeouts, dead letters"."""

from __future__ import annotations

import random

import pytest
from support.table import table

from bunqueue.model.backoff import (
    EXPONENTIAL,
    FIXED,
    LINEAR,
    MAX_BACKOFF_MS,
    may_retry,
    names,
    retry_delay,
)

JUST_BELOW_ONE = 1 - 2**-53
CHANCES = (0.0, 0.25, 0.5, JUST_BELOW_ONE)


# What was measured on the reference with backoff 1000 lies within.
@pytest.mark.parametrize(("attempts", "low", "high"), [(1, 1000, 3000), (2, 2000, 6000), (3, 4000, 12000)])
def test_exponential(attempts: int, low: int, high: int) -> None:
    assert retry_delay(EXPONENTIAL, 1000, attempts, 0.0) == low
    assert high - 1 <= retry_delay(EXPONENTIAL, 1000, attempts, JUST_BELOW_ONE) <= high
    for _ in range(200):
        assert low <= retry_delay(EXPONENTIAL, 1000, attempts, random.random()) <= high


@pytest.mark.parametrize("attempts", [1, 2, 10, 1000])
def test_fixed_does_not_grow(attempts: int) -> None:
    assert retry_delay(FIXED, 1000, attempts, 0.0) == 800
    assert retry_delay(FIXED, 1000, attempts, 0.5) == 1000
    assert 1199 <= retry_delay(FIXED, 1000, attempts, JUST_BELOW_ONE) <= 1200


@pytest.mark.parametrize("kind", [FIXED, EXPONENTIAL])
@pytest.mark.parametrize("chance", CHANCES)
def test_no_backoff_is_no_delay(kind: str, chance: float) -> None:
    assert retry_delay(kind, 0, 1, chance) == 0
    assert retry_delay(kind, 0, 1000, chance) == 0


@table("kind", [FIXED, EXPONENTIAL])
@table("chance", CHANCES)
@table("attempts", [1, 5, 32, 33, 64, 999, 1000])
def test_never_above_an_hour(kind: str, chance: float, attempts: int) -> None:
    assert MAX_BACKOFF_MS == 3_600_000
    assert retry_delay(kind, 86_400_000, attempts, chance) == MAX_BACKOFF_MS
    for backoff in (0.1, 1, 100, 86_400_000):
        assert 0 <= retry_delay(kind, backoff, attempts, chance) <= MAX_BACKOFF_MS


def test_a_whole_number_of_ms() -> None:
    for backoff in (0.4, 1.5, 333.3):
        assert type(retry_delay(EXPONENTIAL, backoff, 1, 0.3)) is int


def test_more_attempts_never_wait_less() -> None:
    delays = [retry_delay(EXPONENTIAL, 10, attempts, 0.5) for attempts in range(1, 1001)]
    assert delays == sorted(delays)


@pytest.mark.parametrize(("attempts", "wait"), [(1, 300), (2, 600), (3, 1200), (50, MAX_BACKOFF_MS)])
def test_with_a_jitter_the_first_wait_is_the_backoff(attempts: int, wait: int) -> None:
    assert retry_delay(EXPONENTIAL, 300, attempts, JUST_BELOW_ONE, 0.0) == wait
    assert retry_delay(FIXED, 300, attempts, JUST_BELOW_ONE, 0.0) == 300
    if wait < MAX_BACKOFF_MS:
        assert retry_delay(EXPONENTIAL, 300, attempts, 0.0, 0.1) == wait * 0.9
        assert wait * 1.1 - 1 <= retry_delay(EXPONENTIAL, 300, attempts, JUST_BELOW_ONE, 0.1) <= wait * 1.1


def test_linear_adds_the_backoff_each_time() -> None:
    assert [retry_delay(LINEAR, 300, n, 0.5, 0.0) for n in (1, 2, 5)] == [300, 600, 1500]
    assert retry_delay(LINEAR, 300, 2, 0.5) == 600
    assert retry_delay(LINEAR, 300, 1000_000, 0.5) == MAX_BACKOFF_MS


@pytest.mark.parametrize("kind", [FIXED, LINEAR, EXPONENTIAL])
@pytest.mark.parametrize("jitter", [None, 0.0, 0.1, 1.0])
def test_no_wait_is_longer_than_the_longest(kind: str, jitter: float | None) -> None:
    for chance in CHANCES:
        for attempts in (1, 7, 1000):
            assert 0 <= retry_delay(kind, 1000, attempts, chance, jitter, most=1500) <= 1500
    longest = [retry_delay(kind, 10_000_000, 9, chance, 0.1, most=9_000_000) for chance in CHANCES]
    assert len(set(longest)) == len(CHANCES)  # at the bound they are spread, too
    assert max(longest) > MAX_BACKOFF_MS


def test_listed_waits_come_first() -> None:
    waits = [retry_delay(FIXED, 60_000, n, 0.5, 0.0, delays=(1000, 5000)) for n in (1, 2, 3, 4)]
    assert waits == [1000, 5000, 60_000, 60_000]
    assert retry_delay(EXPONENTIAL, 100, 4, 0.5, 0.0, delays=(7, 8)) == 200
    assert retry_delay(FIXED, 1, 1, 0.5, delays=(2 * MAX_BACKOFF_MS,)) == 2 * MAX_BACKOFF_MS
    assert retry_delay(FIXED, 1, 1, 0.5, most=1000, delays=(2 * MAX_BACKOFF_MS,)) == 1000


TIMEOUT = ["httpx.ConnectTimeout", "httpx.TransportError", "Exception", "BaseException"]


@pytest.mark.parametrize(
    ("retry_on", "never_on", "again"),
    [
        ([], [], True),
        (["httpx.ConnectTimeout"], [], True),
        (["ConnectTimeout"], [], True),
        (["TransportError"], [], True),
        (["Exception"], [], True),
        (["ConnectionError"], [], False),
        (["requests.ConnectTimeout"], [], False),
        (["Timeout"], [], False),
        ([], ["httpx.TransportError"], False),
        (["ConnectTimeout"], ["TransportError"], False),
        ([], ["ValueError"], True),
    ],
)
def test_rules_go_by_the_classes_of_an_error(retry_on: list[str], never_on: list[str], again: bool) -> None:
    assert may_retry(TIMEOUT, retry_on, never_on) is again


def test_of_an_unknown_error_rules_say_nothing() -> None:
    assert may_retry([], ["ConnectionError"], ["ValueError"])


def test_a_rule_may_name_the_package_of_a_class() -> None:
    assert names("requests.ConnectionError", "requests.exceptions.ConnectionError")
    assert not names("request.ConnectionError", "requests.exceptions.ConnectionError")

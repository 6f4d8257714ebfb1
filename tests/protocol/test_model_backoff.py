"""Delays before a retry: the reference server, "Retry, timeouts, dead letters"."""

from __future__ import annotations

import random

import pytest

from bunqueue.model.backoff import EXPONENTIAL, FIXED, MAX_BACKOFF_MS, retry_delay

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


@pytest.mark.parametrize("kind", [FIXED, EXPONENTIAL])
@pytest.mark.parametrize("chance", CHANCES)
@pytest.mark.parametrize("attempts", [1, 5, 32, 33, 64, 999, 1000])
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

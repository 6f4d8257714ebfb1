"""Looks at the server become points of charts."""

from __future__ import annotations

import pytest

from bunqueue.gateway.events.history import Look, Point, point_of, quantile


@pytest.mark.parametrize(
    ("counts", "share", "expected"),
    [
        ({}, 0.5, None),
        ({1: 0, 2: 0}, 0.5, None),
        ({1: 0, 2: 4}, 0.5, 1.5),  # in the middle of the second step
        ({1: 2, 2: 2}, 0.5, 1.0),
        ({1: 1, 2: 1, 4: 2}, 0.95, 3.8),
        ({1: 1, 2: 1, float("inf"): 8}, 0.95, 2.0),  # no more than this is known
        ({1: -1, 2: 4}, 0.5, None),  # a shard has forgotten some
    ],
)
def test_quantiles(counts: dict[float, int], share: float, expected: float | None) -> None:
    assert quantile(counts, share) == expected


def look(at: float, totals: tuple[int, int, int], waits: int = 0) -> Look:
    return Look(at, (3, 2, 1), totals, {"1": 0, "2": waits, "inf": 0}, {"1": waits, "2": 0, "inf": 0})


def test_two_looks_make_a_point() -> None:
    point = point_of([look(1000, (10, 5, 0)), look(3000, (14, 5, 1), 10)])
    assert point == Point(3000, 3, 2, 1, 2.0, 0.0, 0.5, 1.5, 1.95, 0.5, 0.95)


def test_what_is_not_known_is_not_guessed() -> None:
    assert point_of([look(1000, (10, 5, 0), 4)]) == Point(1000, 3, 2, 1, *[None] * 7)
    restarted = point_of([look(1000, (10, 5, 0), 4), look(3000, (2, 1, 0), 1)])
    assert restarted == Point(3000, 3, 2, 1, *[None] * 7)


def test_percentiles_are_of_the_whole_window() -> None:
    looks = [look(0, (0, 0, 0)), look(2000, (9, 9, 0), 9), look(4000, (9, 9, 0), 9)]
    assert point_of(looks).waitP50 == 1.5
    assert point_of(looks[1:]).waitP50 is None

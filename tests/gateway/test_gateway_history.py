"""Looks at the server become points of charts."""

from __future__ import annotations

import pytest

from bunqueue.gateway.events.history import Point, Sample, point_of, quantile


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


def sample(at: float, totals: tuple[int, int, int], waits: int = 0) -> Sample:
    return Sample(at, (3, 2, 1), totals, {"1": 0, "2": waits, "inf": 0}, {"1": waits, "2": 0, "inf": 0})


def test_two_looks_make_a_point() -> None:
    point = point_of([sample(1000, (10, 5, 0)), sample(3000, (14, 5, 1), 10)])
    assert point == Point(3000, 3, 2, 1, 2.0, 0.0, 0.5, 1.5, 1.95, 0.5, 0.95)


def test_what_is_not_known_is_not_guessed() -> None:
    assert point_of([sample(1000, (10, 5, 0), 4)]) == Point(1000, 3, 2, 1, *[None] * 7)
    restarted = point_of([sample(1000, (10, 5, 0), 4), sample(3000, (2, 1, 0), 1)])
    assert restarted == Point(3000, 3, 2, 1, *[None] * 7)


def test_percentiles_are_of_the_whole_window() -> None:
    samples = [sample(0, (0, 0, 0)), sample(2000, (9, 9, 0), 9), sample(4000, (9, 9, 0), 9)]
    assert point_of(samples).waitP50 == 1.5
    assert point_of(samples[1:]).waitP50 is None

"""Who shows wrong tokens is remembered for a minute, and by network where addresses are for free."""

from __future__ import annotations

import pytest

from bunqueue.server.host.auth_throttle import FREE, PERIOD_S, AuthThrottle, origin


def test_some_are_free_and_a_minute_later_again() -> None:
    throttle = AuthThrottle()
    assert [throttle.wrong("192.0.2.1", 5.0) for _ in range(FREE + 1)] == [False] * FREE + [True]
    assert throttle.is_throttled("192.0.2.1", 6.0)
    assert not throttle.is_throttled("192.0.2.2", 6.0)
    assert not throttle.is_throttled("192.0.2.1", 5.0 + PERIOD_S)
    assert throttle.total == FREE + 1


def test_news_are_told_once() -> None:
    throttle = AuthThrottle()
    assert throttle.news() == {}
    throttle.wrong("192.0.2.1", 5.0)
    throttle.wrong("192.0.2.2", 5.0)
    assert throttle.news() == {"wrong": 2, "address": "192.0.2.2", "addresses": 2}
    assert throttle.news() == {}


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("fe80::1%eth0", "fe80::"),
        ("", ""),
    ],
)
def test_origin(address: str, found: str) -> None:
    assert origin(address) == found

"""What a namespace may use, with the time as an argument."""

from __future__ import annotations

from bunqueue.model.quota import NO_QUOTA, Excess, Quota, Usage


def test_a_namespace_without_bounds_may_do_everything() -> None:
    usage = Usage()
    assert usage.quota == NO_QUOTA
    assert all(usage.take(10**9, 0.0) is None for _ in range(1000))
    assert all(usage.join() is None for _ in range(1000))


def test_commands_are_counted_for_a_second() -> None:
    usage = Usage(Quota(commands=3))
    assert [usage.take(1, 5.0 + at / 10) for at in range(3)] == [None] * 3
    assert usage.take(1, 5.4) == Excess("commands", 3, 3, 600)
    assert usage.take(1, 5.9999) == Excess("commands", 3, 3, 1)
    assert usage.take(1, 6.0) is None
    assert usage.commands == 1


def test_the_last_command_may_go_beyond_the_bytes() -> None:
    usage = Usage(Quota(bytes=100))
    assert usage.take(99, 0.0) is None
    assert usage.take(5000, 0.0) is None
    assert usage.take(1, 0.25) == Excess("bytes", 5099, 100, 750)
    assert usage.take(1, 1.0) is None


def test_a_command_that_is_too_large_is_never_allowed() -> None:
    usage = Usage(Quota(commands=1, payload=10))
    assert usage.take(11, 0.0) == Excess("payload", 11, 10)
    assert usage.take(10, 0.0) is None  # the refused one was not counted


def test_connections_leave_room_when_they_end() -> None:
    usage = Usage(Quota(connections=1))
    assert usage.join() is None
    assert usage.join() == Excess("connections", 1, 1)
    usage.leave()
    assert usage.join() is None
    usage.quota = Quota(connections=2)
    assert usage.join() is None

"""Units, options of jobs and connections, and the delays between attempts."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from bunqueue import AsyncQueue, Backoff, ConnectionOptions, NewJob, PayloadError, Worker
from bunqueue.client.connection_options import MAX_DELAY, milliseconds, reconnect_delay, seconds
from bunqueue.client.job_options import encode_data, wire_fields
from bunqueue.protocol.codec import decode_command
from bunqueue.protocol.commands import core
from bunqueue.protocol.commands.core import Push


@pytest.mark.parametrize(
    ("given", "expected"),
    [(5, 5), (1.0, 1), (1.5, 1.5), (timedelta(seconds=2), 2000), (timedelta(microseconds=500), 0.5)],
)
def test_durations_are_ms_or_timedeltas(given: float | timedelta, expected: float) -> None:
    value = milliseconds(given)
    assert value == expected
    assert type(value) is type(expected)
    assert seconds(given) == expected / 1000


def test_an_infinite_duration_stays_what_it_is() -> None:
    assert milliseconds(float("inf")) == float("inf")


def test_reconnect_delays_double_up_to_half_a_minute() -> None:
    middle = [reconnect_delay(failures, 0.5) for failures in range(1, 12)]
    assert middle[:4] == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert middle[-1] == MAX_DELAY
    assert reconnect_delay(10_000, 0.5) == MAX_DELAY


@pytest.mark.parametrize(("chance", "factor"), [(0.0, 0.7), (1.0, 1.3)])
def test_reconnect_delays_are_spread_by_thirty_percent(chance: float, factor: float) -> None:
    assert reconnect_delay(1, chance) == pytest.approx(0.1 * factor)


def test_what_is_not_given_is_not_sent() -> None:
    fields = wire_fields({"priority": None, "delay": timedelta(seconds=1)}, {})
    command = Push(queue="q", name="n", data=encode_data(None, ""), **fields)
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(command))
    assert sent == {"cmd": "PUSH", "queue": "q", "name": "n", "data": None, "delay": 1000}


def test_every_option_reaches_the_server() -> None:
    fields = wire_fields(
        {
            "priority": 5,
            "delay": 10,
            "lifo": True,
            "max_attempts": 4,
            "backoff": Backoff(timedelta(seconds=3), "fixed"),
            "ttl": 60_000,
            "timeout": 5_000,
            "unique_key": "k",
            "remove_on_complete": True,
            "remove_on_fail": True,
            "durable": True,
            "tags": ("a", "b"),
        },
        {},
    )
    sent = msgspec.msgpack.encode(Push(queue="q", data=encode_data({"x": 1}, ""), **fields))
    command = decode_command(sent)
    assert isinstance(command, core.Push)
    assert (command.priority, command.delay, command.lifo, command.max_attempts) == (5, 10, True, 4)
    assert command.backoff == core.BackoffMap(delay=3000, type="fixed")
    assert (command.ttl, command.timeout, command.unique_key) == (60_000, 5_000, "k")
    assert command.remove_on_complete
    assert command.remove_on_fail
    assert command.durable
    assert command.tags == ["a", "b"]


def test_given_options_win_over_defaults() -> None:
    defaults = wire_fields({"priority": 1, "tags": "one"}, {})
    assert wire_fields({"priority": 2, "tags": None}, defaults) == {"priority": 2, "tags": ["one"]}
    assert defaults == {"priority": 1, "tags": ["one"]}


def test_an_unknown_option_is_named() -> None:
    with pytest.raises(TypeError, match="no job option 'prioriti'; there are backoff, delay"):
        wire_fields({"prioriti": 1}, {})
    with pytest.raises(TypeError, match="no job option"):
        AsyncQueue("q", default_job_options={"prio": 1})  # type: ignore[typeddict-unknown-key]


def test_data_that_is_no_messagepack_is_refused_before_it_is_sent() -> None:
    with pytest.raises(PayloadError, match="the data cannot be encoded as MessagePack") as caught:
        encode_data({"x": object()}, "the data")
    assert caught.value.code == "payload"


def test_data_that_refers_to_itself_is_refused() -> None:
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(PayloadError, match="RecursionError"):
        encode_data(loop, "the data")


@pytest.mark.parametrize("name", ["", "a b", "x" * 257, None])
def test_impossible_queue_names_are_refused_at_once(name: str) -> None:
    with pytest.raises(ValueError, match="Queue name"):
        AsyncQueue(name)
    with pytest.raises(ValueError, match="Queue name"):
        Worker(name, print)


@pytest.mark.parametrize("options", [{"pool_size": 0}, {"command_timeout": 0}, {"ping_interval": -1}])
def test_impossible_connection_options_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        ConnectionOptions(**options)


@pytest.mark.parametrize("options", [{"concurrency": 0}, {"lock_ttl": 0}, {"pull_size": 0}, {"ack_batch": 0}])
def test_impossible_worker_options_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        Worker("q", print, **options)  # type: ignore[arg-type]


def test_a_new_job_shows_what_it_is() -> None:
    assert repr(NewJob("mail", 1, priority=2)) == "NewJob('mail', 1, **{'priority': 2})"

"""Units, options of jobs and connections, and the delays between attempts."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from bunqueue import (
    AsyncQueue,
    Backoff,
    BunqueueError,
    ConnectionOptions,
    Dedup,
    NewJob,
    OptionError,
    PayloadError,
    Queue,
    Unique,
    Worker,
)
from bunqueue.client.connection.options import MAX_DELAY, milliseconds, reconnect_delay, seconds
from bunqueue.client.conversion.encoding import STORABLE
from bunqueue.client.options.job import default_fields, encode_data, wire_fields
from bunqueue.protocol.codec import decode_command
from bunqueue.protocol.commands import core
from bunqueue.protocol.commands.core import KeyState, Push
from bunqueue.worker.reporting.results import encode_result
from bunqueue.workflow import values


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


BACKOFF_TYPES = ["constant", "linear", "exponential", "fixed"]


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ({"priority": 5_000_000}, ("priority", 5_000_000, 1_000_000)),
        ({"delay": "soon"}, ("delay", "soon", None)),
        ({"failure_policy": "hope"}, ("failure_policy", "hope", None)),
        ({"backoff": Backoff(jitter=3)}, ("backoff.jitter", 3, 1)),
        ({"backoff": Backoff(delays=[])}, ("backoff.delays", [], None)),
        ({"backoff": Backoff(retry_after="x")}, ("backoff.retry_after", "x", None)),  # type: ignore[arg-type]
        ({"backoff": Backoff(type="x")}, ("backoff.type", "x", BACKOFF_TYPES)),  # type: ignore[arg-type]
        ({"backoff": -5}, ("backoff", -5, 0)),
        ({"retry_on": []}, ("retry_on", [], None)),
        ({"unique": Unique(within=0)}, ("unique.within", 0, None)),
        ({"unique": Unique(within=-1)}, ("unique.within", -1, 0)),
        ({"unique": Unique(within="x")}, ("unique.within", "x", None)),  # type: ignore[arg-type]
        ({"unique": Unique(states=["odd"])}, ("unique.states", "odd", list(get_args(KeyState)))),  # type: ignore[list-item]
        ({"group": ""}, ("group", "", 1)),
        ({"group_max_size": 3}, ("group_max_size", None, None)),
        ({"dedup": Dedup(ttl=5)}, ("dedup", None, None)),
    ],
)
def test_a_refusal_names_the_field_the_value_and_the_bound(options: Any, refused: tuple[Any, ...]) -> None:
    with pytest.raises(OptionError) as caught:
        wire_fields(options, {})
    assert (caught.value.field, caught.value.value, caught.value.bound) == refused


def test_a_refusal_names_the_place_of_a_part() -> None:
    with Queue("parts", embedded=True) as queue, pytest.raises(OptionError) as caught:
        queue.add_bulk([("first", 1), NewJob("second", 2, max_attempts=0)])
    assert str(caught.value).startswith("job 1: max_attempts must be at least 1")
    assert (caught.value.field, caught.value.value, caught.value.bound) == ("jobs[1].max_attempts", 0, 1)
    with pytest.raises(OptionError) as caught:
        wire_fields({"prioritty": 1}, {})
    assert caught.value.field == "prioritty"


def test_a_refusal_is_the_same_in_another_process() -> None:
    error: OptionError = pickle.loads(pickle.dumps(OptionError("a: 1 is not", field="a", value=1, bound=2)))
    assert (str(error), error.field, error.value, error.bound) == ("a: 1 is not", "a", 1, 2)


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
    assert command.backoff == core.BackoffMap(delay=3000, type="fixed", jitter=0.1)
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
    with pytest.raises(OptionError, match=r"a job has no option 'prioriti'; did you mean priority\?"):
        wire_fields({"prioriti": 1}, {})
    with pytest.raises(TypeError, match=r"no option 'x'; there are .*, idempotency_key, .*, unique_key"):
        wire_fields({"x": 1}, {})
    with pytest.raises(OptionError, match=r"idempotency_key: .* give it to add or add_bulk"):
        wire_fields({"idempotency_key": "k"}, {})
    with pytest.raises(OptionError, match=r"default_job_options: \[1\] is not allowed; give a dict"):
        AsyncQueue("q", default_job_options=[1])  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="a job has no option 'prio'"):
        AsyncQueue("q", default_job_options={"prio": 1})  # type: ignore[typeddict-unknown-key]


def test_data_that_is_no_messagepack_is_refused_before_it_is_sent() -> None:
    with pytest.raises(PayloadError, match="the data cannot be encoded") as caught:
        encode_data({"x": object()}, "the data")
    assert caught.value.code == "payload"


def test_data_that_refers_to_itself_is_refused() -> None:
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(PayloadError, match="it contains itself"):
        encode_data(loop, "the data")


@pytest.mark.parametrize("name", ["", "a b", "x" * 257, None])
def test_impossible_queue_names_are_refused_at_once(name: str) -> None:
    with pytest.raises(ValueError, match="Queue name"):
        AsyncQueue(name)
    with pytest.raises(ValueError, match="Queue name"):
        Worker(name, print)


@pytest.mark.parametrize(
    "options",
    [
        {"pool_size": 0},
        {"command_timeout": 0},
        {"ping_interval": -1},
        {"pipelining": 1},
        {"auto_reconnect": None},
        {"reconnect_delay": 0},
        {"max_reconnect_attempts": 0},
    ],
)
def test_impossible_connection_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        ConnectionOptions(**options)


def test_the_delays_between_attempts_to_connect_are_options() -> None:
    options = ConnectionOptions(reconnect_delay=10, max_reconnect_delay=timedelta(milliseconds=25))
    assert [options.retry_delay(failures, 0.5) for failures in (1, 2, 3, 50)] == [0.01, 0.02, 0.025, 0.025]


@pytest.mark.parametrize("options", [{"concurrency": 0}, {"lock_ttl": 0}, {"pull_size": 0}, {"ack_batch": 0}])
def test_impossible_worker_options_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        Worker("q", print, **options)  # type: ignore[arg-type]


def refused(make: Callable[[], object]) -> str:
    with pytest.raises(OptionError) as caught:
        make()
    assert isinstance(caught.value, BunqueueError | ValueError)
    return str(caught.value)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"delay": "5x"}, "delay: '5x' is no span of time; give ms, or 500ms, 30s, 5m, 2h, 7d or 1h30m"),
        ({"delay": [5]}, "delay: [5] is not a time; give milliseconds, a timedelta, or a text such"),
        ({"delay": True}, "delay: True is not a time"),
        ({"delay": 10**30}, "delay must be at most 31536000000, not 1000000000000000000000000000000"),
        ({"ttl": -1}, "ttl must be at least 0, not -1"),
        ({"timeout": timedelta(days=2)}, "timeout must be at most 86400000, not 172800000"),
        ({"backoff": {"type": "foo"}}, "backoff: {'type': 'foo'} is not a time; give a bunqueue.Backoff"),
        ({"backoff": {"delay": 1, "maxDelay": 2}}, "backoff: {'delay': 1, 'maxDelay': 2} is not a time; "),
        ({"backoff": Backoff("foo")}, "backoff: 'foo' is no span of time"),
        ({"backoff": Backoff(1, "foo")}, "backoff: type: 'foo' is unknown; there are constant, linear, "),  # type: ignore[arg-type]
        ({"backoff": Backoff(-1)}, "backoff: delay must be at least 0, not -1"),
        ({"max_attempts": 0}, "max_attempts must be at least 1, not 0"),
        ({"max_attempts": "3"}, "max_attempts must be a number, not '3'"),
        ({"priority": 2**70}, "priority"),
        ({"lifo": "yes"}, "lifo must be true or false, not 'yes'"),
        ({"tags": 5}, "tags: 5 is not allowed; give a list of texts"),
        ({"tags": [5]}, "tags[0] must be a string, not [5]"),
        ({"unique_key": "x" * 2000}, "unique_key must be at most 1024 characters, not 'xxx"),
    ],
)
def test_job_options_that_are_not_allowed_are_refused_before_they_are_sent(
    options: dict[str, Any], text: str
) -> None:
    message = refused(lambda: wire_fields(options, {}))
    assert message.startswith(text)
    assert len(message) < 250
    assert refused(lambda: AsyncQueue("q", default_job_options=options)) == message  # type: ignore[arg-type]


def test_a_backoff_has_no_other_parts() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'maxDelay'"):
        Backoff(1_000, maxDelay=5_000)  # type: ignore[call-arg]


def test_texts_of_enums_are_texts() -> None:
    class Kind(StrEnum):
        MAIL = "mail"

    assert wire_fields({"unique_key": Kind.MAIL}, {}) == {"unique_key": "mail"}


@pytest.mark.parametrize("make", [partial(AsyncQueue, "q"), partial(Worker, "q", print)])
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"host": ""}, "host: '' is not allowed"),
        ({"host": 5}, "host: 5 is not allowed; give a host name or an IP address"),
        ({"port": 99999}, "port: 99999 is not allowed; give a number from 0 to 65535"),
        ({"port": "http"}, "port: 'http' is not allowed"),
        ({"port": True}, "port: True is not allowed"),
        ({"token": 5}, "token: the value (not shown) is not allowed; give a text, or None"),
        ({"data_path": "x.db"}, "data_path: only with embedded=True"),
        ({"embedded": True, "port": 1}, "port: embedded=True means no server"),
        ({"embedded": True, "host": "x"}, "host: embedded=True means no server"),
        ({"embedded": True, "token": "x"}, "token: embedded=True means no server"),
        ({"embedded": True, "url": "bunqueue://h"}, "url: embedded=True means no server"),
        ({"embedded": True, "tls": True}, "tls: embedded=True means no server"),
        ({"url": "bunqueue://h", "port": 1}, "url: it says where the server is, so leave out host and port"),
        ({"url": "http://h"}, "url: it is no address of a server"),
        ({"tls": "yes"}, "tls: 'yes' is not allowed; give True, an ssl.SSLContext or TlsOptions"),
        ({"embedded": True, "connection": ConnectionOptions()}, "connection: embedded=True means no server"),
        ({"embedded": True, "data_path": ""}, "data_path: '' is not allowed"),
    ],
)
def test_what_says_where_the_engine_is_must_fit_together(
    make: Any, options: dict[str, Any], text: str
) -> None:
    assert refused(lambda: make(**options)).startswith(text)


def test_ports_may_come_from_variables_and_paths_as_paths() -> None:
    assert AsyncQueue("q", port="7021")._caller.endpoint.port == 7021
    assert AsyncQueue("q", embedded=True, data_path=Path("x.db"))._caller.endpoint.data_path == "x.db"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"concurrency": "x"}, "concurrency: 'x' is not allowed; give a whole number from 1 on"),
        ({"lock_ttl": "1x"}, "lock_ttl: '1x' is no span of time"),
        ({"poll_timeout": "1x"}, "poll_timeout: '1x' is no span of time"),
        ({"lock_ttl": timedelta(days=2)}, "lock_ttl: datetime.timedelta(days=2) is not allowed"),
        ({"lock_ttl": 1000, "heartbeat_interval": 900}, "heartbeat_interval: 900 is not allowed"),
        ({"heartbeat_interval": 0}, "heartbeat_interval: 0 is not allowed"),
    ],
)
def test_worker_options_are_named_when_they_are_wrong(options: dict[str, Any], text: str) -> None:
    assert refused(lambda: Worker("q", print, **options)).startswith(text)


def test_locks_are_renewed_three_times_in_their_life_at_least() -> None:
    assert Worker("q", print)._config.renewal_interval == 10
    assert Worker("q", print, lock_ttl=900)._config.renewal_interval == 0.3
    assert Worker("q", print, lock_ttl=900, heartbeat_interval=100)._config.renewal_interval == 0.1


@pytest.mark.parametrize("handler", [None, 5, lambda: 1, lambda job, more: 1])
def test_a_handler_must_take_the_job(handler: Any) -> None:
    with pytest.raises(TypeError, match="handler: "):
        Worker("q", handler)


class Callable_:
    def __call__(self, job: object, more: int = 0) -> None:
        pass


@pytest.mark.parametrize("handler", [print, len, str, Callable_(), partial(lambda more, job: 1, 1)])
def test_whatever_takes_one_argument_is_a_handler(handler: Any) -> None:
    Worker("q", handler)


@pytest.mark.parametrize("name", ["", None, 5])
async def test_a_job_needs_a_name(name: Any) -> None:
    queue = AsyncQueue("q", port=1)
    for adding in (queue.add(name), queue.add_bulk([(name, 1)])):
        with pytest.raises(OptionError, match="name: a job cannot be called"):
            await adding


async def test_a_bulk_names_the_job_that_is_wrong() -> None:
    with pytest.raises(OptionError, match=r"^job 1: priority must be at most 1000000, not 10000000$"):
        await AsyncQueue("q", port=1).add_bulk([("a", 1), NewJob("b", 2, priority=10_000_000)])


@pytest.mark.parametrize("state", ["foo", ["waiting", "foo"]])
async def test_there_are_only_so_many_states(state: Any) -> None:
    with pytest.raises(OptionError, match="state: 'foo' is unknown; there are waiting, delayed"):
        await AsyncQueue("q", port=1).get_jobs(state)


def test_a_wrong_queue_name_is_cut_and_told_what_is_allowed() -> None:
    message = refused(lambda: AsyncQueue("ä" * 200))
    assert "give 1 to 256 of the characters a-z A-Z 0-9 _ - . :" in message
    assert len(message) < 220


def test_a_new_job_shows_what_it_is() -> None:
    assert repr(NewJob("mail", 1, priority=2)) == "NewJob('mail', 1, **{'priority': 2})"


@pytest.mark.parametrize("name", ["at", "delay", "ttl"])
def test_moments_are_times_from_now(name: str) -> None:
    wire = "ttl" if name == "ttl" else "delay"
    left = wire_fields({name: datetime.now(UTC) + timedelta(days=1)}, {})[wire]
    assert 86_400_000 - 60_000 < left <= 86_400_000
    assert wire_fields({name: datetime(2020, 1, 1, tzinfo=UTC)}, {}) == {wire: 0}
    with pytest.raises(OptionError, match=f"{name}: .* has no time zone"):
        wire_fields({name: datetime(2030, 1, 1)}, {})
    with pytest.raises(OptionError, match="a moment suits one job only"):
        default_fields({name: datetime(2030, 1, 1, tzinfo=UTC)})  # type: ignore[misc]


def test_a_moment_is_said_once_and_is_one() -> None:
    with pytest.raises(OptionError, match="at: delay says that already"):
        wire_fields({"at": datetime(2030, 1, 1, tzinfo=UTC), "delay": 5}, {})
    with pytest.raises(OptionError, match="at: 5 is no moment"):
        wire_fields({"at": 5}, {})


# -- what other errors name, for programs


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: encode_data(object(), "it"), ("data", "object", STORABLE)),
        (lambda: encode_result(object()), ("result", "object", STORABLE)),
        (lambda: values.stored("x" * 9, "it", 5), ("result", 10, 5)),
        (lambda: values.stored_state("x" * 70_000), ("state", 70_005, 65_536)),
    ],
)
def test_errors_name_field_value_and_bound(call: Callable[[], object], told: tuple[object, ...]) -> None:
    with pytest.raises(BunqueueError) as caught:
        call()
    assert (caught.value.field, caught.value.value, caught.value.bound) == told

"""A duration may be a text as on the command line, wherever one is taken: one parser, one set of refusals."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import typer
from support.table import table

from bunqueue import Backoff, Breaker, Dedup, OptionError, Postpone, RateLimit, Repeat, Retry, Unique
from bunqueue.cli.framework.values import span as on_the_command_line
from bunqueue.client.connection.address import parse_url
from bunqueue.client.connection.options import ConnectionOptions, milliseconds
from bunqueue.client.options.bounds import bound_settings
from bunqueue.client.options.cron import cron_command
from bunqueue.client.options.job import wire_fields
from bunqueue.client.options.moments import time_left
from bunqueue.worker.options import grace_of
from bunqueue.worker.reporting.failures import postponed, retry_in
from bunqueue.workflow.plans import name_and_span, sleep_span
from bunqueue.workflow.retry import policy_of


def _option(name: str) -> Callable[[Any], Any]:
    return lambda value: wire_fields({name: value}, {})


def _within(name: str, make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: wire_fields({name: make(value), "unique_key": "k"}, {})


OPTIONS = ("delay", "timeout", "ttl", "backoff", "keep_completed", "keep_failed", "stall_timeout", "repeat")
PLACES: dict[str, Callable[[Any], Any]] = {
    **{name: _option(name) for name in OPTIONS},
    "backoff list": lambda value: wire_fields({"backoff": [1, value]}, {}),
    "Backoff": lambda value: wire_fields({"backoff": Backoff(value, max_delay=value)}, {}),
    "Dedup": _within("dedup", lambda value: Dedup(ttl=value)),
    "Unique": lambda value: Unique(within=value).within and milliseconds(Unique(within=value).within or 0),
    "Repeat": lambda value: wire_fields({"repeat": Repeat(every=value)}, {}),
    "every": lambda value: cron_command("q", "c", None, {"every": value}),
    "RateLimit": lambda value: RateLimit(5, per=value).command("q"),
    "Breaker": lambda value: Breaker(failures=3, window=value, pause=value).command("q", None),
    "keep_age": lambda value: bound_settings(keep_age=value),
    "Postpone": lambda value: postponed(Postpone(value)),
    "Retry": lambda value: retry_in(Retry(value)),
    "retry of a step": lambda value: policy_of(Retry(value, max_delay=value, jitter=0)).next_delay(
        1, ValueError()
    ),
    "sleep": lambda value: sleep_span(name_and_span(value, None, {})[1], {}),
    "a named sleep": lambda value: sleep_span(name_and_span("nap", value, {})[1], {}),
    "grace": lambda value: grace_of({"grace": value}),
    "connection": lambda value: milliseconds(ConnectionOptions(command_timeout=value).command_timeout),
}


@table("place", PLACES.values(), PLACES)
def test_a_text_is_the_same_as_a_timedelta(place: Callable[[Any], Any]) -> None:
    assert place("5m") == place(timedelta(minutes=5))


TEXTS = {
    "5": 5,
    "1.5": 1.5,
    "500ms": 500,
    "30s": 30_000,
    "1.5h": 5_400_000,
    "1h30m": 5_400_000,
    "7d": 604_800_000,
    "1w": 604_800_000,
}
WRONG = ["", " 5m", "5 m", "-5m", "5M", "m", "5m!", "soon", "1e3", "\u0665m", "5m" * 51, "nan", "inf"]


def test_the_parser_is_that_of_the_command_line() -> None:
    for text, expected in TEXTS.items():
        assert milliseconds(text) == on_the_command_line(text) == expected, text
        assert type(milliseconds(text)) is type(expected)
    for text in WRONG:
        with pytest.raises(
            OptionError, match=r"delay: .* is no span of time; give ms, or 500ms, 30s"
        ) as found:
            time_left(text, "delay")
        assert (found.value.field, found.value.value) == ("delay", text)
        with pytest.raises(typer.BadParameter, match="is no span of time; give ms, or 500ms, 30s"):
            on_the_command_line(text)


def test_lists_urls_and_names() -> None:
    assert wire_fields({"backoff": "1s,5s,1m"}, {}) == wire_fields({"backoff": [1_000, 5_000, 60_000]}, {})
    assert parse_url("bunqueue://h?command_timeout=5s").options == {"command_timeout": 5_000}
    with pytest.raises(OptionError, match="command_timeout: 'soon' is no span of time"):
        parse_url("bunqueue://h?command_timeout=soon")
    assert name_and_span("nap", None, {"days": 1}) == ("nap", None)
    with pytest.raises(OptionError, match="give a duration"):
        sleep_span(name_and_span("nap", None, {})[1], {})

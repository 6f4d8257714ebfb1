"""What users write, what people read, and where the server is by the flags."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime

import pytest
import typer

from bunqueue import text as readable
from bunqueue.cli.commands.top.numbers import samples_of, server_now
from bunqueue.cli.commands.top.view import spark
from bunqueue.cli.framework.server_address import endpoint_of, url_of
from bunqueue.cli.framework.values import begun, data, span, span_or_moment
from bunqueue.client.connection.tls import TlsOptions
from bunqueue.server.settings import SettingsError


@pytest.mark.parametrize(
    ("text", "ms"),
    [("0", 0), ("1500", 1500), ("1.5", 1.5), ("250ms", 250), ("1.5h", 5_400_000), ("1h30m", 5_400_000),
     ("2d", 172_800_000), ("1w", 604_800_000), ("0.5s", 500)],
)  # fmt: skip
def test_spans(text: str, ms: float) -> None:
    assert span(text) == ms
    assert isinstance(span(text), int) == (ms == int(ms))


@pytest.mark.parametrize("text", ["", "-1", "1 h", "1y", "h", "1h-30m", "1e3", "inf", "nan", "٣"])
def test_what_is_no_span(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="no span of time"):
        span(text)


@pytest.mark.parametrize(
    ("text", "moment"),
    [("2026-01-31T12:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
     ("2026-01-31 12:00:30.5+02:00", datetime(2026, 1, 31, 10, 0, 30, 500_000, tzinfo=UTC))],
)  # fmt: skip
def test_moments(text: str, moment: datetime) -> None:
    assert span_or_moment(text) == moment
    assert begun(span_or_moment(text)) == moment.timestamp() * 1000
    assert span_or_moment("1h30m") == 5_400_000
    assert span_or_moment("20260131") == 20_260_131
    assert abs(begun(60_000) - (time.time() * 1000 - 60_000)) < 5_000


@pytest.mark.parametrize(
    ("text", "problem"),
    [("2026-01-31T12:00", "has no time zone; give 2026-01-31T12:00Z for UTC, or 2026-01-31T12:00+02:00"),
     ("2026-01-31", "has no time zone; give 2026-01-31T00:00Z"),
     ("2026-13-01T00:00Z", "is no moment"),
     ("tomorrow", "is no span of time; give ms, or 500ms, 30s, 5m, 2h, 7d or 1h30m, or a moment")],
)  # fmt: skip
def test_what_is_no_moment(text: str, problem: str) -> None:
    with pytest.raises(typer.BadParameter, match=re.escape(problem)):
        span_or_moment(text)


def test_data() -> None:
    assert data('{"a": [1, null, "ü"]}') == {"a": [1, None, "ü"]}
    for text in ("", "word", "{'a': 1}", "[" * 100_000, "@/nowhere"):
        with pytest.raises(typer.BadParameter):
            data(text)


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "0 ms"), (0.25, "0.2 ms"), (999, "999 ms"), (1500, "1.5 s"), (59_990, "60.0 s"), (200_000, "3m 20s"),
     (7_500_000, "2h 5m"), (3_600_000, "1h"), (273_600_000, "3d 4h")],
)  # fmt: skip
def test_spans_for_people(ms: float, text: str) -> None:
    assert readable.span_of(ms) == text


def test_texts_for_people() -> None:
    assert readable.printable("a\tb\nc\x1b[31m\x9b\u202e") == "a\\tb\\nc\\x1b[31m\\x9b\\x202e"
    assert [readable.number_of(value) for value in (1234, 1.25, 0)] == ["1,234", "1.2", "0"]
    assert [readable.size_of(value) for value in (999, 1500, 2.5e6, 3e12)] == [
        "999 B",
        "1.5 KB",
        "2.5 MB",
        "3.0 TB",
    ]
    assert [readable.plural(count) for count in (0, 1, 1234)] == ["0 jobs", "1 job", "1,234 jobs"]
    assert readable.time_of(1e20) == "1" + "0" * 20


def test_where_the_server_is() -> None:
    assert url_of({}, {}) is None
    assert url_of({"port": "7000"}, {}) == "bunqueue://127.0.0.1:7000"
    assert url_of({"host": "::1"}, {}) == "bunqueue://[::1]:6789"
    assert (
        url_of({"tls": True}, {"BUNQUEUE_URL": "bunqueue://t@h?pool_size=2"}) == "bunqueues://t@h?pool_size=2"
    )
    assert url_of({"host": "h", "tls_no_verify": True}, {}) == "bunqueues://h:6789?verify=false"
    with pytest.raises(SettingsError, match="give one or the other"):
        url_of({"url": "bunqueue://h", "port": "1"}, {})
    found = endpoint_of({"host": "h", "tls_server_name": "n&m=/"}, environ={"BUNQUEUE_TOKEN": "t"})
    assert (found.host, found.port, found.token) == ("h", 6789, "t")
    assert isinstance(found.tls, TlsOptions)
    assert found.tls.server_name == "n&m=/"
    assert endpoint_of({"token": "a"}, environ={"BUNQUEUE_URL": "bunqueue://b@h"}).token == "a"


TEXT = """
bunqueue_build_info{{version="1.2",python="3"}} 1
bunqueue_uptime_seconds {uptime}
bunqueue_jobs_waiting 5
bunqueue_jobs_completed_total {completed}
bunqueue_job_wait_seconds_bucket{{le="+Inf"}} {completed}
bunqueue_job_wait_seconds_count {completed}
bunqueue_job_wait_seconds_sum {waited}
bunqueue_queue_jobs_waiting{{queue="a"}} 5
bunqueue_queue_oldest_waiting_seconds{{queue="a"}} 2.5
bunqueue_shard_up{{shard="0"}} 1
bunqueue_shard_jobs_completed_total{{shard="0"}} {completed}
bunqueue_storage_degraded{{shard="0"}} 0
bunqueue_process_resident_memory_bytes{{process="router"}} 100
bunqueue_process_cpu_seconds_total{{process="router"}} {cpu}
"""


def test_two_looks_make_a_speed() -> None:
    before = samples_of(TEXT.format(uptime=10, completed=100, waited=1, cpu=1))
    after = samples_of(TEXT.format(uptime=12, completed=300, waited=5, cpu=2))
    first = server_now(before, None, 0)
    assert (first.version, first.rates["completed"], first.waited) == ("1.2", 0.0, None)
    now = server_now(after, before, 2.0)
    assert (now.uptime, now.jobs["waiting"], now.rates["completed"], now.waited) == (12_000, 5, 100.0, 20.0)
    assert (now.queues[0].name, now.queues[0].oldest, now.degraded) == ("a", 2500, False)
    router, shard = now.processes
    assert (router.cpu, shard.completed, shard.up) == (0.5, 100.0, True)
    restarted = server_now(before, after, 2.0)
    assert restarted.rates["completed"] == 0.0


def test_little_charts() -> None:
    assert spark([]) == " " * 40
    assert spark([0, 1, 4, 8]).strip() == "▁▄█"
    assert len(spark([1.0] * 40)) == 40
    assert spark([8, 4, 2, 1], 2) == "█▄"
    assert spark([1, 2], -3) == ""

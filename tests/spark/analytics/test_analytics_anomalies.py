"""What is reported as unusual, and what is not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from bunqueue.analytics import words
from bunqueue.analytics.anomalies import Anomaly, find
from bunqueue.analytics.buckets import Buckets

UTC_ZONE = ZoneInfo("UTC")
BEGIN = datetime(2026, 11, 20, tzinfo=UTC)
HOURS = Buckets("hour", UTC_ZONE)


def hour(number: int, rate: float = 0.01, wait: float | None = 100.0, attempts: int = 200) -> dict[str, Any]:
    return {
        "host": "web",
        "queue": "mail",
        "bucket": BEGIN + timedelta(hours=number),
        "attempts": attempts,
        "failed_attempts": round(rate * attempts),
        "attempt_failure_rate": rate,
        "wait_p95": wait,
    }


def found(rows: list[dict[str, Any]]) -> list[Anomaly]:
    return find(rows, HOURS.next)


def test_a_bad_afternoon() -> None:
    rows = [hour(number, 0.01 + number % 3 / 1000) for number in range(24)]
    for number in (14, 15, 17):  # and a better hour in between
        rows[number] = hour(number, 0.3 + number / 100)
    (anomaly,) = found(rows)
    assert anomaly.what == "attempt_failure_rate"
    assert (anomaly.since, anomaly.until) == (BEGIN + timedelta(hours=14), BEGIN + timedelta(hours=18))
    assert (anomaly.worst, anomaly.attempts) == (0.47, 600)
    assert 0.01 <= anomaly.usual < anomaly.bound <= 0.07
    text = words.describe(anomaly, UTC_ZONE, 1, "HTTPError: 503")
    assert text == (
        "mail failed more than usual: Fri 20 Nov 2026, 14:00 to 18:00, up to 47 % of its attempts failed;"
        " usually 1.1 % do. Most often: HTTPError: 503"
    )


def test_a_queue_that_waited() -> None:
    rows = [hour(number, wait=100 + number) for number in range(24)]
    rows[9] = hour(9, wait=90_000)
    (anomaly,) = found(rows)
    assert (anomaly.what, anomaly.worst) == ("wait_p95", 90_000)
    assert "mail on web kept jobs waiting: " in words.describe(anomaly, UTC_ZONE, 2)
    assert "1m 30s or longer; usually that is 112 ms" in words.describe(anomaly, UTC_ZONE, 2)


def test_what_is_no_news() -> None:
    usual = [hour(number) for number in range(24)]
    assert found(usual) == []
    assert found([*usual[:-1], hour(23, 0.05)]) == []  # a little more
    assert found([*usual[:-1], hour(23, 0.9, attempts=10)]) == []  # of a few
    assert found([*usual[:-1], hour(23, wait=1000.0)]) == []  # a second is soon over
    assert found([*usual[:-1], hour(23, wait=None)]) == []
    assert found([hour(number, 0.01 if number else 0.9) for number in range(7)]) == []  # what is usual?


def test_what_always_fails_is_usual() -> None:
    assert found([hour(number, 0.4 + number % 5 / 100) for number in range(48)]) == []


def test_two_that_are_apart_are_two() -> None:
    rows = [hour(number, 0.5 if number in (3, 6) else 0.01) for number in range(24)]
    assert [anomaly.since.hour for anomaly in found(rows)] == [3, 6]

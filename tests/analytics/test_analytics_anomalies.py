"""What is reported as unusual, and what is not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from bunqueue.analytics import words
from bunqueue.analytics.anomalies import Anomaly, find, worst_name
from bunqueue.analytics.buckets import Buckets

UTC_ZONE = ZoneInfo("UTC")
BEGIN = datetime(2026, 11, 20, tzinfo=UTC)
HOURS = Buckets("hour", UTC_ZONE)


def hour(
    number: int,
    rate: float = 0.01,
    wait: float | None = 100.0,
    attempts: int = 200,
    run: float = 22.0,
    name: str | None = None,
    queue: str = "mail",
) -> dict[str, Any]:
    """A row of a queue, or of a name of its jobs."""
    return {
        "host": "web",
        "queue": queue,
        **({} if name is None else {"name": name}),
        "bucket": BEGIN + timedelta(hours=number),
        "attempts": attempts,
        "failed_attempts": round(rate * attempts),
        "attempt_failure_rate": rate,
        "wait_p95": wait,
        "run_p50": run,
        "run_p95": 2 * run,
        "total_p95": None if wait is None else wait + 2 * run,
    }


def found(rows: list[dict[str, Any]], since: datetime = BEGIN) -> list[Anomaly]:
    return find(rows, since, HOURS)


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
    """It took longer from push to end, too, which the waiting explains."""
    rows = [hour(number, wait=100 + number) for number in range(24)]
    rows[9] = hour(9, wait=90_000)
    (anomaly,) = found(rows)
    assert (anomaly.what, anomaly.worst) == ("wait_p95", 90_000)
    assert "mail on web kept jobs waiting: " in words.describe(anomaly, UTC_ZONE, 2)
    assert "1m 30s or longer; usually that is 112 ms" in words.describe(anomaly, UTC_ZONE, 2)


def test_a_queue_that_ran_slower() -> None:
    rows = [hour(number) for number in range(24)]
    rows[9] = hour(9, run=178)
    (anomaly,) = found(rows)
    assert (anomaly.what, anomaly.usual, anomaly.worst) == ("run_p50", 22, 178)
    assert words.describe(anomaly, UTC_ZONE, 1) == (
        "mail ran slower than usual: Fri 20 Nov 2026, 09:00 to 10:00, half of its jobs ran 178 ms or longer;"
        " usually that is 22 ms."
    )


def test_the_same_hours_before() -> None:
    """Nights are slow each day, and days are fast: a slow day is news, and a slow night is not."""
    rows = [hour(number, run=900 if number % 24 < 8 else 20) for number in range(6 * 24)]
    today = BEGIN + timedelta(days=5)
    assert found(rows, today) == []
    rows[5 * 24 + 12] = hour(5 * 24 + 12, run=900)
    (anomaly,) = found(rows, today)
    assert (anomaly.since, anomaly.usual) == (today + timedelta(hours=12), 20)
    rows[4 * 24 + 12] = hour(4 * 24 + 12, run=900)  # yesterday is only what is compared with
    assert len(found(rows, today)) == 1


def test_days_are_compared_with_days() -> None:
    rows = [{**hour(0, run=22), "bucket": BEGIN + timedelta(days=number)} for number in range(30)]
    rows[-1] = {**hour(0, run=178), "bucket": BEGIN + timedelta(days=29)}
    (anomaly,) = find(rows, BEGIN + timedelta(days=29), Buckets("day", UTC_ZONE))
    assert (anomaly.usual, anomaly.until - anomaly.since) == (22, timedelta(days=1))


def test_one_busy_hour_is_one_finding() -> None:
    """Of several queues and numbers; another hour is another one, and failures come first."""
    rows = [hour(number, queue=queue) for queue in ("mail", "pay") for number in range(24)]
    rows[9] = hour(9, wait=90_000, run=500)
    rows[24 + 9] = hour(9, wait=70_000, queue="pay")
    rows[24 + 20] = hour(20, rate=0.5, queue="pay")
    assert [(one.finding, one.queue, one.what) for one in found(rows)] == [
        (1, "pay", "attempt_failure_rate"),
        (2, "mail", "wait_p95"),
        (2, "mail", "run_p50"),
        (2, "pay", "wait_p95"),
    ]


def test_names_are_judged_too() -> None:
    """One whose jobs are too few to change their queue; not where all of the queue is as bad."""
    rows = [hour(number) for number in range(24)]
    rare = [hour(number, name="digest", attempts=30) for number in range(24)]
    rare[9] = hour(9, name="digest", attempts=30, run=400)
    (anomaly,) = found([*rows, *rare])
    assert (anomaly.name, anomaly.what) == ("digest", "run_p50")
    assert words.describe(anomaly, UTC_ZONE, 1).startswith("digest in mail ran slower than usual: ")
    rows[9] = hour(9, run=300)
    (anomaly,) = found([*rows, *rare])
    assert anomaly.name is None
    assert worst_name([hour(9, name="welcome"), rare[9]], anomaly) == ("digest", 400)
    assert worst_name([hour(9, name="welcome", run=390), rare[9]], anomaly) is None


def test_what_is_no_news() -> None:
    usual = [hour(number) for number in range(24)]
    assert found(usual) == []
    assert found([*usual[:-1], hour(23, 0.05)]) == []  # a little more
    assert found([*usual[:-1], hour(23, 0.9, attempts=10)]) == []  # of a few
    assert found([*usual[:-1], hour(23, wait=1000.0)]) == []  # a second is soon over
    assert found([*usual[:-1], hour(23, run=90.0)]) == []  # so are 70 ms
    assert found([*usual[:-1], hour(23, wait=None)]) == []
    assert found([hour(number, 0.01 if number else 0.9) for number in range(7)]) == []  # what is usual?


def test_what_always_fails_is_usual() -> None:
    assert found([hour(number, 0.4 + number % 5 / 100) for number in range(48)]) == []


def test_two_that_are_apart_are_two() -> None:
    rows = [hour(number, 0.5 if number in (3, 6) else 0.01) for number in range(24)]
    assert [(anomaly.since.hour, anomaly.finding) for anomaly in found(rows)] == [(3, 1), (6, 2)]

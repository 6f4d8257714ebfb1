"""What the parts of a report say of figures that are known."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

from bunqueue.analytics import files, numbers
from bunqueue.analytics.page import charts, headline, sections, work
from bunqueue.analytics.page.document import document
from bunqueue.analytics.page.figures import About, Figures, Left, Row

BEGIN = datetime(2026, 11, 20, tzinfo=UTC)


def activity(**known: Any) -> dict[str, Any]:
    """A row's numbers: nothing but what is given."""
    counts = {number.name: 0 if number.unit in ("jobs", "attempts") else None for number in numbers.ACTIVITY}
    return {**counts, "run_total": 0, "run_wasted": 0, "throughput": 0.0, **known}


def queue(name: str, **known: Any) -> Row:
    return {"host": "web", "queue": name, **activity(**known)}


def left(name: str, hour: int, waiting: int, unfinished: int) -> Row:
    bucket = BEGIN + timedelta(hours=hour)
    return {"host": "web", "queue": name, "bucket": bucket, "waiting": waiting, "unfinished": unfinished}


def figures(hours: int = 10, totals: dict[str, Any] | None = None, **tables: list[Row]) -> Figures:
    about = About(BEGIN, BEGIN + timedelta(hours=hours), "hour", ZoneInfo("UTC"), ("web",), BEGIN)
    known: dict[str, list[Row]] = {table.name: [] for table in numbers.TABLES}
    return Figures(about, {**known, "totals": [activity(**(totals or {}))], **tables})


def text(html: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", html)).split())


def test_the_lead_says_where_failures_and_what_waits_are() -> None:
    page = figures(
        totals={
            "completed": 90,
            "failed": 9,
            "cancelled": 1,
            "retried": 12,
            "run_wasted": 7_200_000,
            "waste_rate": 0.2,
        },
        queues=[queue("mail", completed=80, failed=2), queue("pay", completed=10, failed=7)],
        backlog=[left("mail", 0, 50, 50), left("mail", 3, 4, 9), left("pay", 1, 1, 1)],
    )
    assert text(headline.lead(page)) == (
        "100 jobs ended, 90 % of them completed; 9 failed for good, 7 of them in pay."
        " 12 jobs took more than one attempt. Attempts that did not complete their job took 20 % of all"
        " working time: 2.0 hours."
        " At the end 5 jobs were waiting for a worker, 4 of them in mail."
    )


@pytest.mark.parametrize("queues", [["mail"], ["mail", "pay"]])
def test_the_lead_names_no_queue_where_there_is_one(queues: list[str]) -> None:
    rows = [queue(name, failed=int(name == "mail")) for name in queues]
    page = figures(totals={"failed": 1}, queues=rows, backlog=[left("mail", 0, 1, 1), left("mail", 2, 0, 0)])
    more = ", all of them in mail" if len(queues) > 1 else ""
    assert text(headline.lead(page)) == f"1 job ended, 0 % of them completed; 1 failed for good{more}."


def test_nothing_has_ended() -> None:
    page = figures(
        queues=[queue("mail", created=1)],
        backlog=[left("mail", 0, 1, 1)],
        backlog_over_time=[left("", 0, 1, 1)],
    )
    assert (
        text(headline.lead(page))
        == "No job has ended in this time. At the end 1 job was waiting for a worker."
    )
    said = text(document(page))
    assert "Running" not in said
    assert "0.5" not in said
    assert "mail stands still: 1 job waiting at the end, and no attempt has ended in this time." in said
    assert "Most waiting 1 1 at the end" in said


@pytest.mark.parametrize(
    ("hours", "judged", "said", "looks"),
    [
        (7, 2, "The time is too short to say what is usual: less than 8 hours.", "unknown"),
        (
            10,
            0,
            "No queue was busy enough to say what is usual in it: that takes 20 attempts in each of 8 hours.",
            "unknown",
        ),
        (
            10,
            1,
            "No queue left its usual band of failures, waits and run times. 1 of 2 were busy enough to tell.",
            "calm",
        ),
        (10, 2, "No queue left its usual band of failures, waits and run times.", "calm"),
    ],
)
def test_nothing_stood_out(hours: int, judged: int, said: str, looks: str) -> None:
    page = replace(figures(hours, queues=[queue("mail"), queue("pay")]), judged=judged)
    assert text(headline.unusual(page)) == f"What stood out {said}"
    assert f"class='card {looks}'" in headline.unusual(page)


def busy(name: str, hours: int, attempts: int = 20) -> list[Row]:
    return [
        {**queue(name, attempts=attempts), "bucket": BEGIN + timedelta(hours=hour)} for hour in range(hours)
    ]


def test_what_a_page_takes_of_tables() -> None:
    """Of the backlog its end, and of how many queues it can be said what is usual, shown or not."""
    rows: dict[str, list[Row]] = {
        "queues_over_time": [*busy("mail", 8), *busy("pay", 9, 19), *busy("slow", 7), *busy("z", 9)],
        "queues": [queue(name) for name in ("mail", "pay", "slow", "z")],
        "backlog": [left("mail", 0, 5, 7), left("mail", 4, 2, 3), left("pay", 1, 1, 1)],
        "totals": [activity()],
    }
    tables = {
        table.name: pa.Table.from_pylist(
            [dict(row) for row in rows.get(table.name, [])], files.schema_of(table)
        )
        for table in numbers.TABLES
    }
    page = files.figures_of(figures().about, tables)
    assert page.judged == 2
    assert page.left == {("web", "mail"): Left(2, 1), ("web", "pay"): Left(1, 0)}


def test_a_queue_says_what_became_of_its_jobs_and_what_is_left() -> None:
    row = queue("mail", completed=7, failure_rate=0.3, failed=3, cancelled=2, removed=1, wait_p95=2000.0)
    page = figures(queues=[row], backlog=[left("mail", 1, 4, 6)])
    assert (
        "7 completed, 30 % failed , 2 cancelled, 1 removed wait 2.0 s (95 %) at the end 4 waiting,"
        " 2 running or not due"
    ) in text(sections.queues(page))
    assert "at the end" not in text(sections.queues(figures(queues=[row], backlog=[left("mail", 1, 0, 0)])))


@pytest.mark.parametrize(
    ("attempts", "slots", "said"),
    [
        (1, 1, "2.0 s of work, 1 attempt"),
        (3, 3, "2.0 s of work, 3 attempts"),
        (9, 3, "2.0 s of work, 9 attempts 50 % of 3 places used"),
    ],
)
def test_who_did_little_was_not_full(attempts: int, slots: int, said: str) -> None:
    row = {"host": "web", "worker": "w", "busy": 2000, "attempts": attempts, "slots": slots}
    page = figures(workers=[{**row, "failed_attempts": 0, "utilisation": 0.5}])
    assert said == text(work.workers(page)).partition(" w ")[2].partition(" 00:00")[0]


def test_a_worker_goes_by_its_name() -> None:
    rows: list[Row] = [
        {"host": "web", "worker": name, "busy": 1, "attempts": 1, "slots": 1, "utilisation": 1.0}
        for name in ("sends:4711:0a1b2c3d", "a:b", "")
    ]
    said = work.workers(figures(workers=rows))
    assert "sends<small>4711:0a1b2c3d</small>" in said
    assert "a:b<small></small>" in said
    assert "(no name given)" in said


def test_half_a_job_is_on_no_axis() -> None:
    ends = {value: charts.ceiling_count(value) for value in (0, 1, 3, 5, 12, 21, 49, 50, 60, 240, 999)}
    assert list(ends.values()) == [2, 2, 4, 6, 20, 30, 50, 50, 100, 250, 1000]
    assert all(end % 2 == 0 for end in ends.values())

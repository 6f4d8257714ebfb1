"""Every number of the tables, against an independent computation on histories that a real server made."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import oracle
import pytest
from history import at_another_time, put_at
from oracle import Clock, Known

from bunqueue.analytics import inputs, numbers, pipeline
from bunqueue.analytics.engines.duck import Duck
from bunqueue.analytics.pipeline import Wanted

ROME = "Europe/Rome"
# Clocks go forward on 29 March 2026 at 2 o'clock, and back on 25 October at 3.
FORWARD = round(datetime(2026, 3, 28, 21, tzinfo=UTC).timestamp() * 1000)
BACK = round(datetime(2026, 10, 24, 20, tzinfo=UTC).timestamp() * 1000)
# Where these days begin and end in Rome, and the milliseconds before that.
MIDNIGHTS = tuple(
    round(datetime(2026, month, day, tzinfo=ZoneInfo(ROME)).timestamp() * 1000) - before
    for month, day in ((3, 29), (3, 30), (10, 25), (10, 26))
    for before in (1, 0)
)

Row = dict[str, Any]


class Case(NamedTuple):
    """Tables, and what there was to make them of."""

    since: int | None
    tables: dict[str, list[Row]]
    known: Known
    clock: Clock


class Setting(NamedTuple):
    """``hosts``: where the history of each begins, and how much slower it goes; ``half``: since halfway;
    ``edges``: when some jobs ended."""

    hosts: dict[str, tuple[int, int]]
    zone: str
    bucket: str | None = None
    half: bool = False
    edges: tuple[int, ...] = ()


CASES = {
    "a night in which clocks go forward": Setting({"web": (FORWARD, 3600)}, ROME),
    "days on which clocks change, two hosts": Setting(
        {"web": (BACK, 3600), "api": (BACK + 7_200_000, 7200)}, ROME, "day", edges=MIDNIGHTS
    ),
    "from a moment on, at which much was under way": Setting(
        {"web": (BACK, 3600)}, "Asia/Kolkata", "hour", half=True
    ),
}


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, past: Path, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """The tables of some hosts, made once."""
    hosts, zone, bucket, half, edges = CASES[request.param]
    place = tmp_path_factory.mktemp("hosts")
    folders = {host: at_another_time(past, place / host, *when) for host, when in hosts.items()}
    for folder in folders.values():
        if edges:
            put_at(folder, edges)
    known = oracle.look_at(folders)
    since = oracle.halfway(known) if half else None
    paths = [str(path) for path in folders.values()]
    begin = None if since is None else datetime.fromtimestamp(since / 1000, UTC)
    asked = Wanted(begin, None, bucket, ZoneInfo(zone))
    duck = Duck()
    source, notes = inputs.from_folders(duck, paths, list(folders), since=asked.read_since)
    result = pipeline.aggregate(duck, source, asked)
    duck.close()
    assert not notes
    about = result.about
    clock = Clock(about.unit, zone, ms(about.since), ms(about.until))
    return Case(
        since,
        {name: table.to_pylist() for name, table in result.tables.items()},
        oracle.look_at(folders),
        clock,
    )


def ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


KEYS: dict[str, tuple[str, ...]] = {
    "totals": (),
    "over_time": ("bucket",),
    "queues": ("host", "queue"),
    "queues_over_time": ("host", "queue", "bucket"),
    "names": ("host", "queue", "name"),
    "names_over_time": ("host", "queue", "name", "bucket"),
}


@pytest.mark.parametrize("table", KEYS)
def test_activity(case: Case, table: str) -> None:
    keys = KEYS[table]

    def key(each: Any, at: int) -> tuple[Any, ...]:
        return tuple(case.clock.bucket(at) if name == "bucket" else getattr(each, name) for name in keys)

    def length(group: tuple[Any, ...]) -> int:
        return case.clock.length(group[-1] if "bucket" in keys else None)

    expected = oracle.activity(case.known, case.clock, key, length)
    found = {key_of(row, keys): row for row in case.tables[table]}
    assert found.keys() == expected.keys()
    for group, row in found.items():
        assert_same(row, expected[group], (table, group))
    assert list(case.tables[table][0]) == list(numbers_of(table))


def key_of(row: Row, keys: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(ms(row[name]) if name == "bucket" else row[name] for name in keys)


def numbers_of(table: str) -> tuple[str, ...]:
    return next(each for each in numbers.TABLES if each.name == table).columns


def assert_same(row: Row, expected: Row, what: object) -> None:
    for name, value in expected.items():
        assert row[name] == (None if value is None else pytest.approx(value)), (what, name)


def test_the_history_has_everything(case: Case) -> None:
    """Otherwise the other tests would compare nothing with nothing."""
    (row,) = case.tables["totals"]
    if case.since is not None:
        begin = case.since
        assert any((job.ended or begin) < begin for job in case.known.jobs), "some had ended before"
        assert any(job.created < begin < (job.ended or 0) for job in case.known.jobs)
        return
    counted = (
        "completed",
        "failed",
        "cancelled",
        "expired",
        "removed",
        "retried",
        "failed_attempts",
        "run_wasted",
    )
    assert all(row[name] > 0 for name in counted)
    outcomes = {each.outcome for each in case.known.attempts}
    assert outcomes >= {
        "completed",
        "explicit_fail",
        "timeout",
        "stalled",
        "cancelled",
        "interrupted",
        "failed",
    }
    jobs, attempts = case.known.jobs, case.known.attempts
    assert any(job.outcome is None and job.due is None for job in jobs), "one is blocked"
    assert any(job.due is not None and (job.ended or job.due) < job.due for job in jobs), "one ended early"
    assert any(job.outcome == "failed" and job.failures == 1 for job in jobs), "one failed at once"
    assert any(each.outcome == "interrupted" and each.started != each.ended for each in attempts)
    starts = {(each.host, each.worker, each.started) for each in attempts if each.queue == "relay"}
    ends = {(each.host, each.worker, each.ended) for each in attempts if each.queue == "relay"}
    assert starts & ends, "one ended as another began"
    assert row["wait_max"] > row["wait_p50"] >= 0


def test_the_range(case: Case) -> None:
    moments = [at for job in case.known.jobs for at in (job.created, job.ended) if at is not None]
    assert case.clock.until == max(moments) + 1
    first = min(job.ended for job in case.known.jobs if job.ended is not None)
    assert case.clock.since == (case.since or case.clock.bucket(first))


def test_backlog(case: Case) -> None:
    queues = defaultdict(list)
    for job in case.known.jobs:
        queues[job.host, job.queue].append(job)
    rows = {(row["host"], row["queue"], ms(row["bucket"])): row for row in case.tables["backlog"]}
    for (host, queue), jobs in queues.items():
        check_backlog(
            case, jobs, lambda bucket, host=host, queue=queue: rows.pop((host, queue, bucket), None)
        )
    assert not rows
    totals = {ms(row["bucket"]): row for row in case.tables["backlog_over_time"]}
    check_backlog(case, case.known.jobs, lambda bucket: totals.pop(bucket, None))
    assert not totals


def check_backlog(case: Case, jobs: list[oracle.Job], take: Callable[[int], Row | None]) -> None:
    last = (0, 0)
    for bucket in case.clock.all():
        row = take(bucket)
        if row is not None:
            last = row["waiting"], row["unfinished"]
        moment = min(case.clock.after(bucket), case.clock.until)
        assert last == oracle.backlog(jobs, moment), (bucket, row)


def test_workers(case: Case) -> None:
    whose = defaultdict(list)
    for attempt in case.known.attempts:
        if attempt.started is not None and case.clock.since <= attempt.ended:
            whose[attempt.host, attempt.worker].append(attempt)
    found = {(row["host"], row["worker"]): row for row in case.tables["workers"]}
    over_time = {
        (row["host"], row["worker"], ms(row["bucket"])): row for row in case.tables["workers_over_time"]
    }
    assert found.keys() == whose.keys()
    for who, attempts in whose.items():
        check_worker(case, attempts, found[who], lambda bucket, who=who: over_time.pop((*who, bucket), None))
    assert not over_time


def check_worker(
    case: Case, attempts: list[oracle.Attempt], row: Row, take: Callable[[int], Row | None]
) -> None:
    since, until = case.clock.since, case.clock.until
    spans = [(max(each.started or 0, since), min(each.ended, until), each) for each in attempts]
    slots, busy = oracle.slots(attempts), sum(end - begin for begin, end, _ in spans)
    length = max(end for _, end, _ in spans) - min(begin for begin, _, _ in spans)
    expected = {
        "attempts": len(attempts),
        "failed_attempts": sum(map(oracle.is_failure, attempts)),
        "busy": busy,
        "slots": slots,
        "utilisation": busy / (slots * length) if length else None,
    }
    assert_same(row, expected, attempts[0].worker)
    for bucket in case.clock.all():
        after, part = case.clock.after(bucket), take(bucket)
        inside = [each for _, _, each in spans if bucket <= each.ended < after]
        overlap = sum(max(0, min(end, after) - max(begin, bucket)) for begin, end, _ in spans)
        if part is None:
            assert not inside
            assert not overlap
            continue
        assert (part["attempts"], part["busy"], part["slots"]) == (len(inside), overlap, slots)
        assert part["failed_attempts"] == sum(map(oracle.is_failure, inside))
        assert part["utilisation"] == pytest.approx(overlap / (slots * case.clock.length(bucket)))


def test_failures(case: Case) -> None:
    kinds = defaultdict(list)
    for each in case.known.attempts:
        if oracle.is_failure(each) and case.clock.covers(each.ended):
            kinds[each.host, each.queue, each.outcome, "", oracle.pattern(each.error)].append(each)
    names = ("host", "queue", "outcome", "error_type", "pattern")
    found = {tuple(row[name] for name in names): row for row in case.tables["failures"]}
    assert found.keys() == kinds.keys()
    over_time = {
        (tuple(row[name] for name in names), ms(row["bucket"])): row["attempts"]
        for row in case.tables["failures_over_time"]
    }
    for kind, attempts in kinds.items():
        row, last = found[kind], max(each.ended for each in attempts)
        assert (row["attempts"], row["jobs"]) == (len(attempts), len({each.id for each in attempts}))
        assert (ms(row["first_at"]), ms(row["last_at"])) == (min(each.ended for each in attempts), last)
        assert (row["example_job"], row["example_error"]) in [
            (each.id, each.error) for each in attempts if each.ended == last
        ]
        for each in attempts:
            over_time[kind, case.clock.bucket(each.ended)] -= 1
    assert not any(over_time.values())
    alike = any(len(attempts) > 1 for attempts in kinds.values())
    assert alike or case.since is not None, "errors that differ in numbers are one kind"


def test_slowest(case: Case) -> None:
    queues = defaultdict(list)
    for job in case.known.jobs:
        if job.outcome == "completed" and job.started is not None and case.clock.covers(job.ended):
            queues[job.host, job.queue].append(job)
    found = defaultdict(list)
    for row in case.tables["slowest"]:
        found[row["host"], row["queue"]].append(row)
    assert found.keys() == queues.keys()
    shared = False
    for queue, jobs in queues.items():
        jobs.sort(key=lambda job: (-((job.ended or 0) - (job.started or 0)), job.id, job.ended))
        runs = [(job.ended or 0) - (job.started or 0) for job in jobs]
        shared |= len(runs) > 10 and runs[9] == runs[10]
        rows = sorted(found[queue], key=lambda row: (-row["run"], row["id"], row["ended_at"]))
        assert [
            (row["id"], row["name"], row["worker"], ms(row["started_at"]), ms(row["ended_at"]))
            for row in rows
        ] == [(job.id, job.name, job.worker, job.started, job.ended) for job in jobs[:10]]
        assert [row["run"] for row in rows] == runs[:10]
    assert shared or case.since is not None, "two jobs took equally long, and one of them is listed"

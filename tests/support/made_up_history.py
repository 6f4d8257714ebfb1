"""Histories without a server: a week in which three things go wrong, and random ones."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pyarrow as pa

from bunqueue.analytics.engine import Engine
from bunqueue.analytics.facts import ATTEMPT_COLUMNS, EVENT_COLUMNS, JOB_COLUMNS, Begin, Source
from bunqueue.spark.read.arrow import schema_of
from bunqueue.spark.read.tables import TABLES

HOUR_MS = 3_600_000
BEGIN = 1_795_737_600_000  # Fri 27 Nov 2026, 00:00 UTC
COLUMNS = {"jobs": JOB_COLUMNS, "attempts": ATTEMPT_COLUMNS, "events": EVENT_COLUMNS}

Row = dict[str, Any]


class History:
    """Rows of the tables; times are epoch ms."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Row]] = {table: [] for table in COLUMNS}
        self._seq = self._jobs = 0

    def job(self, queue: str, created: int, **known: Any) -> Row:
        row: Row = dict.fromkeys(JOB_COLUMNS)
        self._jobs += 1
        number = self._jobs
        row |= {"host": "web", "shard": number % 2, "id": f"job-{self._jobs}", "queue": queue, "name": "work"}
        row |= {"state": "waiting", "created_at": created, "run_at": created, "attempts": 0, "depends_on": []}
        row |= known
        self.rows["jobs"].append(row)
        return row

    def attempt(self, job: Row, started: int, ended: int, outcome: str, **known: Any) -> None:
        row: Row = dict.fromkeys(ATTEMPT_COLUMNS)
        row |= {name: job[name] for name in ("host", "queue", "name")} | {
            "job_id": job["id"],
            "worker": "ada",
        }
        self.rows["attempts"].append(
            row | {"started_at": started, "ended_at": ended, "outcome": outcome, **known}
        )

    def event(self, job: Row, at: int, kind: str, **fields: Any) -> None:
        self._seq += 1
        row: Row = dict.fromkeys(EVENT_COLUMNS)
        row |= {name: job[name] for name in ("host", "shard", "queue")} | {"job_id": job["id"]}
        more = {name: fields.get(name) for name in ("error", "terminal")}
        text = json.dumps(fields) if fields else None
        self.rows["events"].append(row | {"seq": self._seq, "at": at, "kind": kind, **more, "fields": text})

    def give_to(self, engine: Engine) -> Source:
        """The tables as an engine reads them of a folder."""
        for table, rows in self.rows.items():
            columns = tuple(filter(None, map(TABLES[table].column, COLUMNS[table])))
            schema = schema_of(columns)
            times = [field.name for field in schema if pa.types.is_timestamp(field.type)]
            moments = [
                row | {name: None if row[name] is None else _time(row[name]) for name in times}
                for row in rows
            ]
            engine.give(f"given_{table}", pa.Table.from_pylist(moments, schema))

        def events(kinds: Any) -> str:
            named = ", ".join(f"'{kind}'" for kind in kinds)
            engine.view("some_events", f"select * from given_events where kind in ({named})")
            return "some_events"

        begins = [Begin("web", shard, 1, 0) for shard in (0, 1)]
        return Source("given_jobs", "given_attempts", events, lambda: begins)


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=ms)


def bad_week() -> History:
    """Eight days.  On the last one jobs of `images` run for 178 ms, where half had run for 22; many of `pay`
    fail from 14 to 16 o'clock, and keep those of `mail` waiting."""
    chance, history = Random(7), History()
    for hour in range(8 * 24):
        bad, last = hour - 7 * 24, hour >= 7 * 24
        for number in range(60):
            at = BEGIN + hour * HOUR_MS + number * 60_000
            slow = last and bad in (9, 10, 11)
            run = 178 + chance.randrange(-9, 9) if slow else 22 + chance.randrange(-5, 5)
            _completed(history, "images", "resize", at, 3, run)
            stormy = last and bad in (14, 15)
            wait = 95_000 + number if stormy else 100 + chance.randrange(60)
            _completed(
                history, "mail", ("welcome", "digest")[number % 2], at, wait, 400 + chance.randrange(80)
            )
            if (stormy and number % 2) or number == 7:
                error = f"HTTPError: 503 Service Unavailable for order {number + 380}" if stormy else "Boom"
                job = history.job("pay", at, name="charge", state="failed", attempts=1, worker="bob")
                job |= {"started_at": at + 5, "finished_at": at + 900}
                history.attempt(job, at + 5, at + 900, "explicit_fail", error=error, error_type="HTTPError")
            else:
                _completed(history, "pay", "charge", at, 5, 300 + chance.randrange(90))
    for _ in range(9):
        history.job("forgotten", BEGIN + 7 * 24 * HOUR_MS)
    return history


def _completed(history: History, queue: str, name: str, at: int, wait: int, run: int) -> None:
    job = history.job(queue, at, name=name, state="completed", worker="ada:4711:0a1b2c3d")
    job |= {"started_at": at + wait, "finished_at": at + wait + run}


def random_history(seed: int, jobs: int = 150) -> History:
    """Jobs of all states, of which some are gone, were returned or undone, or depended on others."""
    chance, history = Random(seed), History()
    for _ in range(jobs):
        at = BEGIN + chance.randrange(40 * HOUR_MS)
        queue, name = chance.choice(("a", "b", "c")), chance.choice(("x", "y", ""))
        state = chance.choice(
            ("completed",) * 5 + ("failed", "cancelled", "stuck", "waiting", "active", "delayed")
        )
        job = history.job(queue, at, name=name, state=state, worker=chance.choice((None, "ada", "bob")))
        job["depends_on"] = chance.choice(([], [], ["other"], None))
        job["run_at"] = at + chance.choice((0, 0, chance.randrange(HOUR_MS)))
        history.event(job, at, "pushed")
        if chance.random() < 0.2:
            history.event(
                job, at + chance.randrange(HOUR_MS), chance.choice(("ready", "released", "waiting"))
            )
        started, ended = _attempts(chance, history, job)
        if state not in ("waiting", "delayed"):
            job["started_at"] = started
        if state in ("completed", "failed", "cancelled", "stuck"):
            job["finished_at"] = ended
        if chance.random() < 0.25:
            _leaves(chance, history, job, ended)
    return history


def _attempts(chance: Random, history: History, job: Row) -> tuple[int, int]:
    started = ended = job["run_at"]
    for _ in range(chance.choice((0, 0, 1, 3))):
        started = ended + chance.randrange(5_000)
        ended = started + chance.randrange(2 * HOUR_MS)
        outcome = chance.choice(("explicit_fail", "timeout", "stalled", "interrupted", "cancelled"))
        error = chance.choice(
            (None, f"HTTPError: 404 Not Found for {chance.randrange(999)}", "Boom\nat line 7")
        )
        history.event(job, started, "pulled")
        history.event(
            job, ended, "stalled" if outcome == "stalled" else "failed", error=error, terminal=False
        )
        history.attempt(job, started, ended, outcome, error=error, error_type=chance.choice((None, "E")))
        job["attempts"] += 1
    if job["state"] in ("failed", "stuck") and chance.random() < 0.3:
        history.event(job, ended, "undoing")
    started = ended + chance.randrange(5_000)
    ended = started + chance.randrange(HOUR_MS)
    history.event(job, started, "pulled")
    if job["state"] == "completed":
        history.event(job, ended, "completed")
    elif job["state"] in ("failed", "stuck", "cancelled"):
        reason = {"reason": job["state"]} if job["state"] != "failed" else {}
        history.event(job, ended, "failed", error="Boom", terminal=True, **reason)
        history.attempt(job, started, ended, "explicit_fail", error="Boom")
    return started, ended


def _leaves(chance: Random, history: History, job: Row, at: int) -> None:
    """Remove it as a server does, with its attempts."""
    if chance.random() < 0.3:
        history.event(job, at + 1, "purged", ids=[job["id"]], seqs=[1])
    else:
        reason = {"reason": "expired"} if chance.random() < 0.3 else {}
        history.event(job, at + 1, chance.choice(("removed", "dropped")), **reason)
    history.rows["jobs"].remove(job)
    history.rows["attempts"] = [row for row in history.rows["attempts"] if row["job_id"] != job["id"]]

"""Where to look further: links to the dashboard, and the commands that show the same."""

from __future__ import annotations

import json
import shlex
from datetime import UTC, datetime
from html import escape
from urllib.parse import quote, urlencode

from bunqueue.analytics.anomalies import FAILURES
from bunqueue.analytics.page.figures import About, Row


def of_anomaly(about: About, row: Row) -> str:
    """The jobs that ended while a queue was unusual; of failures only those with a failed attempt."""
    conditions = [f"name = {json.dumps(row['name'], ensure_ascii=False)}"] if row["name"] is not None else []
    conditions += ["attempts > 0"] if row["what"] == FAILURES.name else []
    conditions += [f"finished >= {_moment(row['since'])}", f"finished < {_moment(row['until'])}"]
    return _jobs(about, row, " and ".join(conditions))


def of_waiting(about: About, host: str, queue: str) -> str:
    """The jobs of a queue that wait."""
    return _jobs(about, {"host": host, "queue": queue}, "state = waiting")


def of_error(about: About, row: Row) -> str:
    """The dead letters of a group of errors."""
    path = f"/dlq/{quote(row['queue'], safe='')}?{urlencode({'group': row['kind']})}"
    return _look(about, row, path, "Its dead letters", ["errors", "show", row["queue"], row["kind"]])


def _jobs(about: About, row: Row, where: str) -> str:
    path = f"/search?{urlencode({'queue': row['queue'], 'q': where})}"
    return _look(about, row, path, "Its jobs", ["job", "find", "--queue", row["queue"], where])


def _look(about: About, row: Row, path: str, text: str, command: list[str]) -> str:
    address = about.dashboard.replace("{host}", quote(row["host"], safe="")).rstrip("/") + path
    return (
        f'<div class=look><a href="{escape(address)}" rel=noreferrer>{text}</a>'
        f"<code>bunqueue {escape(shlex.join(command))}</code></div>"
    )


def _moment(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M}Z"

"""One task of a write: rows in, jobs out, and a count of the outcomes."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from bunqueue.errors import BunqueueError, OptionError, PayloadError

from .delivery import Delivery, Sent
from .rows import Row, RowJob, RowPlan
from .settings import SinkSettings
from .summary import MAX_ROW, BadRow, TaskSummary, as_text

_log = logging.getLogger("bunqueue.spark")

_NO_NAME = re.compile(r"[^A-Za-z0-9_.-]")  # characters allowed in a write id, but not in a file name


def write_rows(
    rows: Iterable[Row | BadRow],
    columns: Collection[str],
    settings: SinkSettings,
    write_id: str,
    partition: int = 0,
    attempt: int = 0,
) -> TaskSummary:
    """Add a job for each row. A BadRow is a row that could not even be read. When this returns, all jobs are
    stored.

    Raises BunqueueError: BadRows unless bad rows are skipped, or the reason why the server did not take jobs.
    Some jobs may have been added then. A repeated call adds the others.
    """
    summary = TaskSummary(partition, attempt)
    plan = RowPlan(columns, settings, write_id)
    with Rejects(settings, write_id, summary) as rejects:

        def done(sent: Sent) -> None:
            summary.accepted += sent.accepted
            summary.duplicates += sent.duplicates
            for job, reason in sent.rejected:
                rejects.add(BadRow(as_text(job.row), reason))

        with Delivery(settings, write_id, done) as delivery:
            for row in rows:
                job = row if isinstance(row, BadRow) else made(plan, row)
                if isinstance(job, BadRow):
                    rejects.add(job)
                else:
                    delivery.add(job)
            delivery.finish()
    return summary


def made(plan: RowPlan, row: Row) -> RowJob | BadRow:
    """The job of a row, or what is wrong with it."""
    try:
        return plan.job(row)
    except (OptionError, PayloadError) as error:
        return BadRow(as_text(row), str(error))


class BadRows(BunqueueError):
    """No job can be made from a row, in a write that does not skip bad rows."""

    code = "bad_row"


class Rejects:
    """Collects bad rows: in the summary, and in a file of the task if rejectsPath is given."""

    def __init__(self, settings: SinkSettings, write_id: str, summary: TaskSummary) -> None:
        self._skip = settings.skip_bad_rows
        self._summary = summary
        self._file: Path | None = None
        if settings.rejects_path is not None:
            name = f"part-{summary.partition:05d}-{_NO_NAME.sub('-', write_id)[:100]}.jsonl"
            self._file = Path(settings.rejects_path, name)
        self._lines: list[bytes] = []
        self._begun = False

    def add(self, bad: BadRow) -> None:
        """Record a bad row. Raises BadRows unless bad rows are skipped."""
        if not self._skip:
            shown = bad.row if len(bad.row) <= MAX_ROW else bad.row[:MAX_ROW] + "..."
            raise BadRows(
                f"{bad.reason}; the row is {shown}; mend it, or give badRows=skip to have such rows left out"
            )
        self._summary.reject(bad)
        if self._file is not None:
            self._lines.append(msgspec.json.encode(bad))
            if len(self._lines) >= 1000:
                self._write()

    def _write(self) -> None:
        """Append to a temporary file until the end: the output of a failed attempt is not a result."""
        if self._file is None or not self._lines:
            return
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._unfinished.open("ab" if self._begun else "wb") as file:
            file.write(b"\n".join(self._lines) + b"\n")
        self._begun = True
        self._lines.clear()

    @property
    def _unfinished(self) -> Path:
        assert self._file is not None
        return self._file.with_name(f".{self._file.name}.{self._summary.attempt}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is None:
            return
        if error is None:
            try:
                self._write()
                if self._begun:
                    self._unfinished.replace(self._file)
            except OSError as problem:  # the jobs are stored; a retry would make them duplicates
                _log.error("rejected rows were not all kept in %s (%s)", self._file, problem)
        elif self._begun:
            self._unfinished.unlink(missing_ok=True)

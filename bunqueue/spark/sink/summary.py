"""Summaries of writes: counted by each task, added up by the driver, stored as lines of JSON."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from bunqueue.client.connection.options import unfit

_log = logging.getLogger("bunqueue.spark")

MAX_EXAMPLES = 20  # bad rows that a summary shows
MAX_ROW = 1000  # characters that it shows of each


class BadRow(Struct, frozen=True):
    """A row that became no job. ``row`` is JSON, cut after 1000 characters in summaries."""

    row: str
    reason: str


class TaskSummary(Struct):
    """The outcome of the rows of one task, in the attempt that succeeded."""

    partition: int = 0
    attempt: int = 0
    """The number of earlier attempts of the task.  The jobs that they added count as duplicates now."""
    accepted: int = 0
    duplicates: int = 0
    rejected: int = 0
    examples: list[BadRow] = []

    def reject(self, bad: BadRow) -> None:
        """Count a bad row."""
        self.rejected += 1
        if len(self.examples) < MAX_EXAMPLES:
            self.examples.append(BadRow(bad.row[:MAX_ROW], bad.reason))


class WriteSummary(Struct, kw_only=True):
    """The outcome of the rows of a write, or of one batch of a stream.

    A row is accepted when it made a job.  It is a duplicate when the server already knew its id, whether from
    another row, another write, or an earlier attempt of its task, or when a job has its unique key.  It is
    rejected when no job can be made from it.  For a failed write, these are the rows of the tasks that were
    done; jobs of other tasks may also have been added.
    """

    write_id: str | None
    batch_id: int | None = None
    """The micro-batch, for a stream."""
    state: Literal["done", "failed"]
    tasks: int
    """Tasks that were done."""
    repeated_tasks: int
    """Those that were tried more than once.  Part of their duplicates are jobs of this very write."""
    accepted: int
    duplicates: int
    rejected: int
    examples: list[BadRow]

    @property
    def rows(self) -> int:
        """All rows that were read."""
        return self.accepted + self.duplicates + self.rejected

    def __str__(self) -> str:
        batch = "" if self.batch_id is None else f" of batch {self.batch_id}"
        again = f", {self.repeated_tasks} of {self.tasks} tasks repeated" if self.repeated_tasks else ""
        text = (
            f"{self.rows} rows{batch}: {self.accepted} accepted, {self.duplicates} duplicates, "
            f"{self.rejected} rejected{again}"
        )
        return text if self.state == "done" else f"the write failed; of the tasks that were done: {text}"


def add_up(
    done: Sequence[TaskSummary],
    write_id: str | None,
    state: Literal["done", "failed"],
    batch_id: int | None = None,
) -> WriteSummary:
    """The summary of a write, from the summaries of its finished tasks."""
    return WriteSummary(
        write_id=write_id,
        batch_id=batch_id,
        state=state,
        tasks=len(done),
        repeated_tasks=sum(task.attempt > 0 for task in done),
        accepted=sum(task.accepted for task in done),
        duplicates=sum(task.duplicates for task in done),
        rejected=sum(task.rejected for task in done),
        examples=[bad for task in done for bad in task.examples][:MAX_EXAMPLES],
    )


def check_path(path: str) -> None:
    """Create the summary file if needed.  Raises OptionError when it cannot be written."""
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with open(path, "ab"):
            pass
    except OSError as error:
        raise unfit(
            "summaryPath", f"{path} cannot be written to ({error.strerror}); give the path of a file that can"
        ) from None


def keep(path: str, summary: WriteSummary) -> None:
    """Append a summary to a file.  A failure is only logged: the jobs are stored, and a caller that saw the
    write fail would add them again."""
    try:
        _append(path, summary)
    except OSError as error:
        _log.error("the jobs were written, their summary was not, to %s (%s): %s", path, error, summary)


def _append(path: str, summary: WriteSummary) -> None:
    line = msgspec.json.encode(summary) + b"\n"
    with open(path, "ab", buffering=0) as file:  # a single write, so lines of several streams do not mix
        file.write(line)


def read_summaries(path: str | os.PathLike[str]) -> list[WriteSummary]:
    """The summaries that `summaryPath` has collected, the newest last."""
    return [msgspec.json.decode(line, type=WriteSummary) for line in Path(path).read_bytes().splitlines()]


def as_text(row: Mapping[str, Any]) -> str:
    """A row as JSON, whatever it contains."""
    try:
        return msgspec.json.encode(row, enc_hook=repr).decode()
    except Exception:  # lone surrogates, numbers beyond 64 bits
        return repr(dict(row))

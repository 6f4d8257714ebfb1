"""Records of the standard library's logging, in the log of the job whose handler made them."""

from __future__ import annotations

import logging
from collections.abc import Callable

from bunqueue.client.active_job import current_job
from bunqueue.client.connection_options import shown
from bunqueue.errors import OptionError

OWN = "bunqueue"  # what this package itself logs is about jobs, but not of them


class JobLogHandler(logging.Handler):
    """Adds each record that is made while a job's handler runs, wherever below it, to that job's log.

    Records that are made where no job runs are left out. The server keeps the last 100 lines of a job.
    """

    def emit(self, record: logging.LogRecord) -> None:
        job = current_job(None)
        if job is None or record.name.partition(".")[0] == OWN:
            return
        try:
            job.log_soon(self.format(record), _level(record.levelno))
        except Exception:
            self.handleError(record)


def _level(number: int) -> str:
    """In the words that job logs have."""
    if number >= logging.ERROR:
        return "error"
    if number >= logging.WARNING:
        return "warn"
    return "info" if number >= logging.INFO else "debug"


def forward(level: int) -> Callable[[], None]:
    """Begin to, also with records that the root logger's own level would keep back; gives what ends it."""
    handler, root = JobLogHandler(level), logging.getLogger()
    before = root.level
    root.addHandler(handler)
    if before == logging.NOTSET or before > level:
        root.setLevel(level)

    def end() -> None:
        root.removeHandler(handler)
        if root.level == level:
            root.setLevel(before)

    return end


def level_of(value: int | str | None) -> int | None:
    """A level by its name or number. OptionError for what is none."""
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    found = logging.getLevelName(value.upper()) if isinstance(value, str) else None
    if not isinstance(found, int):
        raise OptionError(f"forward_logs: {shown(value)} is not a level; give as logging.INFO or 'info'")
    return found

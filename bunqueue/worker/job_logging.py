"""Forwards records of the standard library's logging to the log of the job whose handler made them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from bunqueue.client.connection.options import refused
from bunqueue.worker.active_job import ActiveJob, JobChannel, current_job

OWN = "bunqueue"  # this package's own records are about jobs, not from their code


class JobLogHandler(logging.Handler):
    """Adds each record made while a job's handler runs, at any call depth, to that job's log.

    Records made outside of jobs are ignored. The server keeps the last 100 lines of a job.
    """

    def emit(self, record: logging.LogRecord) -> None:
        job = current_job(None)
        if job is None or not self.wants(job) or record.name.partition(".")[0] == OWN:
            return
        try:
            job.log_soon(self.format(record), _level(record.levelno))
        except Exception:
            self.handleError(record)

    def wants(self, job: ActiveJob) -> bool:
        """Whether this handler forwards records of this job."""
        return True


def _level(number: int) -> str:
    """The level, in the terms of job logs."""
    if number >= logging.ERROR:
        return "error"
    if number >= logging.WARNING:
        return "warn"
    return "info" if number >= logging.INFO else "debug"


class _Forwarder(JobLogHandler):
    """The same for the jobs of one worker: other workers in this process have their own setting."""

    def __init__(self, level: int, channel: JobChannel) -> None:
        super().__init__(level)
        self._channel = channel

    def wants(self, job: ActiveJob) -> bool:
        return job.is_of(self._channel)


class _Floor:
    """Keeps the root logger's level as low as all forwarders need, and restores it after the last one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._levels: list[int] = []
        self._before = self._set = logging.NOTSET

    def enter(self, level: int) -> None:
        root = logging.getLogger()
        with self._lock:
            if not self._levels:
                self._before = self._set = root.level
            self._levels.append(level)
            self._lower(root)

    def leave(self, level: int) -> None:
        root = logging.getLogger()
        with self._lock:
            self._levels.remove(level)
            if root.level == self._set:  # else other code has changed it in the meantime
                self._lower(root)

    def _lower(self, root: logging.Logger) -> None:
        self._set = min(self._before, *self._levels) if self._levels else self._before
        root.setLevel(self._set)


_floor = _Floor()


def forward(level: int, channel: JobChannel) -> Callable[[], None]:
    """Start forwarding for the jobs of a worker, including records below the root logger's own level. Returns
    a function that stops it.
    """
    handler, root = _Forwarder(level, channel), logging.getLogger()
    root.addHandler(handler)
    _floor.enter(level)

    def end() -> None:
        root.removeHandler(handler)
        _floor.leave(level)

    return end


def level_of(value: int | str | None) -> int | None:
    """A level, by name or number. Raises OptionError for an unknown one."""
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    found = logging.getLevelName(value.upper()) if isinstance(value, str) else None
    if not isinstance(found, int):
        raise refused("forward_logs", value, "is not a level; give as logging.INFO or 'info'")
    return found

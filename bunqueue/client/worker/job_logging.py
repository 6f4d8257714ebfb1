"""Records of the standard library's logging, in the log of the job whose handler made them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from bunqueue.client.connection.options import refused
from bunqueue.client.worker.active_job import ActiveJob, JobChannel, current_job

OWN = "bunqueue"  # what this package itself logs is about jobs, but not of them


class JobLogHandler(logging.Handler):
    """Adds each record that is made while a job's handler runs, wherever below it, to that job's log.

    Records that are made where no job runs are left out. The server keeps the last 100 lines of a job.
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
        """Whether the records of this job are meant."""
        return True


def _level(number: int) -> str:
    """In the words that job logs have."""
    if number >= logging.ERROR:
        return "error"
    if number >= logging.WARNING:
        return "warn"
    return "info" if number >= logging.INFO else "debug"


class _Forwarder(JobLogHandler):
    """The same for the jobs of one worker: others in this process forward theirs themselves, or do not."""

    def __init__(self, level: int, channel: JobChannel) -> None:
        super().__init__(level)
        self._channel = channel

    def wants(self, job: ActiveJob) -> bool:
        return job.is_of(self._channel)


class _Floor:
    """Keeps the root logger's level as low as those need who forward, and puts it back with the last one."""

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
            if root.level == self._set:  # else somebody else has set it meanwhile
                self._lower(root)

    def _lower(self, root: logging.Logger) -> None:
        self._set = min(self._before, *self._levels) if self._levels else self._before
        root.setLevel(self._set)


_floor = _Floor()


def forward(level: int, channel: JobChannel) -> Callable[[], None]:
    """Begin to, for the jobs of a worker, also with records that the root logger's own level would keep back;
    gives what ends it."""
    handler, root = _Forwarder(level, channel), logging.getLogger()
    root.addHandler(handler)
    _floor.enter(level)

    def end() -> None:
        root.removeHandler(handler)
        _floor.leave(level)

    return end


def level_of(value: int | str | None) -> int | None:
    """A level by its name or number. OptionError for an unknown one."""
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    found = logging.getLevelName(value.upper()) if isinstance(value, str) else None
    if not isinstance(found, int):
        raise refused("forward_logs", value, "is not a level; give as logging.INFO or 'info'")
    return found

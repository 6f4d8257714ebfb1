"""Handlers that run in processes of their own: another process has to find them, so they are in a module."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bunqueue import ActiveJob, JobStopped, Postpone, Retry, Unrecoverable, current_job

_seen: list[Any] = []


def mail(job: ActiveJob) -> object:
    """Leave a mark in the file that the data names, and give back what cannot be sent."""
    with Path(job.data).open("a") as file:
        file.write("sent\n")
    return {"mails": [{"sent": object()}]}


def square(job: ActiveJob) -> int:
    return int(job.data**2)


def whoami(job: ActiveJob) -> dict[str, Any]:
    """The process, and how many jobs it has seen."""
    _seen.append(job.id)
    return {"pid": os.getpid(), "jobs": len(_seen), "name": __name__, "current": current_job().id}


_around: list[str] = []


@contextmanager
def around(**values: str) -> Iterator[None]:
    """What a middleware has carried here."""
    _around.append(f"{values} in {os.getpid()}")
    yield
    _around.clear()


def see_around(job: ActiveJob) -> list[str]:
    return list(_around)


def die(job: ActiveJob) -> str:
    """As the data says."""
    if job.data == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif job.data == "segfault":
        ctypes.string_at(0)
    elif job.data == "exit":
        os._exit(3)
    return "lived"


def fail(job: ActiveJob) -> None:
    """Raise what the data says."""
    if job.data == "system exit":
        sys.exit(3)
    if job.data == "unrecoverable":
        raise Unrecoverable("no use")
    if job.data == "retry":
        raise Retry(1, "busy")
    if job.data == "postpone":
        raise Postpone(1, max=2)
    if job.data == "interrupt":
        raise KeyboardInterrupt
    deep(3)


def deep(depth: int) -> None:
    if depth:
        deep(depth - 1)
    raise LookupError("down here")


def talk(job: ActiveJob) -> str:
    job.progress(40, "well on")
    job.log("a line", "warn")
    job.log_soon("another")
    logging.getLogger("app").warning("from %s", "logging")
    print("and to the terminal", flush=True)
    return "said"


def wait(job: ActiveJob) -> str:
    """Tell a file that it runs, and wait; see what ends it."""
    path = Path(job.data)
    path.write_text(str(os.getpid()))
    try:
        while True:
            time.sleep(60)  # until it is stopped
    except JobStopped as error:
        path.with_suffix(".ended").write_text(f"{type(error).__name__}: {error}")
        raise


def stubborn(job: ActiveJob) -> str:
    """As `wait`, but nothing ends it."""
    Path(job.data).write_text(str(os.getpid()))
    while True:
        try:
            time.sleep(60)  # until it is killed
        except JobStopped:
            continue


def until_stopping(job: ActiveJob) -> str:
    Path(job.data).write_text(str(os.getpid()))
    while not job.stopping:
        time.sleep(0.01)  # a piece of work
    return "up to here"


def hoard(job: ActiveJob) -> int:
    """Keep as many bytes as the data says."""
    _seen.append(bytearray(os.urandom(1) * job.data))
    return os.getpid()


class Made:
    """What a decorator puts in place of a function."""

    def __init__(self, name: str) -> None:
        self.__qualname__ = name

    def run(self, job: ActiveJob) -> str:
        return f"{self.__qualname__} in {os.getpid()}"

    def __bunqueue_handler__(self) -> Any:
        return self.run


made = Made("made")

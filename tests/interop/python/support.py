"""What all scenarios need.  Each file is run by the client's own Python against a server of its own: its port
is in PORT, and if it speaks TLS, the file of its authority in CA."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from typing import Any

from bunqueue import FlowProducer, Queue, Worker

CONNECTION: dict[str, Any] = {"host": "localhost", "port": int(os.environ["PORT"])}
if "CA" in os.environ:
    CONNECTION["tls"] = {"ca_file": os.environ["CA"]}

_serial = itertools.count(1)


def unique(what: str = "q") -> str:
    return f"{what}-{os.getpid()}-{next(_serial)}"


def new_queue(name: str | None = None, **options: Any) -> Queue:
    return Queue(name or unique(), **CONNECTION, **options)


def new_flows() -> FlowProducer:
    return FlowProducer(**CONNECTION)


def work(queue: str, handler: Callable[[Any], Any], /, **options: Any) -> Worker:
    """A worker that is ready; close it, or use it as a context."""
    worker = Worker(queue, handler, **{"poll_timeout_ms": 500, **options}, **CONNECTION)
    worker.wait_until_ready()
    return worker


def until(what: str, holds: Callable[[], Any], within: float = 15.0) -> None:
    """Wait until something holds."""
    end = time.monotonic() + within
    while not holds():
        if time.monotonic() > end:
            raise AssertionError(f"not within {within} s: {what}")
        time.sleep(0.01)  # between two looks


def reaches(queue: Queue, job_id: str, *states: str) -> None:
    until(f"{job_id} is {states}", lambda: queue.get_state(job_id) in states)


def job_name(job: Any) -> str:
    """The client looks for the name in the data, where today's servers no longer have it."""
    return str(job.raw["name"])

"""Made by scripts/unasync.py from client/queue/handle.py; do not edit."""

from __future__ import annotations

from typing import TypeVar

from bunqueue.client.blocking.queue.job_control import JobControl
from bunqueue.client.blocking.queue.job_family import JobFamily
from bunqueue.client.blocking.queue.job_reading import JobReading
from bunqueue.client.blocking.queue.job_reporting import JobReporting

R = TypeVar("R")


class JobHandle(JobReading[R], JobControl[R], JobFamily[R], JobReporting[R]):
    """A job that was added: its id, questions about it to the server, and what may be done with it.

    R is the type of its result: what the annotation of a typed job says, else Any.
    """

    __slots__ = ()

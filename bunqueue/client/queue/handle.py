"""One job, for those who added it or know its id."""

from __future__ import annotations

from typing import TypeVar

from bunqueue.client.queue.job_control import AsyncJobControl
from bunqueue.client.queue.job_family import AsyncJobFamily
from bunqueue.client.queue.job_reading import AsyncJobReading
from bunqueue.client.queue.job_reporting import AsyncJobReporting

R = TypeVar("R")


class AsyncJobHandle(AsyncJobReading[R], AsyncJobControl[R], AsyncJobFamily[R], AsyncJobReporting[R]):
    """A job that was added: its id, questions about it to the server, and what may be done with it.

    R is the type of its result: what the annotation of a typed job says, else Any.
    """

    __slots__ = ()

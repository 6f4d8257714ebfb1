"""Made by scripts/unasync.py from client/queue/base.py; do not edit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, overload

from bunqueue.client.blocking.queue.handle import JobHandle
from bunqueue.client.connection.caller import Caller
from bunqueue.client.worker.middleware import Around

R = TypeVar("R")


class QueueBase:
    """The parts of a queue inherit from this; `Queue` sets it up."""

    name: str
    _caller: Caller
    _defaults: Mapping[str, Any]  # options of jobs that do not say otherwise, as the wire has them
    _around: Around | None  # middleware, if there is any

    @overload
    def handle(self, job_id: str) -> JobHandle[Any]: ...

    @overload
    def handle(self, job_id: str, result_type: type[R]) -> JobHandle[R]: ...

    def handle(self, job_id: str, result_type: Any = Any) -> JobHandle[Any]:
        """A handle for a job whose id is known; the server is not asked whether it exists.

        With a `result_type` its result is converted to that: a dataclass, a msgspec struct, a plain type.
        """
        return JobHandle(self._caller, self.name, job_id, result_type)

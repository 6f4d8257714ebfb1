"""What every part of a queue has: its name, and the way to its engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, overload

from bunqueue.client.connection.caller import AsyncCaller
from bunqueue.client.queue.handle import AsyncJobHandle
from bunqueue.client.worker.middleware import AsyncAround

R = TypeVar("R")


class AsyncQueueBase:
    """The parts of a queue inherit from this; `AsyncQueue` sets it up."""

    name: str
    _caller: AsyncCaller
    _defaults: Mapping[str, Any]  # options of jobs that do not say otherwise, as the wire has them
    _around: AsyncAround | None  # middleware, if there is any

    @overload
    def handle(self, job_id: str) -> AsyncJobHandle[Any]: ...

    @overload
    def handle(self, job_id: str, result_type: type[R]) -> AsyncJobHandle[R]: ...

    def handle(self, job_id: str, result_type: Any = Any) -> AsyncJobHandle[Any]:
        """A handle for a job whose id is known; the server is not asked whether it exists.

        With a `result_type` its result is converted to that: a dataclass, a msgspec struct, a plain type.
        """
        return AsyncJobHandle(self._caller, self.name, job_id, result_type)

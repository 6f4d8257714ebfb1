"""Made by scripts/unasync.py from client/queue/base.py; do not edit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bunqueue.client.blocking.queue.handle import JobHandle
from bunqueue.client.caller import Caller
from bunqueue.client.middleware import Around


class QueueBase:
    """The parts of a queue inherit from this; `Queue` sets it up."""

    name: str
    _caller: Caller
    _defaults: Mapping[str, Any]  # options of jobs that do not say otherwise, as the wire has them
    _around: Around | None  # middleware, if there is any

    def handle(self, job_id: str, result_type: Any = Any) -> JobHandle[Any]:
        """A handle for a job whose id is known; the server is not asked whether it exists.

        Its result is converted to `result_type`.
        """
        return JobHandle(self._caller, self.name, job_id, result_type)

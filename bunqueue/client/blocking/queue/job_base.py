"""Made by scripts/unasync.py from client/queue/job_base.py; do not edit."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from msgspec import Struct

from bunqueue.client.connection.caller import Caller
from bunqueue.client.connection.replies import in_queue
from bunqueue.errors import BunqueueError
from bunqueue.protocol.commands import Reply

R = TypeVar("R")
A = TypeVar("A", bound=Reply)


class JobBase(Generic[R]):
    """The parts of `JobHandle` inherit from this."""

    __slots__ = ("_caller", "created", "id", "queue", "result_type")

    def __init__(
        self,
        caller: Caller,
        queue: str,
        job_id: str,
        result_type: Any = Any,
        *,
        created: bool | None = None,
    ) -> None:
        self._caller = caller
        self.result_type = result_type
        """What its result is converted to."""
        self.queue = queue
        self.id = job_id
        self.created = created
        """Whether adding it made a new job; False: there was one already. None: it was not just added."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(queue={self.queue!r}, id={self.id!r})"

    def _ask(self, command: Struct, reply: type[A]) -> A:
        """The reply to a command about this job; errors name its queue, which the command does not."""
        try:
            return self._caller.call(command, reply)
        except BunqueueError as error:
            in_queue(error, self.queue)
            raise

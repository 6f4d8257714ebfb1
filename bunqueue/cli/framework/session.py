"""A verb's way to the server, and to whoever reads what it says."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ..output.output import Output

if TYPE_CHECKING:
    from bunqueue.client.blocking.admin import Admin
    from bunqueue.client.blocking.flow import FlowProducer
    from bunqueue.client.blocking.queue import JobHandle, Queue
    from bunqueue.client.connection.caller import Caller
    from bunqueue.client.connection.transport import Endpoint
    from bunqueue.client.models.jobs import Job


class Session:
    """One verb's. The connection is made when it is first needed, and the client loaded as late."""

    def __init__(self, place: Mapping[str, Any], *, patient: bool = False) -> None:
        self.out = Output(as_json=bool(place.get("json")))
        self.timeout_ms: int | None = None
        """How long a command may take; None: as the client has it. To be set before the first one."""
        self._place = place
        self._patient = patient
        self._caller: Caller | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._caller is not None:
            with suppress(Exception):  # the verb's own error says more
                self._caller.close()

    @property
    def endpoint(self) -> Endpoint:
        """Where the server is."""
        from .place import endpoint_of

        return endpoint_of(self._place, self.timeout_ms, patient=self._patient)

    @property
    def caller(self) -> Caller:
        """The connection."""
        if self._caller is None:
            from .checked import CheckedCaller

            if self._patient:
                self._look()
            self._caller = CheckedCaller(self.endpoint)
        return self._caller

    def _look(self) -> None:
        """Raise BunqueueError now when the server is not there: a patient client would wait for it."""
        with Session(self._place) as hasty:
            hasty.ping()

    def ping(self) -> None:
        """Whether the server is there. Raises BunqueueError."""
        self.admin.ping()

    @property
    def admin(self) -> Admin:
        """The server as a whole."""
        from .checked import CheckedAdmin

        return CheckedAdmin(self.caller)

    def queue(self, name: str) -> Queue:
        """A queue. Raises OptionError for an invalid name."""
        from .checked import CheckedQueue

        return CheckedQueue(name, self.caller)

    def flows(self) -> FlowProducer:
        """Flows of all queues."""
        from .checked import Flows

        return Flows(self.caller)

    def found(self, job_id: str) -> Job:
        """A job as it is now. Raises JobNotFound."""
        from bunqueue.errors import JobNotFound

        job = self.admin.get_job(job_id)
        if job is None:
            raise JobNotFound(f"there is no job {job_id!r}; it was removed, or never added to this server")
        return job

    def job(self, job_id: str) -> JobHandle[Any]:
        """The handle of a job that is there. Raises JobNotFound."""
        from bunqueue.client.blocking.queue import JobHandle

        job = self.found(job_id)
        return JobHandle(self.caller, job.queue, job.id)

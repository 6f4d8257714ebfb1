"""A verb's connection to the server, and its output."""

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

NEVER_THERE = "; it was removed, or never added to this server"


class Session:
    """The session of one verb. It connects, and loads the client, on first use."""

    def __init__(self, place: Mapping[str, Any], *, patient: bool = False) -> None:
        self.out = Output(as_json=bool(place.get("json")))
        self.timeout_ms: int | None = None
        """How long a command may take; None: the client's default. Set it before the first command."""
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
        """The server's address and options."""
        from bunqueue.cli.framework.server_address import endpoint_of

        return endpoint_of(self._place, self.timeout_ms, patient=self._patient)

    @property
    def caller(self) -> Caller:
        """The connection."""
        if self._caller is None:
            from .checked import CheckedCaller

            if self._patient:
                self._check_server()
            self._caller = CheckedCaller(self.endpoint)
        return self._caller

    def _check_server(self) -> None:
        """Raise BunqueueError at once when the server is down. A patient client would wait for it."""
        with Session(self._place) as hasty:
            hasty.ping()

    def ping(self) -> None:
        """Raise BunqueueError when the server does not answer."""
        self.admin.ping()

    @property
    def admin(self) -> Admin:
        """Commands for the whole server."""
        from .checked import CheckedAdmin

        return CheckedAdmin(self.caller)

    def queue(self, name: str, wait_if_full: float = 0) -> Queue:
        """A queue. While it is full, a push is retried for this many ms. Raises OptionError for an invalid
        name."""
        from .checked import CheckedQueue

        return CheckedQueue(name, self.caller, wait_if_full)

    def flows(self) -> FlowProducer:
        """Flows of all queues."""
        from .checked import Flows

        return Flows(self.caller)

    def found(self, job_id: str) -> Job:
        """The current state of a job. Raises JobNotFound, with what is known about the job."""
        from bunqueue.client.blocking.queue.whole_job import whole_job
        from bunqueue.client.options import checks
        from bunqueue.errors import JobNotFound
        from bunqueue.protocol.commands.query import GetJob

        command = checks.checked(GetJob(id=job_id), id="job_id")
        try:
            return whole_job(self.caller, command)
        except JobNotFound as error:
            known = (error.reason or "").partition(": ")[2]
            text = f"there is no job {job_id!r}{' any more: ' + known if known else NEVER_THERE}"
            raise JobNotFound(text, job_id=job_id, reason=error.reason) from None

    def job(self, job_id: str) -> JobHandle[Any]:
        """The handle of an existing job. Raises JobNotFound."""
        from bunqueue.client.blocking.queue import JobHandle

        job = self.found(job_id)
        return JobHandle(self.caller, job.queue, job.id)

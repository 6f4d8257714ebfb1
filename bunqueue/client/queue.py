"""Adding jobs and looking at them. `blocking.py` is generated from this file: `python scripts/unasync.py`."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

from bunqueue.client import checks
from bunqueue.client import jobs as replies
from bunqueue.client.caller import AsyncCaller
from bunqueue.client.connection_options import ConnectionOptions
from bunqueue.client.job_options import JobOptions, NewJob, bulk_fields, encode_data, wire_fields
from bunqueue.client.jobs import Job, JobCounts, JobProgress, QueueInfo, ServerStats
from bunqueue.client.transport import HOST, PORT
from bunqueue.errors import JobNotFound
from bunqueue.protocol.commands import core, dlq, query, server
from bunqueue.protocol.commands.core import JobFields, Push, PushBatch


class AsyncJobHandle:
    """A job that was added: its id, and questions about it to the server."""

    __slots__ = ("_caller", "id", "queue")

    def __init__(self, caller: AsyncCaller, queue: str, job_id: str) -> None:
        self._caller = caller
        self.queue = queue
        self.id = job_id

    def __repr__(self) -> str:
        return f"{type(self).__name__}(queue={self.queue!r}, id={self.id!r})"

    async def state(self) -> str:
        """waiting, delayed, active, completed, failed, or unknown when it is no longer there."""
        reply = await self._caller.call(query.GetState(id=self.id), query.StateReply)
        return reply.state

    async def result(self) -> Any:
        """What the handler gave back; None as long as the job has not completed."""
        reply = await self._caller.call(query.GetResult(id=self.id), replies.Outcome)
        return reply.result

    async def progress(self) -> JobProgress:
        """How far the active job is. Raises JobNotFound, or CommandFailed when it is not active."""
        reply = await self._caller.call(query.GetProgress(id=self.id), replies.ProgressOfJob)
        return JobProgress(reply.progress, reply.message)

    async def job(self) -> Job:
        """The whole job. Raises JobNotFound."""
        reply = await self._caller.call(query.GetJob(id=self.id), replies.OneJob)
        return reply.job


class AsyncQueue:
    """A queue on a server, or in this process with `embedded=True`.

        async with AsyncQueue("emails") as queue:
            handle = await queue.add("welcome", {"to": "a@example.com"}, delay=5_000)

    `token` is the server's, `data_path` where an embedded queue keeps its jobs (None: in memory), and
    `default_job_options` hold for each job that does not say otherwise. The connection is made when it is
    first needed, and shared with other queues of the same server.

    Every method raises BunqueueError, as `bunqueue.errors` has it; one that changes something and raises
    ConnectionLost or CommandTimeout may have changed it.
    """

    def __init__(
        self,
        name: str,
        *,
        host: str = HOST,
        port: int | str = PORT,
        token: str | None = None,
        embedded: bool = False,
        data_path: str | os.PathLike[str] | None = None,
        connection: ConnectionOptions | None = None,
        default_job_options: JobOptions | None = None,
    ) -> None:
        self.name = checks.queue_name(name)
        self._defaults: Mapping[str, Any] = wire_fields({**(default_job_options or {})}, {})
        endpoint = checks.endpoint(host, port, token, embedded, data_path, connection)
        self._caller = AsyncCaller(endpoint)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r} at {self._caller.endpoint.address})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Give up the connection; safe to call twice. The queue and its handles are of no use any more."""
        await self._caller.close()

    # -- adding

    async def add(self, name: str, data: object = None, **options: Unpack[JobOptions]) -> AsyncJobHandle:
        """Add a job called `name`; it is safe when this returns. For the options see `JobOptions`.

        When a job with the same `unique_key` waits or runs already, the handle is that one's.
        Raises OptionError for an option that is not allowed, PayloadError if `data` cannot be encoded.
        """
        fields = wire_fields(options, self._defaults)
        payload = encode_data(data, "the data of the job")
        command = Push(queue=self.name, name=checks.job_name(name), data=payload, **fields)
        reply = await self._caller.call(command, core.PushReply)
        return AsyncJobHandle(self._caller, self.name, reply.id)

    async def add_bulk(self, jobs: Iterable[NewJob | tuple[str, object]]) -> list[AsyncJobHandle]:
        """Add many jobs, `NewJob` or `(name, data)`, in one go: all of them, or none when one is refused.

        The handles come in the order of the jobs. Raises as `add` does; together they must fit into 64 MiB.
        """
        entries = []
        for index, job in enumerate(jobs):
            name, data = (job.name, job.data) if isinstance(job, NewJob) else job
            fields = bulk_fields(index, job, self._defaults) if isinstance(job, NewJob) else self._defaults
            payload = encode_data(data, f"the data of job {index}")
            entries.append(JobFields(name=checks.job_name(name), data=payload, **fields))
        if not entries:
            return []
        reply = await self._caller.call(PushBatch(queue=self.name, jobs=entries), core.PushBatchReply)
        return [AsyncJobHandle(self._caller, self.name, job_id) for job_id in reply.ids]

    # -- looking

    async def get_job(self, job_id: str) -> Job | None:
        """The job, or None when there is none."""
        try:
            reply = await self._caller.call(query.GetJob(id=job_id), replies.OneJob)
            return reply.job
        except JobNotFound:
            return None

    async def get_jobs(
        self, state: str | Sequence[str] | None = None, *, limit: int = 100, offset: int = 0
    ) -> list[Job]:
        """Jobs of one state, of several, or all, oldest first; `limit` is at most 10,000."""
        states = [state] if isinstance(state, str) else list(state or ())
        checks.states(JobCounts.__struct_encode_fields__, states)
        command = query.GetJobs(queue=self.name, state=states or None, limit=limit, offset=offset)
        reply = await self._caller.call(command, replies.ManyJobs)
        return reply.jobs

    async def get_state(self, job_id: str) -> str:
        """waiting, delayed, active, completed, failed, or unknown when there is no such job."""
        return await self.handle(job_id).state()

    async def get_result(self, job_id: str) -> Any:
        """What the handler gave back; None when the job has not completed or is gone."""
        return await self.handle(job_id).result()

    async def progress(self, job_id: str) -> JobProgress:
        """How far an active job is. Raises JobNotFound, or CommandFailed when it is not active."""
        return await self.handle(job_id).progress()

    def handle(self, job_id: str) -> AsyncJobHandle:
        """A handle for a job whose id is known; the server is not asked whether it exists."""
        return AsyncJobHandle(self._caller, self.name, job_id)

    async def counts(self) -> JobCounts:
        """How many jobs are in each state."""
        reply = await self._caller.call(query.GetJobCounts(queue=self.name), replies.CountsOfJobs)
        return reply.counts

    async def count(self) -> int:
        """How many jobs the queue has, in all states."""
        reply = await self._caller.call(query.Count(queue=self.name), query.CountReply)
        return reply.count

    # -- dead letters

    async def dlq(self, count: int = 1000) -> list[Job]:
        """The jobs that failed for good, oldest first; at most `count`."""
        reply = await self._caller.call(dlq.Dlq(queue=self.name, count=count), replies.ManyJobs)
        return reply.jobs

    async def retry_dlq(self, job_id: str | None = None) -> int:
        """Give dead letters all their attempts again: one of them, or all. How many that were."""
        command = dlq.RetryDlq(queue=self.name, job_id=job_id)
        reply = await self._caller.call(command, query.CountReply)
        return reply.count

    # -- the server

    async def list_queues(self) -> list[QueueInfo]:
        """All queues of the server."""
        reply = await self._caller.call(server.ListQueues(), replies.NamesOfQueues)
        return [QueueInfo(queue) if isinstance(queue, str) else queue for queue in reply.queues]

    async def stats(self) -> ServerStats:
        """Numbers over the whole server."""
        reply = await self._caller.call(server.Stats(), replies.StatsOfServer)
        return reply.stats

    async def ping(self) -> float:
        """How long the server takes to answer, in ms."""
        start = time.perf_counter()
        await self._caller.call(server.Ping(), server.PingReply)
        return (time.perf_counter() - start) * 1000

"""Adding jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Unpack

from bunqueue.client import checks
from bunqueue.client.job_options import JobOptions, NewJob, bulk_fields, encode_data, wire_fields
from bunqueue.client.middleware import AsyncAround
from bunqueue.client.queue.base import AsyncQueueBase
from bunqueue.client.queue.handle import AsyncJobHandle
from bunqueue.protocol.commands import core
from bunqueue.protocol.commands.core import JobFields, Push, PushBatch


class AsyncAdding(AsyncQueueBase):
    """The part of a queue that adds jobs."""

    async def add(self, name: str, data: object = None, **options: Unpack[JobOptions]) -> AsyncJobHandle[Any]:
        """Add a job called `name`; it is safe when this returns. For the options see `JobOptions`.

        When a job with the same `unique_key` waits or runs already, the handle is that one's.
        Raises OptionError for an option that is not allowed, PayloadError if `data` cannot be encoded.
        """
        if self._around is not None:
            (handle,) = await self._add_inside(self._around, [NewJob(name, data, **options)])
            return handle
        reply = await self._caller.call(self._push(name, data, options), core.PushReply)
        return self.handle(reply.id)

    async def add_bulk(self, jobs: Iterable[NewJob | tuple[str, object]]) -> list[AsyncJobHandle[Any]]:
        """Add many jobs, `NewJob` or `(name, data)`, in one go: all of them, or none when one is refused.

        The handles come in the order of the jobs. Raises as `add` does; together they must fit into 64 MiB.
        """
        if self._around is not None:
            made = [job if isinstance(job, NewJob) else NewJob(*job) for job in jobs]
            return await self._add_inside(self._around, made)
        command = self._push_batch(jobs)
        if not command.jobs:
            return []
        reply = await self._caller.call(command, core.PushBatchReply)
        return [self.handle(job_id) for job_id in reply.ids]

    def _push(self, name: str, data: object, options: Mapping[str, object]) -> Push:
        fields = wire_fields(options, self._defaults)
        payload = encode_data(data, "the data of the job")
        return Push(queue=self.name, name=checks.job_name(name), data=payload, **fields)

    def _push_batch(self, jobs: Iterable[NewJob | tuple[str, object]]) -> PushBatch:
        entries = []
        for index, job in enumerate(jobs):
            name, data = (job.name, job.data) if isinstance(job, NewJob) else job
            fields = bulk_fields(index, job, self._defaults) if isinstance(job, NewJob) else self._defaults
            payload = encode_data(data, f"the data of job {index}")
            entries.append(JobFields(name=checks.job_name(name), data=payload, **fields))
        return PushBatch(queue=self.name, jobs=entries)

    async def _add_inside(self, around: AsyncAround, jobs: list[NewJob]) -> list[AsyncJobHandle[Any]]:
        """Add jobs with middleware around it."""

        async def send() -> None:
            if len(jobs) == 1:
                command = self._push(jobs[0].name, jobs[0].data, jobs[0].options)
                ids = [(await self._caller.call(command, core.PushReply)).id]
            else:
                ids = (await self._caller.call(self._push_batch(jobs), core.PushBatchReply)).ids
            for job, job_id in zip(jobs, ids, strict=True):
                job.id = job_id

        for job in jobs:
            job.queue = self.name
        return [self.handle(job_id) for job_id in await around.add(jobs, send)] if jobs else []

"""Adding jobs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Unpack

from bunqueue.client import checks
from bunqueue.client.job_options import JobOptions, NewJob, bulk_fields, encode_data, wire_fields
from bunqueue.client.queue.base import AsyncQueueBase
from bunqueue.client.queue.handle import AsyncJobHandle
from bunqueue.protocol.commands import core
from bunqueue.protocol.commands.core import JobFields, Push, PushBatch


class AsyncAdding(AsyncQueueBase):
    """The part of a queue that adds jobs."""

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

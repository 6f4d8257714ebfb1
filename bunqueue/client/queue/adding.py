"""Adding jobs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Unpack

from msgspec import UNSET

from bunqueue.client.connection import requests
from bunqueue.client.options import checks
from bunqueue.client.options.job import (
    JobOptions,
    NewJob,
    bulk_fields,
    check_size,
    job_data,
    pair,
    wire_fields,
)
from bunqueue.client.queue.base import AsyncQueueBase
from bunqueue.client.queue.handle import AsyncJobHandle
from bunqueue.client.worker.middleware import AsyncAround
from bunqueue.protocol.commands import core
from bunqueue.protocol.commands.core import JobFields, Push, PushBatch


class AsyncAdding(AsyncQueueBase):
    """The part of a queue that adds jobs."""

    async def add(
        self,
        name: str,
        data: object = None,
        *,
        idempotency_key: str | None = None,
        **options: Unpack[JobOptions],
    ) -> AsyncJobHandle[Any]:
        """Add a job called `name`; it is safe when this returns. For the options see `JobOptions`.

        When there is a job already with the same `unique_key` or `job_id`, the handle is that one's, and its
        `created` is False.

        If the connection is lost meanwhile, this is repeated, and still adds one job; or it raises
        ConnectionLost or CommandTimeout, and nobody knows whether there is one. To be able to call it again
        then, even after a crash of your own, give an `idempotency_key`: for five minutes the same key adds
        nothing more to this queue, and gives the first one's handle, whose `created` is False. With another
        name or other data it raises CommandFailed; other options are not looked at.

        Raises OptionError for an option that is not allowed, PayloadError if `data` cannot be encoded.
        """
        if self._around is not None:
            made = [NewJob(name, data, **options)]
            (handle,) = await self._add_inside(self._around, made, idempotency_key)
            return handle
        command = self._push(name, data, options, idempotency_key)
        reply = await self._caller.call(command, core.PushReply)
        return AsyncJobHandle(self._caller, self.name, reply.id, created=reply.existing is UNSET)

    async def add_bulk(
        self, jobs: Iterable[NewJob | tuple[str, object]], *, idempotency_key: str | None = None
    ) -> list[AsyncJobHandle[Any]]:
        """Add many jobs, `NewJob` or `(name, data)`, in one go: all of them, or none when one is refused.

        The handles come in the order of the jobs. The `idempotency_key` is for all of them together. Raises
        as `add` does; together they must fit into 64 MiB, and be at most 100,000.
        """
        if self._around is not None:
            made = [
                job if isinstance(job, NewJob) else NewJob(*pair(index, job))
                for index, job in enumerate(jobs)
            ]
            return await self._add_inside(self._around, made, idempotency_key)
        command = self._push_batch(jobs, idempotency_key)
        if not command.jobs:
            return []
        reply = await self._caller.call(command, core.PushBatchReply)
        return self._handles(reply.ids, reply.existing or ())

    def _handles(self, ids: Sequence[str], existing: Collection[int]) -> list[AsyncJobHandle[Any]]:
        """`existing`: the places of the ids that are not of new jobs."""
        caller, queue, there = self._caller, self.name, frozenset(existing)
        return [
            AsyncJobHandle(caller, queue, job_id, created=place not in there)
            for place, job_id in enumerate(ids)
        ]

    def _push(self, name: str, data: object, options: Mapping[str, object], key: str | None) -> Push:
        fields = wire_fields(options, self._defaults)
        payload = job_data(data, "the data of the job")
        if "size_limit" in fields:
            check_size(payload, fields, "the data of the job")
        return Push(
            queue=self.name,
            name=checks.job_name(name),
            data=payload,
            idempotency_key=self._key(key),
            idempotency_hash=None if key is None else requests.content_hash([(name, payload)]),
            **fields,
        )

    def _push_batch(self, jobs: Iterable[NewJob | tuple[str, object]], key: str | None) -> PushBatch:
        entries = []
        for index, job in enumerate(jobs):
            name, data = (job.name, job.data) if isinstance(job, NewJob) else pair(index, job)
            fields = bulk_fields(index, job, self._defaults) if isinstance(job, NewJob) else self._defaults
            payload = job_data(data, f"the data of job {index}")
            if "size_limit" in fields:
                check_size(payload, fields, f"the data of job {index}")
            entries.append(JobFields(name=checks.job_name(name, index), data=payload, **fields))
        given = None if key is None else requests.content_hash((job.name or "", job.data) for job in entries)
        return PushBatch(
            queue=self.name, jobs=entries, idempotency_key=self._key(key), idempotency_hash=given
        )

    def _key(self, given: str | None) -> str | None:
        """What a push is known by when it has to be repeated; an engine in this process is never lost."""
        if given is not None:
            return checks.idempotency_key(given)
        return None if self._caller.endpoint.embedded else requests.new_key()

    async def _add_inside(
        self, around: AsyncAround, jobs: list[NewJob], key: str | None
    ) -> list[AsyncJobHandle[Any]]:
        """Add jobs with middleware around it."""
        existing: list[int] = []

        async def send() -> None:
            if len(jobs) == 1:
                command = self._push(jobs[0].name, jobs[0].data, jobs[0].options, key)
                one = await self._caller.call(command, core.PushReply)
                ids = [one.id]
                existing.extend([] if one.existing is UNSET else [0])
            else:
                many = await self._caller.call(self._push_batch(jobs, key), core.PushBatchReply)
                ids = many.ids
                existing.extend(many.existing or ())
            for job, job_id in zip(jobs, ids, strict=True):
                job.id = job_id

        for job in jobs:
            job.queue = self.name
        return self._handles(await around.add(jobs, send), existing) if jobs else []

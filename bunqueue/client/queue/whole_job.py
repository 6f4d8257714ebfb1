"""Reads a whole job: a result that is too large for the same reply is fetched separately."""

from __future__ import annotations

from bunqueue.client.connection.caller import AsyncCaller
from bunqueue.client.models import jobs as replies
from bunqueue.client.models.jobs import Job
from bunqueue.protocol.commands import query


async def whole_job(caller: AsyncCaller, command: query.GetJob | query.GetJobByCustomId) -> Job:
    """The job that the command names. Raises JobNotFound."""
    job = (await caller.call(command, replies.OneJob)).job
    if job.result_bytes is not None:
        job.result = (await caller.call(query.GetResult(id=job.id), replies.Outcome)).result
        job.result_bytes = None
    return job

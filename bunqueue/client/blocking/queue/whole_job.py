"""Made by scripts/unasync.py from client/queue/whole_job.py; do not edit."""

from __future__ import annotations

from bunqueue.client.connection.caller import Caller
from bunqueue.client.models import jobs as replies
from bunqueue.client.models.jobs import Job
from bunqueue.protocol.commands import query


def whole_job(caller: Caller, command: query.GetJob | query.GetJobByCustomId) -> Job:
    """The job that the command names. Raises JobNotFound."""
    job = (caller.call(command, replies.OneJob)).job
    if job.result_bytes is not None:
        job.result = (caller.call(query.GetResult(id=job.id), replies.Outcome)).result
        job.result_bytes = None
    return job

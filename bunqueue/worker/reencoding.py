"""Stores jobs that are encrypted with an older key again before they run, encrypted with the first key. So
what the server makes from them, such as repetitions, no longer needs the old key.
"""

from __future__ import annotations

import logging
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from bunqueue.client.models.workflows import OneWorkflow
from bunqueue.errors import BunqueueError
from bunqueue.model.workflow import MAX_STATE_BYTES
from bunqueue.protocol.commands.keys import Reencode, ReencodeReply
from bunqueue.protocol.commands.workflows import GetWorkflow, RecordSteps, RecordStepsReply, StepRecord
from bunqueue.worker.active_job import ActiveJob

logger = logging.getLogger("bunqueue.worker")


async def reencode(job: ActiveJob[Any]) -> None:
    """Store the job again; the codec encrypts everything that is sent. If the server refuses, the job stays
    as it was: that must not keep it from running.
    """
    assert job.outdated is not None
    command = Reencode(id=job.id, token=job.token, data=job.outdated.data)
    try:
        reply = await job.channel.ask(command, ReencodeReply)
        if reply.on_dead is not UNSET:
            await job.channel.ask(replace(command, on_dead=reply.on_dead, req_id=UNSET), ReencodeReply)
        if job.workflow.steps:
            await _state(job)
    except BunqueueError as error:
        logger.debug("queue %r: job %s is not encrypted anew: %s", job.queue, job.id, error)


async def _state(job: ActiveJob[Any]) -> None:
    """Store the state that a workflow shows, which is not a step."""
    info = (
        await job.channel.ask(GetWorkflow(id=job.id, limit=1, max_result=MAX_STATE_BYTES), OneWorkflow)
    ).data
    if info.raw_value is not UNSET:
        record = StepRecord(id=job.id, token=job.token, name="state", kind="state", result=info.raw_value)
        await job.channel.ask(RecordSteps(queue=job.queue, steps=[record]), RecordStepsReply)

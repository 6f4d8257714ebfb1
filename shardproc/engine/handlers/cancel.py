"""Cancel: a job that has not started is removed at once, a running one is asked to stop, and a workflow that
waits between two runs ends like one that ran.

The request is stored with the job, so it survives a restart.  After that the job can leave ACTIVE only
through `lifecycle.transitions.cancel`, whatever outcome is reported.  The worker gets a notice on the
connection that pulled the job or, if that is gone, in the reply to its next heartbeat.
"""

from __future__ import annotations

from bunqueue.model.job import ACTIVE
from bunqueue.protocol.commands.jobs import Cancel, CancelReply

from ..lifecycle.cancellation import stop
from ..lookup import wrong_state
from ..registry import handles
from ..state import Client, State


@handles(Cancel)
def cancel(state: State, client: Client, command: Cancel) -> CancelReply:
    job = state.jobs.get(command.id)
    if job is None or (job.state == ACTIVE and not command.running):
        text = "Job not found or cannot be cancelled"
        raise wrong_state(command.id, text, "any of a job that has not ended; active with running")
    goes_on = stop(state, job, command.reason, int(command.grace))
    return CancelReply(running=True) if goes_on else CancelReply()

"""WaitJob: an answer when a job ends, without asking again and again."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from msgspec import UNSET, Raw

from bunqueue.model.job import COMPLETED, NIL, Job
from bunqueue.protocol.commands import CommandError
from bunqueue.protocol.commands.events import WaitJob, WaitReply
from bunqueue.protocol.job_view import state_name

from .registry import handles
from .state import Client, JobWait, State


@handles(WaitJob)
def wait_job(state: State, client: Client, command: WaitJob) -> WaitReply | None:
    job = state.jobs.get(command.id)
    if job is not None and command.timeout:
        _park(state, client, command)
        return None
    job = job or state.archive.find(command.id)
    if job is None:
        raise CommandError("Job not found")
    if command.timeout:
        client.slow += 1
    if job.state != COMPLETED:
        return WaitReply(completed=False, state=state_name(job, client.version))
    result = job.result or NIL
    state.out.size += len(result)
    return WaitReply(completed=True, result=Raw(result))


def completed(state: State, job: Job, result: bytes | None) -> None:
    """``job`` has completed; None: with a result that is not kept."""
    told = UNSET if result is None else Raw(result)
    for wait in state.waits.pop(job.id, ()):
        _answer(state, wait, WaitReply(completed=True, result=told))
        state.out.size += len(result or b"")


def ended(state: State, job: Job) -> None:
    """``job`` is no longer live.  Who still waits for it need not wait on."""
    for wait in state.waits.pop(job.id, ()):
        _answer(state, wait, WaitReply(completed=False, state=state_name(job, wait.client.version)))


def end_waits(state: State) -> None:
    """Answer those whose time is over."""
    ends, now = state.wait_ends, state.now
    while ends and ends[0][0] <= now:
        wait = heappop(ends)[2]
        if wait.done:
            continue
        _forget(state, wait)
        job = state.jobs[wait.job_id]
        _answer(state, wait, WaitReply(completed=False, state=state_name(job, wait.client.version)))


def leave(state: State, client: Client) -> None:
    """The connection ended: nobody waits there any more."""
    for wait in client.waits or ():
        wait.done = True
        _forget(state, wait)
    client.waits = None


def _park(state: State, client: Client, command: WaitJob) -> None:
    wait = JobWait(client, command.id, command.req_id)
    if client.waits is None:
        client.waits = set()
    client.waits.add(wait)
    client.waiters += 1
    state.waits.setdefault(command.id, []).append(wait)
    state.serial += 1
    heappush(state.wait_ends, (state.now + max(1, int(command.timeout)), state.serial, wait))
    if len(state.wait_ends) > state.wait_ends_limit:
        state.wait_ends = [end for end in state.wait_ends if not end[2].done]
        heapify(state.wait_ends)
        state.wait_ends_limit = max(256, 2 * len(state.wait_ends))


def _forget(state: State, wait: JobWait) -> None:
    waits = state.waits[wait.job_id]
    waits.remove(wait)
    if not waits:
        del state.waits[wait.job_id]


def _answer(state: State, wait: JobWait, reply: WaitReply) -> None:
    client = wait.client
    wait.done = True
    if client.waits is not None:
        client.waits.discard(wait)
    client.waiters -= 1
    client.slow += 1
    reply.req_id = wait.req_id
    state.out.replies.append((client.conn, reply))

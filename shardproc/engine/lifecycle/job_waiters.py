"""WaitJob and WaitJobs: replies when a job ends, so clients need not poll."""

from __future__ import annotations

from msgspec import UNSET, Raw, UnsetType

from bunqueue.model.dead_letters import CANCELLED, EXPIRED, QUEUE_FULL, cause_of, reason_of
from bunqueue.model.job import COMPLETED, Job
from bunqueue.protocol.commands.events import Ended, WaitJob, WaitJobs, WaitManyReply, WaitReply
from bunqueue.protocol.job_view import state_name
from bunqueue.server.links.peers import DroppedLetter

from ..dispatch import answer_late
from ..lookup import not_found
from ..registry import handles
from ..state import Client, Gone, JobWait, State

MAX_ENDED = 100  # finished jobs per reply: each is read from disk, about 20 us
MAX_KEPT = 10_000  # removed jobs whose outcomes are remembered; an error has 4 KiB at most
MAX_RESULTS = 4 << 20  # bytes of results per reply; the result that exceeds this is the last one


@handles(WaitJob)
def wait_job(state: State, client: Client, command: WaitJob) -> WaitReply | None:
    job = state.jobs.get(command.id)
    if job is not None and command.timeout:
        _park(state, JobWait(client, (command.id,), command.req_id), command.timeout)
        return None
    job = job or state.archive.find(command.id)
    if job is None:
        raise not_found(state, command.id)
    if job.state != COMPLETED:
        return WaitReply(completed=False, state=state_name(job, client.version))
    return WaitReply(completed=True, result=_shown(job.result))


@handles(WaitJobs)
def wait_jobs(state: State, client: Client, command: WaitJobs) -> WaitManyReply | None:
    ids = tuple(dict.fromkeys(command.ids))
    found: list[Ended] = []
    size = 0
    for job_id in ids:
        if job_id in state.jobs:
            continue
        job = state.archive.find(job_id)
        found.append(_removed(state, job_id) if job is None else _ended(job))
        size += len((job and job.result) or b"")
        if len(found) == MAX_ENDED or size > MAX_RESULTS:
            break
    if ids and not found and command.timeout:
        _park(state, JobWait(client, ids, command.req_id, many=True), command.timeout)
        return None
    return WaitManyReply(ended=found)


def completed(state: State, job: Job, result: bytes | None, *, kept: bool) -> None:
    """Answer the waits for a job that has completed, perhaps without a result, or with one that is not
    kept."""
    for wait in _waits(state, job):
        if wait.many:
            end = Ended(id=job.id, state="completed", result=_shown(result), attempts=job.attempts)
            _answer(state, wait, WaitManyReply(ended=[end]))
        else:
            _answer(state, wait, WaitReply(completed=True, result=_shown(result if kept else None)))


def _shown(result: bytes | None) -> Raw | UnsetType:
    return UNSET if result is None else Raw(result)


def ended(state: State, job: Job) -> None:
    """Answer all remaining waits for a job that is no longer live."""
    for wait in _waits(state, job):
        if wait.many:
            _answer(state, wait, WaitManyReply(ended=[_ended(job)]))
        else:
            _answer(state, wait, WaitReply(completed=False, state=state_name(job, wait.client.version)))


def _ended(job: Job) -> Ended:
    """The outcome of a job that is no longer live."""
    if job.state == COMPLETED:
        return Ended(id=job.id, state="completed", result=_shown(job.result), attempts=job.attempts)
    if job.reason is None:
        return Ended(id=job.id, state="unknown")
    state = job.reason if job.reason in (CANCELLED, EXPIRED) else "failed"
    reason, cause = reason_of(job.reason), cause_of(job.reason) if state == "failed" else None
    return Ended(id=job.id, state=state, error=job.error, reason=reason, attempts=job.attempts, cause=cause)


def keep(state: State, job: Job) -> None:
    """Remember how a removed job ended, until the shard stops or MAX_KEPT others have been added."""
    if job.reason in (CANCELLED, EXPIRED, QUEUE_FULL):
        _keep(state, job.queue, _ended(job))


def keep_dropped(state: State, job_id: str, letter: DroppedLetter) -> None:
    """The same for a dropped dead letter; another shard stores more about it."""
    _keep(state, letter.queue, _dropped(job_id, letter))


def _keep(state: State, queue: str, end: Ended) -> None:
    state.ended[end.id] = Gone(queue, end)
    if len(state.ended) > MAX_KEPT:
        del state.ended[next(iter(state.ended))]


def _removed(state: State, job_id: str) -> Ended:
    if (found := state.ended.get(job_id)) is not None:
        return found.end
    letter = state.dropped.look_up(state.archive, job_id)
    return Ended(id=job_id, state="unknown") if letter is None else _dropped(job_id, letter)


def _dropped(job_id: str, letter: DroppedLetter) -> Ended:
    stored, error = letter.reason, letter.error
    state = stored if stored == CANCELLED else "failed"
    reason, cause = reason_of(stored), cause_of(stored) if state == "failed" else None
    return Ended(id=job_id, state=state, error=error, reason=reason, attempts=letter.attempts, cause=cause)


def end_waits(state: State) -> None:
    """Answer the waits that have timed out."""
    while (entry := state.wait_ends.pop_due(state.now)) is not None:
        wait = entry[2]
        if wait.done:
            continue
        _forget(state, wait)
        if wait.many:
            _answer(state, wait, WaitManyReply(ended=[]))
        else:
            job = state.jobs[wait.job_ids[0]]
            _answer(state, wait, WaitReply(completed=False, state=state_name(job, wait.client.version)))


def _waits(state: State, job: Job) -> list[JobWait]:
    """The waits for a job, which are no longer parked afterwards."""
    waits = list(state.waits.get(job.id, ()))
    for wait in waits:
        _forget(state, wait)
    return waits


def leave(state: State, client: Client) -> None:
    """End the waits of a connection that has ended."""
    for wait in client.waits or ():
        wait.done = True
        _forget(state, wait)
    client.waits = None


def _park(state: State, wait: JobWait, timeout: float) -> None:
    client = wait.client
    if client.waits is None:
        client.waits = set()
    client.waits.add(wait)
    client.waiters += 1
    for job_id in wait.job_ids:
        state.waits.setdefault(job_id, []).append(wait)
    state.wait_ends.add(state.now + max(1, int(timeout)), wait)


def _forget(state: State, wait: JobWait) -> None:
    for job_id in wait.job_ids:
        waits = state.waits[job_id]
        waits.remove(wait)
        if not waits:
            del state.waits[job_id]


def _answer(state: State, wait: JobWait, reply: WaitReply | WaitManyReply) -> None:
    client = wait.client
    wait.done = True
    if client.waits is not None:
        client.waits.discard(wait)
    client.waiters -= 1
    answer_late(state, client, wait.req_id, reply)

"""Why a job waits: everything that holds it back at present.  Read-only."""

from __future__ import annotations

from collections.abc import Iterator

from bunqueue.model.breaker import HALF_OPEN, OPEN
from bunqueue.model.job import BLOCKED, DELAYED, SUSPENDED, WAITING, Job
from bunqueue.model.workflow import SIGNAL
from bunqueue.protocol.commands.insight import WaitReason

from ...ready.group import FREE, Group
from ...state import QueueState, State
from ..crons.due_runs import has_worker

MAX_IDS = 100
WAIT_STATES = (WAITING, DELAYED, BLOCKED, SUSPENDED)


def reasons_of(state: State, job: Job, *, errors: bool) -> list[WaitReason]:
    """All reasons, with or without texts of errors, in no particular order; empty for a job that does not
    wait."""
    queue = state.queues.get(job.queue)
    if queue is None or job.id not in state.jobs or job.state not in WAIT_STATES:
        return []
    if job.state == SUSPENDED:
        return list(_of_workflow(state, job))
    found = [*_own(job), *_of_queue(state, queue, job, errors=errors), *_of_group(state, queue, job)]
    return found or [_turn(queue)]


def _own(job: Job) -> Iterator[WaitReason]:
    """The reasons in the job itself: its dependencies, its run time."""
    pending = job.extra.pending if job.extra is not None else []
    if job.extra is not None and job.extra.gathering:
        yield WaitReason("batch", "its batch is open: it begins when that is closed and all have ended", None)
    elif job.state == BLOCKED and (pending or job.extra is None or job.extra.after is None):
        text = f"it depends on {_count(len(pending), 'job')} that {_have(len(pending))} not completed"
        yield WaitReason("dependencies", text, None, pending[:MAX_IDS])
    after = job.extra.after if job.extra is not None else None
    if after is not None:
        yield WaitReason(
            "superseding", f"it begins when job {after}, which it supersedes, has ended", None, [after]
        )
    if job.state == DELAYED and job.attempts:
        yield WaitReason("retry", f"attempt {job.attempts} failed, the next one waits", float(job.run_at))
    elif job.state == DELAYED:
        yield WaitReason("delay", "its time has not come", float(job.run_at))


def _of_workflow(state: State, job: Job) -> Iterator[WaitReason]:
    """The signals and children that a suspended workflow waits for."""
    open_ = [head for head in state.archive.runs.heads(job.seq) if head.status == "waiting"]
    for head in open_:
        if head.kind == SIGNAL:
            key = f" with the key {head.key!r}" if head.key is not None else ""
            until = None if head.until is None else float(head.until)
            yield WaitReason("signal", f"it waits for the signal {head.signal!r}{key}", until)
    children = [head.child for head in open_ if head.child is not None]
    if children:
        text = f"it waits for {_count(len(children), 'job')} that it has started"
        yield WaitReason("children", text, None, children[:MAX_IDS])


def _of_breakers(state: State, queue: QueueState, job: Job, *, errors: bool) -> Iterator[WaitReason]:
    breakers = queue.limits.breakers if queue.limits is not None else None
    for breaker in () if breakers is None else breakers.of(job):
        shown, record = breaker.shown_state(state.now), breaker.record
        what = f"jobs called {breaker.name}" if breaker.name else f"the queue {queue.name}"
        why = f": {record.error}" if record.error and errors else ""
        if shown == OPEN:
            text = f"the circuit breaker of {what} is open{why}"
            yield WaitReason("breaker", text, float(record.until))
        elif shown == HALF_OPEN and not breaker.lets(state.now):
            yield WaitReason("breaker", f"the circuit breaker of {what} waits for a trial{why}")


def _of_queue(state: State, queue: QueueState, job: Job, *, errors: bool) -> Iterator[WaitReason]:
    if queue.paused:
        yield WaitReason("paused", f"the queue {queue.name} is paused")
    if not has_worker(state, queue.name):
        yield WaitReason("no-worker", f"no worker is connected to the queue {queue.name}")
    elif is_unknown(state, job):
        text = f"nobody runs {job.name!r}: no worker of the queue {queue.name} has a function of this name"
        yield WaitReason("unknown-name", text)
    yield from _of_breakers(state, queue, job, errors=errors)
    own = queue.limits.own if queue.limits is not None else None
    if own is None:
        return
    most, active = own.concurrency, len(queue.active)
    if most is not None and active >= most:
        yield WaitReason("concurrency", f"{active} of at most {most} jobs of the queue are active")
    bucket = own.bucket
    if bucket is not None and (bucket.until is None or bucket.until > state.now):
        at = bucket.next_token_at(state.now)
        if at is None or at > state.now:
            text = f"the queue's rate limit of {bucket.max} jobs in {bucket.duration} ms is used up"
            yield WaitReason("rate-limit", text, None if at is None else float(at))


def is_unknown(state: State, job: Job) -> bool:
    """Whether all registered workers of its queue declare what they run, and none of them includes the job's
    name."""
    workers = state.queues_with_workers.get(job.queue, {})
    return bool(workers) and not any(names is None or job.name in names for names in workers.values())


def _of_group(state: State, queue: QueueState, job: Job) -> Iterator[WaitReason]:
    groups = queue.limits.groups if queue.limits is not None else None
    group_id = job.extra.group_id if job.extra is not None else None
    if groups is None or group_id is None or (group := groups.by_id.get(group_id)) is None:
        return
    policy, record, now = groups.used or FREE, group.record, state.now
    if record.paused:
        yield WaitReason("group-paused", f"the group {group.id} is paused")
    usual = groups.usual
    most = group.most_active(policy, usual)
    if most is not None and group.active >= most:
        text = f"{group.active} of at most {most} jobs of the group {group.id} are active"
        yield WaitReason("group-concurrency", text)
    until = _rate_until(group, group.rate(policy, usual).max)
    if until > now:
        yield WaitReason("group-rate-limit", f"the group {group.id} has reached its rate", float(until))


def _rate_until(group: Group, most: int | None) -> int:
    """Until when the rate of a group blocks its jobs; may be in the past."""
    record = group.record
    is_full = most is not None and record.started >= most
    return max(record.held_until, record.window_until if is_full else 0)


def _turn(queue: QueueState) -> WaitReason:
    return WaitReason("turn", f"nothing holds it back: it is one of {queue.waiting} jobs that are ready")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _have(number: int) -> str:
    return "has" if number == 1 else "have"

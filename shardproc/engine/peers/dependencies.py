"""Jobs that depend on others: they are BLOCKED until the last of these has completed.

``state.awaited`` knows, for each job that others wait for, the waiting jobs on this shard, and the other
shards that asked about it.  It is memory only: after a restart the shard of the waiting job asks again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Raw

from bunqueue.model.job import BLOCKED, COMPLETED, Extra, Job
from bunqueue.model.names import outside
from bunqueue.server.links import peers as messages

from .. import peer_calls
from ..lifecycle import child_results, transitions
from ..lifecycle.outcomes import outcome_of, outcome_of_ended, watch
from ..outbox import ROW
from ..peer_calls import Steps
from ..registry import answers
from ..state import Awaited, ChildEnd, State
from .directory import flows_decided, locate

AT_ONCE = 100  # results requested per question
GONE = "it was removed"  # the error of a job that no shard has
POLICIES = {
    "wait": messages.WAIT,
    "fail": messages.FAIL_PARENT,
    "remove": messages.REMOVE_DEPENDENCY,
    "ignore": messages.IGNORE,
    "continue": messages.CONTINUE,
}
"""The values of ``onDeadDependency``."""


def extra_of(job: Job) -> Extra:
    """The job's extra, created if necessary."""
    if job.extra is None:
        job.extra = Extra()
    return job.extra


# Asking for outcomes of jobs


def look_up(state: State, ids: Iterable[str], *, durable: bool = False) -> Steps:
    """The outcomes of jobs on any shard, as ``{id: Outcome}``; pending ones are watched afterwards.

    Later news is kept until `release_lookup` is called, which must follow.
    """
    ids = list(dict.fromkeys(ids))
    for job_id in ids:
        state.awaited.setdefault(job_id, Awaited()).users += 1
    shard_of = yield from locate(state, ids)
    groups = peer_calls.grouped(shard_of)
    for job_id, shard in shard_of.items():  # before its answer: it may answer, and die, before others answer
        state.awaited[job_id].shard = shard
    found = yield [(shard, messages.Watch(some, durable)) for shard, some in groups.items()]
    outcomes: dict[str, messages.Outcome] = {}
    for some, answer in zip(groups.values(), found, strict=True):
        outcomes.update(zip(some, answer.jobs, strict=True))
    for job_id, outcome in outcomes.items():
        state.awaited[job_id].is_watched |= outcome.word != messages.DONE
    return outcomes


def release_lookup(state: State, ids: Iterable[str]) -> None:
    """The outcomes that `look_up` returned for these ids have been used."""
    for job_id in dict.fromkeys(ids):
        awaited = state.awaited.get(job_id)
        if awaited is not None:
            awaited.users -= 1
            drop_idle(state, job_id, awaited)


@answers(messages.Watch)
def answer_watch(state: State, source: int, message: messages.Watch) -> Steps:
    yield from flows_decided(state, message.ids)
    state.out.durable |= message.durable
    jobs = [_outcome(state, job_id) for job_id in message.ids]
    if source != state.shard:
        for outcome in jobs:
            if outcome.word != messages.DONE:
                state.awaited.setdefault(outcome.id, Awaited()).shards.add(source)
            if outcome.word == messages.PENDING:
                watch(state, state.jobs[outcome.id])
    return messages.Outcomes(jobs)


@answers(messages.Unwatch)
def answer_unwatch(state: State, source: int, message: messages.Unwatch) -> None:
    for job_id in message.ids:
        _forget_watcher(state, job_id, source)


def _forget_watcher(state: State, job_id: str, shard: int) -> None:
    awaited = state.awaited.get(job_id)
    if awaited is not None:
        awaited.shards.discard(shard)
        drop_idle(state, job_id, awaited)


def _outcome(state: State, job_id: str) -> messages.Outcome:
    """The outcome of a job of this shard."""
    if job_id in state.jobs:
        return messages.Outcome(job_id, messages.PENDING)
    return outcome_of_ended(state, job_id)


# A job that waits


def block(state: State, job: Job, outcomes: Mapping[str, messages.Outcome]) -> bool:
    """Record the jobs that a new job has to wait for; whether there are any."""
    extra = job.extra
    if extra is None:
        return False
    extra.pending = [
        dep for dep in dict.fromkeys(extra.depends_on) if not _is_done(state, dep, outcomes.get(dep))
    ]
    wait_for_pending(state, job)
    return bool(extra.pending)


def wait_for_holders(
    state: State,
    jobs: Iterable[Job],
    holders: Mapping[str, str],
    outcomes: Mapping[str, messages.Outcome],
) -> Mapping[str, messages.Outcome]:
    """Redirect dependencies of new jobs: if a job was not added because another one has its unique key, they
    depend on that one.  Returns the outcomes, including those of the holders."""
    for job in jobs:
        if job.extra is not None and not holders.keys().isdisjoint(job.extra.depends_on):
            job.extra.depends_on = [holders.get(dep, dep) for dep in job.extra.depends_on]
    return {**outcomes, **{holder: _outcome(state, holder) for holder in holders.values()}}


def _is_done(state: State, job_id: str, outcome: messages.Outcome | None) -> bool:
    """Whether a dependency was done when it was looked up, or has completed since."""
    awaited = state.awaited.get(job_id)
    return (outcome is not None and outcome.word == messages.DONE) or (awaited is not None and awaited.done)


def wait_for_pending(state: State, job: Job) -> None:
    """Register a job for news about the jobs that it waits for."""
    for dep in job.extra.pending if job.extra is not None else ():
        state.awaited.setdefault(dep, Awaited()).jobs[job] = None


def forget(state: State, job: Job) -> None:
    """A blocked job is gone: cancel its registrations."""
    for dep in job.extra.pending if job.extra is not None else ():
        _wait_no_more(state, job, dep)


def _wait_no_more(state: State, job: Job, dep: str) -> None:
    awaited = state.awaited.get(dep)
    if awaited is not None:
        awaited.jobs.pop(job, None)
        drop_idle(state, dep, awaited)


def drop_idle(state: State, job_id: str, awaited: Awaited) -> None:
    """Forget a job that nothing waits for; its shard need not notify this one any more."""
    waited_for = awaited.jobs or awaited.parents or awaited.shards or awaited.users
    if waited_for or state.awaited.pop(job_id, None) is None:
        return
    if awaited.is_watched and awaited.shard != state.shard:
        peer_calls.notify(state, awaited.shard, messages.Unwatch([job_id]))


# News


def notify_waiters(state: State) -> None:
    """Notify those that wait for jobs that were decided."""
    while state.decided:
        job = state.decided.pop()
        awaited = state.awaited.get(job.id)
        if awaited is None:
            continue
        outcome = outcome_of(job)
        for shard in awaited.shards:
            peer_calls.notify(state, shard, messages.Outcomes([outcome]))
        if outcome.word == messages.DONE:
            awaited.shards.clear()
        on_outcome(state, outcome)


@answers(messages.Outcomes)
def on_outcomes(state: State, source: int, message: messages.Outcomes) -> None:
    for outcome in message.jobs:
        on_outcome(state, outcome)


def on_outcome(state: State, outcome: messages.Outcome) -> None:
    """Handle the outcome of a job: let the jobs that wait for it continue."""
    awaited = state.awaited.get(outcome.id)
    if awaited is None or outcome.word in (messages.PENDING, messages.UNKNOWN):
        return
    awaited.done = outcome.word == messages.DONE
    awaited.is_watched &= not awaited.done
    _report_child(state, awaited, outcome)
    for job in list(awaited.jobs):
        if job.state == BLOCKED and _apply(state, job, outcome):
            awaited.jobs.pop(job, None)
    drop_idle(state, outcome.id, awaited)


def _report_child(state: State, awaited: Awaited, outcome: messages.Outcome) -> None:
    """Report the outcome to the workflows that have started the job; see `children`."""
    if awaited.parents:
        state.run_ends.append(ChildEnd(outcome, list(awaited.parents)))
        awaited.parents.clear()


def _apply(state: State, job: Job, outcome: messages.Outcome) -> bool:
    """Apply an outcome to a waiting job; True if the job no longer waits for that one."""
    extra = extra_of(job)
    if outcome.word != messages.DONE:
        policy = _policy(job, extra, outcome)
        if policy == messages.WAIT:
            return False
        if policy == messages.FAIL_PARENT:
            child = outside(job.queue, outcome.id)
            transitions.fail_blocked(state, job, f"Child job {child} failed: {outcome.error}")
            return True
        if policy == messages.REMOVE_DEPENDENCY:
            extra.depends_on = [dep for dep in extra.depends_on if dep != outcome.id]
        elif policy == messages.IGNORE:
            extra.ignored = {**(extra.ignored or {}), outcome.child: outcome.error}
        else:
            extra.failures = {**(extra.failures or {}), outcome.child: outcome.error}
            forget(state, job)
            extra.pending = []
    extra.pending = [dep for dep in extra.pending if dep != outcome.id]
    state.out.touch(job, ROW)
    if not extra.pending:
        transitions.unblock(state, job)
    return True


def _policy(job: Job, extra: Extra, outcome: messages.Outcome) -> int:
    """The effect of a failed dependency on a job: the job's own setting, else that of its child."""
    if extra.on_dead_dependency is not None:
        return POLICIES[extra.on_dead_dependency]
    is_child = outcome.parent == job.id or outcome.id in extra.children_ids
    return outcome.policy if is_child else messages.WAIT


def release(state: State, job: Job, dep: str) -> None:
    """Let a blocked job no longer wait for ``dep``."""
    extra = extra_of(job)
    _wait_no_more(state, job, dep)
    extra.pending = [other for other in extra.pending if other != dep]
    state.out.touch(job, ROW)
    if job.state == BLOCKED and not extra.pending:
        transitions.unblock(state, job)


# After a restart


def ask_again(state: State, ids: Iterable[str] | None = None) -> None:
    """Ask for the outcomes of jobs that jobs here wait for: all of them, or these."""
    wanted = [
        job_id
        for job_id in (state.awaited if ids is None else ids)
        if state.awaited[job_id].jobs or state.awaited[job_id].parents or state.awaited[job_id].users
    ]
    if wanted:
        peer_calls.start(state, _ask_again(state, wanted))


def _ask_again(state: State, ids: list[str]) -> Steps:
    outcomes = yield from look_up(state, ids)
    for outcome in outcomes.values():
        on_outcome(state, outcome)
        if outcome.word == messages.UNKNOWN:
            _report_child(state, state.awaited[outcome.id], outcome)
            if not state.recovery.uncertain:  # else `reconcile` removes half flows first, and then does this
                _give_up(state, outcome.id)
    release_lookup(state, ids)


def _give_up(state: State, missing: str) -> None:
    """No shard has the job, or knows how it ended: the jobs of its flow that wait for it are notified that it
    is gone.  Others continue to wait, as always."""
    for job in list(state.awaited[missing].jobs):
        extra = extra_of(job)
        if job.state == BLOCKED and (extra.flow_id is not None or extra.on_dead_dependency is not None):
            policy = POLICIES[extra.on_dead_dependency or "fail"]
            gone = messages.Outcome(missing, messages.DEAD_REMOVED, missing, job.id, policy, GONE)
            if _apply(state, job, gone):
                state.awaited[missing].jobs.pop(job, None)


def peer_is_back(state: State, shard: int) -> None:
    """A restarted shard no longer knows who waits for its jobs, and asks its own questions again."""
    for job_id in [job_id for job_id, awaited in state.awaited.items() if shard in awaited.shards]:
        _forget_watcher(state, job_id, shard)
    ask_again(state, [job_id for job_id, awaited in state.awaited.items() if awaited.shard == shard])


# Results of children


@answers(messages.Values)
def values(state: State, source: int, message: messages.Values) -> messages.ValuesAre:
    found: list[messages.Value | None] = []
    gone: list[str] = []
    for job_id in message.ids:
        job = None if job_id in state.jobs else state.archive.known(job_id)
        if job is not None:
            found.append(_value(job))
        elif job_id in state.jobs:
            found.append(None)
        else:
            found.append(child_results.find(state, job_id))
            if not child_results.is_known(state, job_id):
                gone.append(job_id)
    return messages.ValuesAre(found, gone)


def _value(job: Job) -> messages.Value | None:
    return messages.Value(job.queue, Raw(job.result)) if job.state == COMPLETED and job.result else None


def values_of(state: State, ids: list[str]) -> Steps:
    """The results of completed jobs on any shard, as ``{"queue:id": result}``, in the order of ``ids``; and
    the ids of jobs that no shard knows any more."""
    shard_of = yield from locate(state, ids)
    groups = [
        (shard, some[start : start + AT_ONCE])
        for shard, some in peer_calls.grouped(shard_of).items()
        for start in range(0, len(some), AT_ONCE)
    ]
    found = yield [(shard, messages.Values(some)) for shard, some in groups]
    values = {
        job_id: value
        for (_, some), answer in zip(groups, found, strict=True)
        for job_id, value in zip(some, answer.values, strict=True)
        if value is not None
    }
    gone = {job_id for answer in found for job_id in answer.gone}
    results = {
        f"{values[job_id].queue}:{job_id}": values[job_id].result for job_id in ids if job_id in values
    }
    return results, gone

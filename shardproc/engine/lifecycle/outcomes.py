"""The outcomes of jobs for the jobs that depend on them, even of jobs of which nothing else is kept.

The outcome of a removed job is kept in memory.  If other shards need it, it is stored as well, because they
may ask after this shard has restarted, or when they come back themselves.
"""

from __future__ import annotations

from msgspec import Struct, json

from bunqueue.model.durations import DAY_MS
from bunqueue.model.job import FAILED, Extra, Job
from bunqueue.server.links import peers as messages

from .. import peer_calls
from ..outbox import ROW
from ..registry import answers, at_id, recovers, when_obliterated
from ..state import QueueState, State

KIND = "gone"
MAX_GONE = 50_000  # outcomes kept in memory, and the same number in storage
KEPT_MS = 7 * DAY_MS


class RemovedJob(Struct):
    """A record of a job that was removed at that time.  It had completed, unless there is a ``child``."""

    at: int
    child: str = ""
    parent: str = ""
    policy: int = 0
    error: str = ""


_decode = json.Decoder(RemovedJob).decode


def outcome_of(job: Job) -> messages.Outcome:
    """The outcome of a decided or removed job, and its effect on the parent."""
    child = f"{job.queue}:{job.id}"
    if job.state != FAILED and job.finished_at is not None:
        return messages.Outcome(job.id, messages.DONE, child)
    extra = job.extra or Extra()
    word = messages.DEAD if job.state == FAILED else messages.DEAD_REMOVED
    error = job.error or job.reason or "it was removed"
    return messages.Outcome(job.id, word, child, extra.parent_id or "", _policy(extra), error)


def _policy(extra: Extra) -> int:
    if not extra.has_policy:
        return messages.WAIT
    if extra.fail_parent_on_failure:
        return messages.FAIL_PARENT
    if extra.remove_dependency_on_failure:
        return messages.REMOVE_DEPENDENCY
    return messages.CONTINUE if extra.continue_parent_on_failure else messages.IGNORE


def outcome_of_ended(state: State, job_id: str) -> messages.Outcome:
    """The outcome of a job of this shard that is no longer live."""
    job = state.archive.known(job_id)
    if job is not None:
        return outcome_of(job)
    return (
        state.gone.get(job_id) or state.tombstones.get(job_id) or messages.Outcome(job_id, messages.UNKNOWN)
    )


def watch(state: State, job: Job) -> None:
    """Mark a live job whose outcome other shards need.  They will ask again after a restart."""
    job.extra = job.extra or Extra()
    if not job.extra.watched:
        job.extra.watched = True
        state.out.touch(job, ROW)


def remember(state: State, job: Job) -> None:
    """Remember the outcome of a removed job, in whatever state, and notify the jobs that wait for it."""
    if job.id in state.awaited:
        state.decided.append(job)
    outcome, extra = outcome_of(job), job.extra
    if extra is None or not (extra.watched or extra.has_policy) or state.shards == 1:
        if outcome.word == messages.DONE or outcome.policy != messages.WAIT:
            remember_latest(state, outcome)
        return
    state.tombstones[job.id] = outcome
    gone = RemovedJob(state.now)
    if outcome.word != messages.DONE:
        gone = RemovedJob(state.now, outcome.child, outcome.parent, outcome.policy, outcome.error)
    state.out.keep(KIND, job.id, gone)
    if len(state.tombstones) > MAX_GONE:
        oldest = next(iter(state.tombstones))
        forget(state, oldest)
        state.freed_ids.append(oldest)  # the directory entry that led others here was kept until now


def remember_latest(state: State, outcome: messages.Outcome) -> None:
    """`remember`, but only until the shard stops or too many others have been added."""
    state.gone[outcome.id] = outcome
    if len(state.gone) > MAX_GONE:
        del state.gone[next(iter(state.gone))]


def forget(state: State, job_id: str) -> None:
    """Forget an outcome because the id is used again."""
    state.gone.pop(job_id, None)
    if state.tombstones.pop(job_id, None) is not None:
        state.out.keep(KIND, job_id, None)


@when_obliterated
def obliterate(state: State, queue: QueueState) -> None:
    _forget_queue(state, queue.name)
    for shard in range(state.shards):
        if shard != state.shard:
            peer_calls.notify(state, shard, messages.Obliterated(queue.name))


@answers(messages.Obliterated)
def obliterated(state: State, source: int, message: messages.Obliterated) -> None:
    _forget_queue(state, message.queue)


def _forget_queue(state: State, queue: str) -> None:
    """Forget a queue: no new job may depend on its removed jobs, but jobs that already wait for one are still
    notified."""
    mark = f"{queue}:"
    for job_id in [job_id for job_id, outcome in state.gone.items() if outcome.child.startswith(mark)]:
        del state.gone[job_id]
    for outcome in state.tombstones.values():
        if outcome.child.startswith(mark):
            outcome.obliterated = True


@recovers(KIND, at_id)
def recover(state: State, key: str, value: str) -> None:
    gone = _decode(value)
    if gone.at < state.now - KEPT_MS:
        state.out.keep(KIND, key, None)
        state.freed_ids.append(key)
        return
    word = messages.DEAD_REMOVED if gone.child else messages.DONE
    state.tombstones[key] = messages.Outcome(key, word, gone.child, gone.parent, gone.policy, gone.error)

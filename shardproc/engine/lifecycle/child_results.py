"""Results of children that have been removed, on completion or later by retention: their parent may still ask
for them.

They are records of the shard on which the child completed, read from disk on demand.  They are kept for as
long as the outcomes of removed jobs.
"""

from __future__ import annotations

from msgspec import Raw, Struct, json

from bunqueue.model.job import COMPLETED, Job
from bunqueue.server.links.peers import Value

from ..memory.child_results import ChildResult
from ..registry import at_id, recovers, when_obliterated
from ..state import QueueState, State
from .outcomes import KEPT_MS, MAX_GONE

KIND = "child_result"
LATER = "pending"  # instead of a parent: UpdateParent will name it


class ChildRecord(Struct):
    """A record: the result of a child of that queue (MessagePack; empty: none), and when it completed (epoch
    ms)."""

    at: int
    queue: str
    result: bytes


_decode, _decode_kept = json.Decoder(ChildRecord).decode, json.Decoder(ChildResult).decode


def keep(state: State, job: Job, result: bytes | None) -> None:
    """Keep the result of a completed job that is removed, if it is a child."""
    if job.extra is None or not (job.extra.parent_id or job.extra.flow_id):
        return
    state.child_results[job.id] = ChildResult(state.now, job.queue)
    state.out.keep(KIND, job.id, ChildRecord(state.now, job.queue, result or b""))
    oldest = next(iter(state.child_results))
    if len(state.child_results) > MAX_GONE or state.child_results[oldest].at < state.now - KEPT_MS:
        _drop(state, oldest)


def keep_of(state: State, seqs: list[int]) -> None:
    """The same for completed jobs with these numbers, except those whose parent has completed."""
    children = state.archive.children_among(seqs)
    over: dict[str, bool] = {}
    needed: list[int] = []
    for seq, parent in children.items():
        if parent not in over:
            over[parent] = _is_over(state, parent)
        if not over[parent]:
            needed.append(seq)
    for job in state.archive.load(needed).values():
        keep(state, job, job.result)


def _is_over(state: State, parent: str) -> bool:
    """Whether a parent will ask no more, as far as this shard knows.  One that has failed may be retried."""
    if parent in state.jobs or parent in ("", LATER):
        return False
    known = state.archive.known(parent)
    return known.state == COMPLETED if known is not None else state.shards == 1


def is_known(state: State, job_id: str) -> bool:
    """Whether this is a removed child with a kept record, even one without a result."""
    return job_id in state.child_results


def find(state: State, job_id: str) -> Value | None:
    """The result of a removed child."""
    stored = state.archive.record(KIND, job_id) if job_id in state.child_results else None
    if stored is None:
        return None
    found = _decode(stored)
    return Value(found.queue, Raw(found.result)) if found.result else None


def forget(state: State, job_id: str) -> None:
    """Forget a result because the id is used again."""
    if state.child_results.pop(job_id, None) is not None:
        state.out.keep(KIND, job_id, None)


def _drop(state: State, job_id: str) -> None:
    """Drop a result that nobody is expected to ask for."""
    forget(state, job_id)
    state.freed_ids.append(job_id)  # the directory entry that led others here was kept until now


@recovers(KIND, at_id)
def recover(state: State, key: str, value: str) -> None:
    state.child_results[key] = _decode_kept(value)


@when_obliterated
def obliterate(state: State, queue: QueueState) -> None:
    for job_id in [job_id for job_id, kept in state.child_results.items() if kept.queue == queue.name]:
        _drop(state, job_id)

"""After a start, makes the shards agree on what they know of each other.

A power cut may leave the shards at different moments, and so may a backup that copies one file after another.
If a shard has lost jobs of a flow, the others remove their jobs of it that have not begun.  Parents are
notified of their children again.  A job that waits for a missing job fails, with that reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from bunqueue.model.job import BLOCKED, DELAYED, WAITING, FlowMark, Job
from bunqueue.model.names import outside
from bunqueue.server.links import peers as messages

from .. import peer_calls
from ..lifecycle import transitions
from ..memory.pointers import pointer
from ..memory.recovery import FLOWS, GAP, KIND
from ..peer_calls import Steps
from ..registry import answers
from ..state import State
from . import dependencies, families, possession

CHUNK = 200  # flows, children or jobs per question: about 5 ms

T = TypeVar("T")


def note(state: State, job: Job) -> None:
    """Note a recovered live job that may concern other shards."""
    extra = job.extra
    assert extra is not None
    if extra.flow is not None:
        state.recovery.flows.setdefault(extra.flow.flow, []).append(job.id)
    elif extra.parent_id is not None and families.names_parent(job.data, extra.parent_id):
        state.recovery.children.append(job.id)


def begin(state: State) -> None:
    """Start the reconciliation, if necessary.  All jobs have been recovered."""
    if state.recovery.uncertain:
        peer_calls.start(state, _reconcile(state))
    else:
        state.recovery.parts.clear()


def _reconcile(state: State) -> Steps:
    recovery = state.recovery
    for flows in _chunks([*recovery.flows]):
        yield from _check_flows(state, flows)
    for children in _chunks(recovery.children):
        yield from _join(state, children)
    for ids in _chunks([*state.awaited]):
        yield from _check_awaited(state, ids)
    recovery.uncertain, recovery.flows, recovery.children = False, {}, []
    state.out.keep(KIND, FLOWS, None)
    for shard in range(state.shards):
        peer_is_back(state, shard)


def peer_is_back(state: State, shard: int) -> None:
    """Notify a shard that its record of possible losses is no longer needed here."""
    if not state.recovery.uncertain and shard != state.shard:
        peer_calls.notify(state, shard, messages.Reconciled())


@answers(messages.Reconciled)
def reconciled(state: State, source: int, message: messages.Reconciled) -> None:
    recovery = state.recovery
    recovery.reconciled.add(source)
    if len(recovery.reconciled) == state.shards - 1 and recovery.stored_until is not None:
        recovery.stored_until = None
        state.out.keep(KIND, GAP, None)


def _chunks(items: Sequence[T]) -> Iterator[Sequence[T]]:
    return (items[start : start + CHUNK] for start in range(0, len(items), CHUNK))


def _check_flows(state: State, flows: Iterable[str]) -> Steps:
    marks = [mark for flow in flows for mark in [_mark(state, flow)] if mark is not None]
    wanted = [(mark.flow, place, mark.at) for mark in marks for place in mark.others]
    found = yield from possession.ask(state, wanted)
    lost = {flow for (flow, _, _), word in zip(wanted, found, strict=True) if word == possession.LOST}
    state.out.durable |= bool(lost)  # after another power cut the loss could no longer be detected
    for flow in lost:
        _remove(state, [job for job in _jobs_of(state, flow) if job.state in (WAITING, DELAYED, BLOCKED)])


def _remove(state: State, jobs: Sequence[Job]) -> None:
    """Remove the jobs of an incomplete flow that are here and have not begun."""
    removed = state.recovery.half_flows
    removed.flows += bool(jobs)
    removed.jobs += len(jobs)
    for job in jobs:
        if len(removed.examples) < removed.EXAMPLES:
            removed.examples.append(job.id)
        dependencies.extra_of(job).parent_id = None  # the parent gets no message: it is removed as well
        transitions.remove(state, state.queues[job.queue], job)


def _mark(state: State, flow: str) -> FlowMark | None:
    return next((job.extra.flow for job in _jobs_of(state, flow) if job.extra is not None), None)


def _jobs_of(state: State, flow: str) -> list[Job]:
    """The jobs of a flow that are still live."""
    found = (state.jobs.get(job_id) for job_id in state.recovery.flows.get(flow, ()))
    return [job for job in found if job and job.extra and job.extra.flow and job.extra.flow.flow == flow]


def _join(state: State, children: Iterable[str]) -> Steps:
    """Let parents wait for their children.  If both are on this shard, they were stored together."""
    jobs = [state.jobs[child] for child in children if child in state.jobs]
    pairs = [(job.extra.parent_id, job.id) for job in jobs if job.extra is not None]
    pairs = [(parent, child) for parent, child in pairs if parent and not _is_near(state, parent)]
    yield from families.join_again(
        state, [parent for parent, _ in pairs], [child for _, child in pairs], durable=False
    )


def _is_near(state: State, parent: str) -> bool:
    return parent in state.jobs or (pointer(state, parent) == state.shard and parent not in state.directory)


def _check_awaited(state: State, ids: Iterable[str]) -> Steps:
    ids = [job_id for job_id in ids if job_id in state.awaited and state.awaited[job_id].jobs]
    outcomes = yield from dependencies.look_up(state, ids)
    for outcome in outcomes.values():
        if outcome.word == messages.UNKNOWN:
            _give_up(state, outcome.id)
        else:
            dependencies.on_outcome(state, outcome)
    dependencies.release_lookup(state, ids)


def _give_up(state: State, missing: str) -> None:
    """Fail the jobs that wait for a missing one."""
    awaited = state.awaited.get(missing)
    for job in list(awaited.jobs) if awaited is not None else ():
        if job.state == BLOCKED:
            why = "a power cut took it, or the backup does not have it"
            name = outside(job.queue, missing)
            error = f"It waits for job {name}, which is not on the server: {why}. Retry runs it without"
            transitions.fail_blocked(state, job, error)

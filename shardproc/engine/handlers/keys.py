"""Encryption keys: which ones are in use, and payloads that their worker has encoded again."""

from __future__ import annotations

from msgspec import Raw
from msgspec.msgpack import Encoder
from msgspec.structs import replace

from bunqueue.model.job import NIL, UNDEFINED, Job
from bunqueue.protocol.commands.keys import (
    KeysReply,
    KeyUse,
    ListKeys,
    Reencode,
    ReencodedStep,
    ReencodeReply,
)
from bunqueue.protocol.job_view import decode_on_dead

from ..outbox import ROW
from ..peers import families
from ..ready import space
from ..registry import handles
from ..run_writes import Op
from ..slices import Steps, sliced
from ..state import Client, State
from ..stored_keys import StoredKey
from .crons.commands import keep
from .push_checks import check_data
from .workflows import run_access

SLICE = 200  # rows of jobs read per slice: a few ms, unless their payloads are large

_encode = Encoder().encode


@handles(ListKeys)
@sliced
def list_keys(state: State, client: Client, command: ListKeys) -> Steps:
    uses: dict[tuple[object, ...], KeyUse] = {}
    names = {queue.id: queue.name for queue in state.queues.values()}
    _count(uses, names, state.archive.keys.of_others())
    after: int | None = 0
    while after is not None:
        yield
        found, after = state.archive.keys.of_jobs(after, SLICE)
        _count(uses, names, found)
    return KeysReply(keys=list(uses.values()))


def _count(uses: dict[tuple[object, ...], KeyUse], names: dict[int, str], found: list[StoredKey]) -> None:
    for each in found:
        place = each.key, each.what, each.queue
        if place in uses:
            uses[place].count += 1
        else:
            queue = names.get(each.queue) if isinstance(each.queue, int) else each.queue
            uses[place] = KeyUse(each.key, each.what, 1, each.owner, queue)


@handles(Reencode)
def reencode(state: State, client: Client, command: Reencode) -> ReencodeReply:
    job = run_access.locked_job(state, command.id, command.token)
    data, on_dead = bytes(command.data), bytes(command.on_dead)
    stored = None if job.extra is None or job.extra.on_dead is None else decode_on_dead(job.extra.on_dead)
    if stored is not None and on_dead == UNDEFINED and bytes(stored.data) != NIL:
        return ReencodeReply(on_dead=stored.data)  # the data of both have one key and change it together
    results = _results(state, job, command.steps or [])
    if data != UNDEFINED:
        check_data(data)
        data = families.with_flow_fields(job.data, data)
        check_data(data)
    if on_dead != UNDEFINED:
        check_data(on_dead, "onDead: ")
    # Nothing below is refused.
    if data != UNDEFINED:
        _hand_on(state, job, data)
        space.change_data(state.queues[job.queue], job, data)
        state.out.touch(job, ROW)
    if on_dead != UNDEFINED and stored is not None and job.extra is not None:
        job.extra.on_dead = _encode(replace(stored, data=Raw(on_dead)))
        state.out.touch(job, ROW)
    for number, result in results:
        state.out.runs.append((Op.SET_RESULT, (result, job.seq, number)))
    return ReencodeReply()


def _hand_on(state: State, job: Job, data: bytes) -> None:
    """Copy the new data to the schedule that added the job, for its next jobs."""
    name = None if job.extra is None or job.extra.due is None else job.extra.due.schedule
    schedule = None if name is None else state.timetable.by_name.get(name)
    if schedule is not None and schedule.queue == job.queue and schedule.data == job.data:
        schedule.data = data
        keep(state, schedule)


def _results(state: State, job: Job, steps: list[ReencodedStep]) -> list[tuple[int, bytes | None]]:
    """New results of steps by step number, without steps that the job does not have."""
    if not steps:
        return []
    heads = run_access.open_run(state, job).heads
    return [
        (head.number, run_access.payload(each.result, "result"))
        for each in steps
        if (head := heads.get(each.name)) is not None
    ]

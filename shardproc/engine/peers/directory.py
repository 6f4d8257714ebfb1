"""Ids chosen by clients: unique on the whole server, and found wherever they are.

An id points to a shard (`slot_of_id`), but a job is on the shard of its queue.  Where the two differ, the
shard to which the id points, its *pointer*, keeps an entry with the shard of the job.  An entry is a hint:
only the job's home knows whether it is live, and is asked before the id is given to another job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from msgspec import Raw

from bunqueue.model.ids import UUID_LENGTH
from bunqueue.model.scope import read_scope
from bunqueue.protocol.codec import decode_command, encode_reply
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import COMMANDS, Command, CommandError, Route, Spec
from bunqueue.protocol.commands.base import refused
from bunqueue.protocol.commands.query import GetJobByCustomId, JobReply
from bunqueue.protocol.framing import HEADER, frame
from bunqueue.server.links import peers as messages
from bunqueue.server.links.gather import Gather, split

from .. import peer_calls
from ..dispatch import answer, carry_out_within, is_slow, send
from ..handlers.views.query import Shown
from ..lifecycle import child_results, dropped_letters, outcomes, removal
from ..lookup import not_found
from ..memory.pointers import enter, pointer
from ..peer_calls import Steps
from ..registry import Deliver, answers, answers_late, handles
from ..scoped import allows, is_limited, queue_of_job
from ..state import RELAYED, Client, State
from . import possession, roll_call

BUSY, UNDECIDED = -1, -2  # instead of the shard that has an id
TRIES = 100  # attempts to claim ids; each takes one question to another shard


def locate(state: State, ids: Iterable[str]) -> Steps:
    """The only shard that can have each of these jobs, as ``{id: shard}``."""
    shard_of: dict[str, int] = {}
    unknown: dict[str, int] = {}
    if state.recovery.unannounced:
        ids = list(ids)
        yield from roll_call.find(state, [job_id for job_id in ids if pointer(state, job_id) == state.shard])
    for job_id in ids:
        at = pointer(state, job_id)
        if job_id in state.jobs or job_id in state.prepared:
            shard_of[job_id] = state.shard
        elif at == state.shard:
            shard_of[job_id] = state.directory.get(job_id, at)
        else:
            unknown[job_id] = at
    groups = peer_calls.grouped(unknown)
    if groups:
        found = yield [(shard, messages.Where(some)) for shard, some in groups.items()]
        for some, homes in zip(groups.values(), found, strict=True):
            shard_of.update(zip(some, homes.shards, strict=True))
    return shard_of


@answers(messages.Where)
def where(state: State, source: int, message: messages.Where) -> Steps:
    yield from roll_call.find(state, message.ids)
    return messages.Homes([state.directory.get(job_id, state.shard) for job_id in message.ids])


def flows_decided(state: State, ids: Iterable[str], *, wait: bool = True) -> Steps:
    """Resolve prepared jobs with these ids: they appear, or are dropped.  With ``wait`` False, only if that
    is decided."""
    ids = list(ids)
    decided = True
    while decided and (flows := {state.prepared[job_id] for job_id in ids if job_id in state.prepared}):
        decided = yield from recall(state, flows, wait=wait)


def recall(state: State, flows: Iterable[str], *, wait: bool = True) -> Steps:
    """Ask what was decided about prepared flows, and apply it; whether all are decided."""
    flows = list(flows)
    found = yield [(state.parts[flow].coordinator, messages.Recall(flow, wait)) for flow in flows]
    for flow, recalled in zip(flows, found, strict=True):
        commit = recalled.commit
        if commit is False and flow in state.recovery.parts:
            commit = yield from _has_appeared(state, flow)
        if commit is not None:
            peer_calls.notify(state, state.shard, messages.Decide(flow, commit))
    return all(answer.commit is not None for answer in found)


def _has_appeared(state: State, flow: str) -> Steps:
    """Whether a flow was committed by a shard that has forgotten it.  If so, the flow has appeared elsewhere,
    unless a power cut erased another part."""
    part = state.parts.get(flow)
    places = () if part is None else part.others
    found = yield from possession.ask(state, [(flow, place, None) for place in places])
    return possession.APPEARED in found and possession.LOST not in found


# Claiming an id


def claim(state: State, ids: list[str], *, wait: bool = True, durable: bool = False) -> Steps:
    """Claim ids for jobs of this shard; returns those that are taken, as ``{id: shard}``.

    A caller that gets an id must push its job at once, without yielding.  With ``wait`` False, ids of a flow
    that is being pushed are refused: two flows must not wait for each other.
    """
    for number in range(TRIES):
        yield from flows_decided(state, ids, wait=wait)
        taken = yield from _try_claim(state, ids, wait, durable, in_turn=number > 0)
        if taken is not None:
            return taken
    raise CommandError(
        f"Ids like {ids[0]} are being taken by other clients all the time, try again",
        Code.ID_CONTENDED,
        field="jobId",
        value=ids[0],
    )


def _try_claim(state: State, ids: list[str], wait: bool, durable: bool, in_turn: bool) -> Steps:
    """`claim`, or None if another push is about to take one of the ids.

    Two pushes that each hold an id that the other one wants would block each other.  So after the first
    attempt each asks for one id after another, in the same order, and holds only the ids before it.
    """
    taken: dict[str, int] = {}
    wanted: dict[str, int] = {}
    for job_id in ids:
        if job_id in state.jobs:
            taken[job_id] = state.shard
        else:
            wanted[job_id] = pointer(state, job_id)
    at_once = list(peer_calls.grouped(wanted).items())
    rounds = [[(wanted[job_id], [job_id])] for job_id in sorted(wanted)] if in_turn else [at_once]
    held: list[str] = []
    try:
        for asked in rounds:
            some = [job_id for _, group in asked for job_id in group]
            held += some
            state.granted.update(some)
            found = yield [(shard, messages.Claim(group, wait, durable)) for shard, group in asked]
            homes = [home for answer in found for home in answer.homes]
            if not _all_decided(state, some, homes, wait):
                return None
            taken.update(
                (job_id, home) for job_id, home in zip(some, homes, strict=True) if home != state.shard
            )
    finally:
        state.granted -= Counter(held)
    if any(job_id in state.prepared for job_id in wanted):  # prepared in the meantime
        return None
    for job_id in wanted.keys() - taken.keys():
        if job_id in state.jobs:  # added by another push of this shard
            taken[job_id] = state.shard
        else:
            _forget_finished(state, job_id)
    return taken


def _all_decided(state: State, ids: list[str], homes: list[int], wait: bool) -> bool:
    """Whether the owner of each id is known; CommandError if it will not be known soon."""
    for job_id, home in zip(ids, homes, strict=True):
        if not wait and (home == UNDECIDED or job_id in state.prepared):
            raise CommandError(
                f"Job id {job_id} belongs to a flow that is being pushed, try again",
                Code.ID_CONTENDED,
                field="jobId",
                value=job_id,
            )
    return min(homes, default=0) >= 0


@answers(messages.Claim)
def answer_claim(state: State, source: int, message: messages.Claim) -> Steps:
    ids, here = message.ids, state.shard
    yield from flows_decided(state, ids, wait=message.wait)
    yield from roll_call.find(state, ids)
    homes = {job_id: state.directory.get(job_id, here) for job_id in ids}
    doubtful = {job_id: home for job_id, home in homes.items() if home not in (here, source)}
    groups = peer_calls.grouped(doubtful)
    words: dict[str, int] = {}
    given_away: set[str] = set()
    if groups:
        state.given_away.append(given_away)
        found = yield [
            (shard, messages.Verify(some, message.wait, message.durable)) for shard, some in groups.items()
        ]
        for some, verified in zip(groups.values(), found, strict=True):
            words.update(zip(some, verified.words, strict=True))
        state.given_away = [each for each in state.given_away if each is not given_away]
    claimed = []
    for job_id, home in homes.items():
        if job_id in given_away:  # given to another job in the meantime
            claimed.append(BUSY)
            continue
        word = (
            _verify(state, job_id, own=source == here) if home == here else words.get(job_id, messages.FREE)
        )
        claimed.append(_home(word, home, source))
        if word == messages.FREE:
            enter(state, job_id, source)
            dropped_letters.forget(state, job_id)
    state.out.durable |= message.durable
    return messages.Claimed(claimed)


def _home(word: int, home: int, source: int) -> int:
    """The new owner of an id."""
    if word == messages.TAKEN:
        return home
    return {messages.FREE: source, messages.BUSY: BUSY, messages.UNDECIDED: UNDECIDED}[word]


@answers(messages.Verify)
def verified(state: State, source: int, message: messages.Verify) -> Steps:
    yield from flows_decided(state, message.ids, wait=message.wait)
    state.out.durable |= message.durable  # the reply that a job exists is a promise as well
    return messages.Verified([_verify(state, job_id) for job_id in message.ids])


def _verify(state: State, job_id: str, *, own: bool = False) -> int:
    """Whether an id is free here; a finished job with that id is forgotten."""
    if job_id in state.jobs:
        return messages.TAKEN
    if job_id in state.prepared:
        return messages.UNDECIDED
    if job_id in state.moving:
        return messages.BUSY
    if not own and state.granted[job_id] > 0:
        return messages.BUSY
    _forget_finished(state, job_id)
    return messages.FREE


def _forget_finished(state: State, job_id: str) -> None:
    outcomes.forget(state, job_id)
    child_results.forget(state, job_id)
    dropped_letters.forget(state, job_id)
    state.ended.pop(job_id, None)
    old = state.archive.known(job_id)
    if old is not None:
        removal.forget(state, old)


def announce_dropped(state: State) -> None:
    """Report removed jobs with ids of their own, so their entries are deleted.  Ids that are being claimed
    again are left out: their entries may already belong to the new job."""
    ids, state.freed_ids = state.freed_ids, []
    gone = (job_id for job_id in ids if job_id not in state.jobs and not state.granted[job_id])
    for shard, some in peer_calls.grouped({job_id: pointer(state, job_id) for job_id in gone}).items():
        if shard != state.shard:
            peer_calls.notify(
                state, shard, messages.Forget(some, [state.gone.get(job_id) for job_id in some])
            )


@answers(messages.Forget)
def forget(state: State, source: int, message: messages.Forget) -> None:
    for job_id, outcome in zip(message.ids, message.outcomes, strict=True):
        if state.directory.get(job_id) == source:
            enter(state, job_id, state.shard)
            if outcome is not None:  # a client that asks about the job will ask here
                outcomes.remember_latest(state, outcome)


@handles(GetJobByCustomId)
def get_job_by_custom_id(state: State, client: Client, command: GetJobByCustomId) -> JobReply:
    """Find unfinished jobs only, as in the reference server."""
    job = state.jobs.get(command.custom_id)
    if job is None:
        raise not_found(state, command.custom_id, "customId")
    answer = Shown(state, client)
    answer.add(job)
    return JobReply(job=answer.one())


# Commands that were sent here because their id points here


def relay(state: State, client: Client, command: Command) -> bool:
    """Pass a command on to the home of the job, if that is another shard.  Delay it if its job belongs to a
    flow that is about to appear, or is moving to another queue.  Whether one of these applies."""
    spec = COMMANDS[str(command.__struct_config__.tag)]
    if spec.route is Route.ID:
        job_id = getattr(command, spec.key)
        home = state.directory.get(job_id)
        if home is None and job_id not in state.jobs:
            home = state.moved.get(job_id)
        if home is None and _must_not_be_faster(state, client, job_id):
            home = (state.shard + 1) % state.shards
        if home is not None:
            _start(state, client, command, _relay_one(state, client, command, home))
        elif job_id in state.moving:
            _start(state, client, command, _when_moved(state, client, command, job_id))
        elif job_id in state.prepared:
            peer_calls.start(state, _when_decided(state, client, command, [job_id]))
        else:
            return False
        return True
    if spec.route is Route.IDS:
        ids: list[str] = command.ids  # type: ignore[attr-defined]  # what Route.IDS promises
        if any(job_id in state.directory for job_id in ids):
            _start(state, client, command, _relay_many(state, client, command))
            return True
    return False


def _must_not_be_faster(state: State, client: Client, job_id: str) -> bool:
    """Whether another shard must say that a job does not exist for this client, wherever it is or is not: an
    answer from here would come sooner, and would tell."""
    if not is_limited(client) or len(job_id) == UUID_LENGTH or state.shards == 1:
        return False
    queue = queue_of_job(state, job_id)
    return queue is None or not allows(client, queue)


def seek(state: State, client: Client, command: Command) -> bool:
    """After a start, find out where a job is before a command about it is carried out; whether that is
    necessary."""
    spec = COMMANDS[str(command.__struct_config__.tag)]
    if spec.route not in (Route.ID, Route.IDS):
        return False
    found = getattr(command, spec.key)
    ids = roll_call.unknown(state, [found] if isinstance(found, str) else found)
    if ids:
        _start(state, client, command, _when_found(state, client, command, ids))
    return bool(ids)


def _when_found(state: State, client: Client, command: Command, ids: list[str]) -> Steps:
    yield from roll_call.find(state, ids)
    if not client.closed and not relay(state, client, command):
        carry_out_within(state, client, command)


def _start(state: State, client: Client, command: Command, steps: Steps) -> None:
    """Have other shards carry out a command, unless too many commands wait for them already."""
    if peer_calls.has_room(state):
        peer_calls.start(state, steps, client=client)
        return
    answer(state, client, command, refused(peer_calls.too_much()))


def _relay_one(state: State, client: Client, command: Command, home: int) -> Steps:
    tag = str(command.__struct_config__.tag)
    (found,) = yield [(home, _forward(client, COMMANDS[tag], encode_reply(command)))]
    if found is None:
        state.out.lost.append(client.conn)
        return
    send(state, client, found.reply, slow=is_slow(command))


def _forward(client: Client, spec: Spec, payload: bytes) -> messages.Forward:
    """Without an answer (None), the other shard has died during a command that must not be repeated."""
    once = spec.writes and not spec.repeatable
    scope = b"" if client.sent_scope is None else client.sent_scope.wire
    return messages.Forward(client.version, Raw(payload), once, spec.writes, scope)


def _relay_many(state: State, client: Client, command: Command) -> Steps:
    spec = COMMANDS[str(command.__struct_config__.tag)]
    ids: list[str] = command.ids  # type: ignore[attr-defined]
    try:
        parts = split(spec, command, lambda job_id: state.directory.get(job_id, state.shard))
    except CommandError as error:
        answer(state, client, command, refused(error))
        return
    if client.scope is not None:
        ids = [client.scope.outside(job_id) for job_id in ids]  # as they are in the answers
    gather = Gather(spec.merge, parts, ids, reply=spec.reply)
    found = yield [(shard, _forward(client, spec, part.frame[HEADER:])) for shard, part in parts.items()]
    if None in found:
        state.out.lost.append(client.conn)
        return
    for shard, part in zip(parts, found, strict=True):
        gather.add(shard, frame(bytes(part.reply)))
    send(state, client, Raw(gather.result(command.req_id)[HEADER:]), slow=is_slow(command))


@answers_late(messages.Forward)
def forwarded(state: State, source: int, message: messages.Forward, deliver: Deliver) -> None:
    """Carry out a command for a client that this shard does not know; the answer may come late."""
    state.serial += 1
    client = Client(RELAYED + state.serial, message.version)
    client.act_for(read_scope(message.scope) if message.scope else None)
    state.relays[client.conn] = deliver
    command = decode_command(bytes(message.command))
    spec = COMMANDS[str(command.__struct_config__.tag)]
    if (problem := state.refusal(spec)) is not None:
        answer(state, client, command, refused(problem))
        return
    if spec.writes or spec.parks:
        state.check_lock()
    key = getattr(command, spec.key)
    peer_calls.start(state, _when_decided(state, client, command, [key] if isinstance(key, str) else key))


def _when_decided(state: State, client: Client, command: Command, ids: list[str]) -> Steps:
    yield from flows_decided(state, ids)
    left = len(ids) == 1 and (ids[0] in state.moving or ids[0] in state.moved)
    if not client.closed and not (left and relay(state, client, command)):
        carry_out_within(state, client, command)


def _when_moved(state: State, client: Client, command: Command, job_id: str) -> Steps:
    yield [(state.shard, messages.Settled(job_id))]
    if not client.closed and not relay(state, client, command):
        carry_out_within(state, client, command)

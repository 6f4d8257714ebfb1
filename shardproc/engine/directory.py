"""Ids that clients chose: one over the whole server, and found wherever they are.

An id points to a shard (`slot_of_id`), but a job is on the shard of its queue.  Where these differ the
shard to which the id points, its *pointer*, keeps an entry that says where the job is.  An entry is a
hint: whether the job lives only its home knows, which is asked before an id is given away again.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Raw, Struct, json

from bunqueue.model.ids import slot_of_id
from bunqueue.protocol import peers as wire
from bunqueue.protocol.codec import decode_command, encode_reply
from bunqueue.protocol.commands import COMMANDS, Command, CommandError, ErrorReply, Route, Spec, is_slow
from bunqueue.protocol.commands.query import GetJobByCustomId, JobReply
from bunqueue.protocol.framing import HEADER, frame
from bunqueue.protocol.gather import Gather, split

from . import lifecycle, peers
from .dispatch import carry_out
from .peers import Deliver, Steps, answers, deferred
from .queries import Shown
from .registry import Apart, handles, recovers
from .state import RELAYED, Client, State

KIND = "home"
TRIES = 100  # to claim ids; each lasts as long as it takes to ask another shard


class Home(Struct):
    """A record: the shard that has the job with this id."""

    shard: int


_decode_home = json.Decoder(Home).decode


@recovers(KIND, Apart.DERIVED)
def _recover(state: State, key: str, value: str) -> None:
    state.directory[key] = _decode_home(value).shard


def pointer(state: State, job_id: str) -> int:
    """The shard to which an id points: where the router sends commands that name it."""
    return slot_of_id(job_id) & (state.shards - 1)


def locate(state: State, ids: Iterable[str]) -> Steps:
    """The one shard that can have each of these jobs, as ``{id: shard}``."""
    places: dict[str, int] = {}
    unknown: dict[str, int] = {}
    for job_id in ids:
        at = pointer(state, job_id)
        if job_id in state.jobs or job_id in state.prepared:
            places[job_id] = state.shard
        elif at == state.shard:
            places[job_id] = state.directory.get(job_id, at)
        else:
            unknown[job_id] = at
    groups = peers.grouped(unknown)
    if groups:
        found = yield [(shard, wire.Where(some)) for shard, some in groups.items()]
        for some, homes in zip(groups.values(), found, strict=True):
            places.update(zip(some, homes.shards, strict=True))
    return places


@answers(wire.Where)
def _where(state: State, source: int, message: wire.Where) -> wire.Homes:
    return wire.Homes([state.directory.get(job_id, state.shard) for job_id in message.ids])


# Claiming an id


def claim(state: State, ids: list[str]) -> Steps:
    """Claim ids for jobs of this shard; the ones that somebody has, as ``{id: shard}``.

    Whoever gets an id must push its job in the same breath.
    """
    for _ in range(TRIES):
        taken = yield from _claim_once(state, ids)
        if taken is not None:
            return taken
    raise CommandError(f"Ids like {ids[0]} are being taken by other clients all the time, try again")


def _claim_once(state: State, ids: list[str]) -> Steps:
    """`claim`, or None when somebody else is about to take one of them."""
    taken: dict[str, int] = {}
    wanted: dict[str, int] = {}
    for job_id in ids:
        if job_id in state.jobs or job_id in state.prepared:
            taken[job_id] = state.shard
        else:
            wanted[job_id] = pointer(state, job_id)
    groups = peers.grouped(wanted)
    if groups:
        state.granted.update(wanted)
        try:
            found = yield [(shard, wire.Claim(some)) for shard, some in groups.items()]
        finally:
            state.granted.subtract(wanted)
        for some, claimed in zip(groups.values(), found, strict=True):
            for job_id, home in zip(some, claimed.homes, strict=True):
                if home < 0:
                    return None
                if home != state.shard or job_id in state.jobs or job_id in state.prepared:
                    taken[job_id] = home
                else:
                    _forget_finished(state, job_id)
    return taken


@answers(wire.Claim)
def _claim(state: State, source: int, message: wire.Claim) -> Steps:
    homes = {}
    doubtful: dict[str, int] = {}
    for job_id in message.ids:
        home = state.directory.get(job_id, state.shard)
        if home == state.shard:
            word = _verify(state, job_id, own=source == state.shard)
            homes[job_id] = -1 if word == wire.BUSY else source if word == wire.FREE else state.shard
        elif home == source:
            homes[job_id] = source
        else:
            doubtful[job_id] = home
    groups = peers.grouped(doubtful)
    if groups:
        found = yield [(shard, wire.Verify(some)) for shard, some in groups.items()]
        for (shard, some), verified in zip(groups.items(), found, strict=True):
            for job_id, word in zip(some, verified.words, strict=True):
                moved = state.directory.get(job_id, state.shard) != shard  # meanwhile
                busy = moved or word == wire.BUSY
                homes[job_id] = -1 if busy else shard if word == wire.TAKEN else source
    for job_id, home in homes.items():
        if home == source:
            _enter(state, job_id, source)
    return wire.Claimed([homes[job_id] for job_id in message.ids])


def _enter(state: State, job_id: str, home: int) -> None:
    if home != state.shard:
        state.directory[job_id] = home
        state.out.keep(KIND, job_id, Home(home))
    elif state.directory.pop(job_id, None) is not None:
        state.out.keep(KIND, job_id, None)


@answers(wire.Verify)
def _verified(state: State, source: int, message: wire.Verify) -> wire.Verified:
    return wire.Verified([_verify(state, job_id) for job_id in message.ids])


def _verify(state: State, job_id: str, *, own: bool = False) -> int:
    """Whether an id is free here; a finished job that has it is forgotten."""
    if job_id in state.jobs or job_id in state.prepared:
        return wire.TAKEN
    if not own and state.granted[job_id] > 0:
        return wire.BUSY
    _forget_finished(state, job_id)
    return wire.FREE


def _forget_finished(state: State, job_id: str) -> None:
    old = state.archive.find(job_id)
    if old is not None:
        lifecycle.forget(state, old)


def tell_dropped(state: State) -> None:
    """Jobs with ids of their own are gone for good: their entries may go, too."""
    ids, state.dropped = state.dropped, []
    for shard, some in peers.grouped({job_id: pointer(state, job_id) for job_id in ids}).items():
        if shard != state.shard:
            peers.tell(state, shard, wire.Forget([job_id for job_id in some if job_id not in state.jobs]))


@answers(wire.Forget)
def _forget(state: State, source: int, message: wire.Forget) -> None:
    for job_id in message.ids:
        if state.directory.get(job_id) == source:
            _enter(state, job_id, state.shard)


@handles(GetJobByCustomId)
def get_job_by_custom_id(state: State, client: Client, command: GetJobByCustomId) -> JobReply:
    """Of unfinished jobs only (SEMANTICS.md, "GetJobByCustomId of a finished job")."""
    job = state.jobs.get(command.custom_id)
    if job is None:
        raise CommandError("Job not found")
    answer = Shown(state, client)
    answer.add([job])
    return JobReply(job=answer.one())


# Commands that came here because their id points here


def relay(state: State, client: Client, command: Command) -> bool:
    """Have the home of the job carry out a command, if that is another shard; whether it is."""
    spec = COMMANDS[str(command.__struct_config__.tag)]
    if spec.route is Route.ID:
        home = state.directory.get(getattr(command, spec.key))
        if home is None:
            return False
        peers.start(state, _relay_one(state, client, command, home))
        return True
    if spec.route is Route.IDS:
        ids: list[str] = command.ids  # type: ignore[attr-defined]  # what Route.IDS promises
        if any(job_id in state.directory for job_id in ids):
            peers.start(state, _relay_many(state, client, command))
            return True
    return False


def _relay_one(state: State, client: Client, command: Command, home: int) -> Steps:
    tag = str(command.__struct_config__.tag)
    (answer,) = yield [(home, _forward(client, COMMANDS[tag], encode_reply(command)))]
    if answer is None:
        state.out.lost.append(client.conn)
        return
    client.slow += is_slow(tag, getattr(command, "timeout", None))
    state.out.replies.append((client.conn, answer.reply))


def _forward(client: Client, spec: Spec, payload: bytes) -> wire.Forward:
    """None answers it when the other shard has died over a command that must not be repeated."""
    return wire.Forward(client.version, Raw(payload), spec.writes and not spec.repeatable)


def _relay_many(state: State, client: Client, command: Command) -> Steps:
    spec = COMMANDS[str(command.__struct_config__.tag)]
    ids: list[str] = command.ids  # type: ignore[attr-defined]
    try:
        parts = split(spec, command, lambda job_id: state.directory.get(job_id, state.shard))
    except CommandError as error:
        state.out.replies.append((client.conn, ErrorReply(error=str(error), req_id=command.req_id)))
        return
    gather = Gather(spec.merge, parts, ids)
    found = yield [(shard, _forward(client, spec, part.frame[HEADER:])) for shard, part in parts.items()]
    if None in found:
        state.out.lost.append(client.conn)
        return
    for shard, answer in zip(parts, found, strict=True):
        gather.add(shard, frame(bytes(answer.reply)))
    state.out.replies.append((client.conn, Raw(gather.result(command.req_id)[HEADER:])))


@deferred(wire.Forward)
def _forwarded(state: State, source: int, message: wire.Forward, deliver: Deliver) -> None:
    """Carry a command out for a client of which this shard knows nothing; it may be answered late."""
    state.serial += 1
    client = Client(RELAYED + state.serial, message.version)
    state.relays[client.conn] = deliver
    carry_out(state, client, decode_command(bytes(message.command)))

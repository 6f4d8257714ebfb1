"""Commands of identities that are for some queues only, or that may not read what jobs hold.

A command that names a job of another queue is carried out as if it named a job that does not exist: its id is
replaced by one that nobody has, and the answer has the given id again.  So no handler needs to think of it,
and text, code and form of the answer are those for an unknown id.  What touches several queues asks for those
that are allowed: `queues_of`, `allows`.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple, get_type_hints

from msgspec import Raw, Struct
from msgspec.structs import fields

from bunqueue.model.ids import slot_of_id
from bunqueue.model.marks import Mark
from bunqueue.model.rights import ANYBODY, Verb
from bunqueue.model.scope import Scope
from bunqueue.protocol import marked, namespaces, scoping
from bunqueue.protocol.commands import COMMANDS, Command, CommandError, Reply
from bunqueue.protocol.commands.base import Reach
from bunqueue.protocol.hidden import content_of
from bunqueue.protocol.rewriting import kind_of

from .lookup import find
from .state import Client, QueueState, State

MAX_ALIASES = 20_000  # of one connection: twice as many as a command has ids

_TOKEN = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
_VERBS_OF_CONTENT: dict[type, Verb] = {}
"""The verbs of the commands with an answer that tells what jobs hold."""
for _spec in COMMANDS.values():
    if content_of(_spec.reply):
        for _kind in {_spec.reply, get_type_hints(_spec.reply).get("data", _spec.reply)}:  # see `kind_of`
            _VERBS_OF_CONTENT[_kind] = _VERBS_OF_CONTENT.get(_kind, ANYBODY) | _spec.verbs


class _Way(NamedTuple):
    """What has to be looked at in a kind of command, which is decided once."""

    names_jobs: bool
    by_queue: bool  # it is enough that its field ``queue`` is allowed
    by_job: bool  # it is enough that the queue of the job with the id in its field ``id`` is


_WAYS: dict[type[Struct], _Way] = {}


def _way_of(command: Command) -> _Way:
    kind = type(command)
    queues, jobs = marked.paths(kind, Mark.QUEUE), marked.paths(kind, Mark.JOB)
    spec = COMMANDS[str(command.__struct_config__.tag)]
    plain = spec.reach is Reach.NAMED and not marked.paths(kind, Mark.CONTENT) and not content_of(spec.reply)
    one = marked.Step(is_marked=True)
    by_queue, by_job = (queues, jobs) == ((("queue", one),), ()), (queues, jobs) == ((), (("id", one),))
    way = _WAYS[kind] = _Way(bool(jobs), plain and by_queue, plain and by_job)
    return way


def passes(state: State, scope: Scope, command: Command) -> bool:
    """Whether a command is as most are: for a queue, or a live job of a queue, that is known to be allowed,
    with an answer that tells nothing else.  Then nothing more has to be done for the scope."""
    way = _WAYS.get(type(command))
    if way is None or scope.prefix:
        return False
    if way.by_queue:
        return scope.decided.get(command.queue) is True  # type: ignore[attr-defined]  # it has one
    if not way.by_job:
        return False
    job = state.jobs.get(command.id)  # type: ignore[attr-defined]  # it has one
    return job is not None and scope.decided.get(job.queue) is True


def refusal(client: Client, command: Command) -> CommandError | None:
    """Why a client may not send a command; None if it may, as far as its fields tell."""
    assert client.scope is not None
    return scoping.refusal(client.scope, COMMANDS[str(command.__struct_config__.tag)], command)


def enter(client: Client, command: Command) -> None:
    """Put the names of a command into the namespace of its client.  CommandError if one is not valid."""
    if client.scope is not None and client.scope.prefix:
        namespaces.enter(client.scope.prefix, command)


def as_sent(client: Client, command: Command) -> Command:
    """A command as its client sent it, before its names were those of a namespace."""
    if client.scope is not None and client.scope.prefix:
        namespaces.leave(client.scope.prefix, command)
    return command


def allows(client: Client, queue: str) -> bool:
    """Whether a queue exists for a client."""
    return client.scope is None or client.scope.allows(queue)


def is_limited(client: Client) -> bool:
    """Whether there are queues that do not exist for a client."""
    return client.scope is not None and not client.scope.is_everywhere


def reads(client: Client) -> bool:
    """Whether a client may read what jobs hold."""
    return client.scope is None or client.scope.shows(ANYBODY)


def queues_of(state: State, client: Client) -> list[QueueState]:
    """The queues that exist for a client."""
    if not is_limited(client):
        return list(state.queues.values())
    return [queue for queue in state.queues.values() if allows(client, queue.name)]


def queue_of_job(state: State, job_id: str) -> str | None:
    """The queue of a job of this shard, also of one that is gone as far as something is known of it."""
    job = find(state, job_id)
    if job is not None:
        return job.queue
    ended = state.ended.get(job_id)
    if ended is not None:
        return ended.queue
    letter = state.dropped.look_up(state.archive, job_id)
    return None if letter is None else letter.queue


def hide_jobs(state: State, client: Client, command: Command) -> None:
    """Replace the ids of jobs that do not exist for a client."""
    if not (_WAYS.get(type(command)) or _way_of(command)).names_jobs:
        return
    made: dict[str, str] = {}  # the same id has the same one throughout a command

    def known(job_id: str) -> str:
        queue = queue_of_job(state, job_id)
        if queue is None or (allows(client, queue) and not _tells(state, client, job_id)):
            return job_id
        if job_id not in made:
            made[job_id] = alias(state, client, job_id)
        return made[job_id]

    marked.rename(Mark.JOB, command, known)


def _tells(state: State, client: Client, job_id: str) -> bool:
    """Whether there is nothing of a job but its error, which the client may not read."""
    return not reads(client) and find(state, job_id) is None


def alias(state: State, client: Client, job_id: str) -> str:
    """An id that nobody has, in place of this one."""
    if len(client.aliases) >= MAX_ALIASES:
        client.aliases.clear()
    made = state.ids.token(slot_of_id(job_id), state.now)
    client.aliases[made] = job_id
    find(state, made)  # as long as an unknown id takes
    return made


def shown(client: Client, reply: Reply | Raw) -> Reply | Raw:
    """An answer as the client gets it."""
    assert client.scope is not None
    if isinstance(reply, Raw):
        return reply  # another shard has done this
    if client.aliases:
        _restore(reply, client.aliases)
    verbs = _VERBS_OF_CONTENT.get(kind_of(reply))
    hides = verbs is not None and not client.scope.shows(verbs)
    return namespaces.shown(client.scope.prefix, reply, hides=hides)


def _restore(value: Any, aliases: dict[str, str]) -> Any:
    """Put the given ids back; payloads stay as they are."""
    if isinstance(value, str):
        return _TOKEN.sub(lambda found: aliases.get(found[0], found[0]), value)
    if isinstance(value, list):
        return [_restore(entry, aliases) for entry in value]
    if isinstance(value, dict):
        return {_restore(name, aliases): _restore(entry, aliases) for name, entry in value.items()}
    if isinstance(value, Struct):
        for field in fields(value):
            setattr(value, field.name, _restore(getattr(value, field.name), aliases))
    return value

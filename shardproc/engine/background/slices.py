"""Long work, slice by slice: what grows with the length of a queue runs between others' commands.

A handler of a *heavy* command is a generator that yields where others may go on, and returns the reply.
Between two slices anything may have happened to its jobs, its queue and its client.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import Any

from msgspec import Struct

from bunqueue.protocol.commands import COMMANDS, Command, CommandError, Reply, refused
from bunqueue.protocol.commands.base import RequestId

from ..dispatch import answer_late
from ..state import Client, LongWork, State

Steps = Generator[None, None, "Reply | Later"]


class Later(Struct, eq=False):
    """In place of a reply: it comes when something else has ended, from other shards, say.  ``register`` is
    given the function that takes it, and may call that at once."""

    register: Callable[[Callable[[Any], None]], None]


def sliced(
    steps_of: Callable[[State, Client, Any], Steps],
) -> Callable[[State, Client, Any], Reply | None]:
    """A generator as a handler: what fits into one slice is answered at once, as any command is."""

    def handler(state: State, client: Client, command: Command) -> Reply | None:
        steps = steps_of(state, client, command)
        try:
            next(steps)
        except StopIteration as done:
            return _reply(state, client, command.req_id, done.value)
        writes = COMMANDS[str(command.__struct_config__.tag)].writes
        state.works.setdefault(client, deque()).append(LongWork(command, steps, writes))
        return None

    return handler


def run(state: State) -> None:
    """One slice for the client whose turn it is."""
    client, works = next(iter(state.works.items()))
    work = works[0]  # left where it is until its slice is done: an error of the disk must not lose it
    reply: Reply | None = None
    if client.closed and not work.writes:
        work.steps.close()
        works.popleft()
    else:
        found = _next(state, work)
        if found is not None:
            works.popleft()
            reply = _reply(state, client, work.command.req_id, found)
        if reply is not None:
            answer_late(state, client, work.command.req_id, reply)
    del state.works[client]
    if works:
        state.works[client] = works  # at the end: its next turn comes after all others'


def _reply(state: State, client: Client, req_id: RequestId, found: Reply | Later) -> Reply | None:
    """The reply if it is there; else it is sent when it comes."""
    if not isinstance(found, Later):
        return found
    replies: list[Reply] = []
    waits = False

    def deliver(reply: Reply) -> None:
        if not waits:
            replies.append(reply)
        elif not client.closed:
            answer_late(state, client, req_id, reply)

    found.register(deliver)
    waits = True
    return replies[0] if replies else None


def whole(state: State, work: LongWork) -> Reply:
    """What work in slices comes to that nothing else has to end for, all of them at once."""
    while True:
        found = _next(state, work)
        if found is not None:
            assert not isinstance(found, Later)
            return found


def _next(state: State, work: LongWork) -> Reply | Later | None:
    try:
        next(work.steps)
    except StopIteration as done:
        found: Reply | Later = done.value
        return found
    except CommandError as error:
        return refused(error)
    except Exception as error:
        return state.outlive(work.command, error)
    return None

"""Long work, slice by slice: what grows with the length of a queue runs between others' commands.

A handler of a *heavy* command is a generator that yields where others may go on, and returns the reply.
Between two slices anything may have happened to its jobs, its queue and its client.

A slice takes a fraction of a millisecond: whoever waits for an answer waits for one of them.  How many are
done in a row is for the caller, who has a clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import Any

from msgspec import Struct

from bunqueue.protocol.commands import COMMANDS, Command, CommandError, Reply, refused
from bunqueue.protocol.commands.base import RequestId

from .dispatch import answer_late
from .state import Client, LongWork, State

Steps = Generator[None, None, "Reply | Later"]


MORE = object()  # slices to come


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
        state.works.setdefault(client.turn, deque()).append(LongWork(client, command, steps, writes))
        return None

    return handler


def later(state: State, client: Client, work: Callable[[], None], command: Command | None = None) -> None:
    """Do something in the next slice of a client, which is answered by itself."""

    def steps() -> Generator[None, None, None]:
        work()
        return
        yield

    state.works.setdefault(client.turn, deque()).append(LongWork(client, command, steps(), False))


def run(state: State) -> None:
    """One slice for the connection whose turn it is."""
    turn, works = next(iter(state.works.items()))
    work = works[0]  # left where it is until its slice is done: an error of the disk must not lose it
    client = work.client
    if client.closed and not work.writes:
        work.steps.close()
        works.popleft()
    else:
        found = _next(state, work)
        if found is not MORE:
            works.popleft()
        if work.command is not None and isinstance(found, Reply | Later):
            reply = _reply(state, client, work.command.req_id, found)
            if reply is not None:
                answer_late(state, client, work.command.req_id, reply)
    del state.works[turn]
    if works:
        state.works[turn] = works  # at the end: its next turn comes after all others'


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


def take(state: State, client: Client) -> list[LongWork]:
    """What is under way for a client, which is not carried on any more."""
    works = state.works.get(client.turn, deque())
    taken = [work for work in works if work.client is client]
    for work in taken:
        works.remove(work)
    if not works:
        state.works.pop(client.turn, None)
    return taken


def whole(state: State, work: LongWork) -> Reply:
    """What work in slices comes to that nothing else has to end for, all of them at once."""
    while True:
        found = _next(state, work)
        if found is not MORE:
            assert isinstance(found, Reply)
            return found


def _next(state: State, work: LongWork) -> object:
    """MORE, or what comes of it: a reply, one that comes later, or None where it is answered by itself."""
    try:
        next(work.steps)
    except StopIteration as done:
        return done.value
    except CommandError as error:
        return refused(error)
    except Exception as error:
        if work.command is None:
            raise
        return state.outlive(work.command, error)
    return MORE

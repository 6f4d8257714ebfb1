"""Long work, slice by slice: work that grows with the length of a queue runs between other clients' commands.

The handler of a *heavy* command is a generator that yields where others may run, and returns the reply.
Anything may happen to its jobs, its queue and its client between two slices.

A slice takes a fraction of a millisecond, and a client that waits for a reply waits for one of them.  The
caller has a clock, and decides how many slices run in a row.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from msgspec import Struct

from bunqueue.protocol.commands import COMMANDS, Command, CommandError, Reply, refused
from bunqueue.protocol.commands.base import RequestId

from .dispatch import answer_late
from .state import Client, LongWork, State

Steps = Generator[None, None, "Reply | Later"]
C = TypeVar("C", bound=Struct)


MORE = object()  # more slices to come


class Later(Struct, eq=False):
    """Returned instead of a reply that has to wait, for example for other shards.  ``register`` gets the
    function that takes the reply, and may call it at once."""

    register: Callable[[Callable[[Any], None]], None]


def sliced(
    steps_of: Callable[[State, Client, C], Steps],
) -> Callable[[State, Client, C], Reply | None]:
    """Turn a generator into a handler: work that fits into one slice is answered at once, like any
    command."""

    def handler(state: State, client: Client, command: Any) -> Reply | None:
        steps = steps_of(state, client, command)
        try:
            next(steps)
        except StopIteration as done:
            return _reply(state, client, command.req_id, done.value)
        writes = COMMANDS[str(command.__struct_config__.tag)].writes
        state.long_works.setdefault(client.turn, deque()).append(LongWork(client, command, steps, writes))
        return None

    return handler


def later(state: State, client: Client, work: Callable[[], None], command: Command | None = None) -> None:
    """Run ``work`` in the next slice of a client; it sends its own answer."""

    def steps() -> Generator[None, None, None]:
        work()
        return
        yield

    state.long_works.setdefault(client.turn, deque()).append(LongWork(client, command, steps(), False))


def run(state: State) -> None:
    """Run one slice for the connection whose turn it is."""
    turn, works = next(iter(state.long_works.items()))
    work = works[0]  # removed only after its slice: a disk error must not lose it
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
    del state.long_works[turn]
    if works:
        state.long_works[turn] = works  # at the end: all others have their turn first


def _reply(state: State, client: Client, req_id: RequestId, found: Reply | Later) -> Reply | None:
    """The reply if it is available; otherwise it is sent later."""
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
    """Take over the unfinished work of a client; its slices run no more."""
    works = state.long_works.get(client.turn, deque())
    taken = [work for work in works if work.client is client]
    for work in taken:
        works.remove(work)
    if not works:
        state.long_works.pop(client.turn, None)
    return taken


def whole(state: State, work: LongWork) -> Reply:
    """Run all slices of work at once and return the reply, which must not have to wait for anything else."""
    while True:
        found = _next(state, work)
        if found is not MORE:
            assert isinstance(found, Reply)
            return found


def _next(state: State, work: LongWork) -> object:
    """Run one slice.  MORE, or the result: a reply, a later one, or None if the work sends its own answer."""
    try:
        next(work.steps)
    except StopIteration as done:
        return done.value
    except CommandError as error:
        return refused(error)
    except Exception as error:
        if work.command is None:
            raise
        return state.on_command_error(work.command, error)
    return MORE

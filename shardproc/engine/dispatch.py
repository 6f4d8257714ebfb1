"""One command, from its handler to its reply."""

from __future__ import annotations

from bunqueue.protocol.commands import Command, CommandError, Reply, is_slow, refused

from .state import Client, State


def carry_out(state: State, client: Client, command: Command) -> None:
    """Carry out a command; its reply, unless it comes later, is in the outbox."""
    handler = state.tables.handlers.get(type(command), _not_here)
    try:
        reply = handler(state, client, command)
    except CommandError as error:
        reply = refused(error)
        tag = command.__struct_config__.tag
        client.slow += is_slow(tag, getattr(command, "timeout", None))
    if reply is not None:
        reply.req_id = command.req_id
        state.out.replies.append((client.conn, reply))


def _not_here(state: State, client: Client, command: Command) -> Reply | None:
    """A command that the router should have answered."""
    raise CommandError(f"{command.__struct_config__.tag} is not a command for a shard")

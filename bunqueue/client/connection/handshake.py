"""The first commands on every connection: authenticate, then agree on protocol version and capabilities."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from bunqueue.errors import AuthError, BunqueueError, CommandFailed
from bunqueue.protocol.commands import Ok, Reply, server


def greetings(token: str | None) -> Iterator[tuple[Struct, type[Reply]]]:
    """The commands in order, with their reply types. Before Auth a server answers nothing else."""
    if token is not None:
        yield server.Auth(token=token), Ok
    wanted = ["pipelining", server.IDEMPOTENT_PUSH]
    yield server.Hello(protocol_version=server.NEWEST, capabilities=wanted), server.HelloReply


def knows_pushes(reply: Reply) -> bool:
    """Whether the server, by its reply, recognizes a push that is sent again. Only then may one be."""
    return isinstance(reply, server.HelloReply) and server.IDEMPOTENT_PUSH in reply.capabilities


def refused(command: Struct, error: CommandFailed, address: str) -> BunqueueError:
    """The error for a refused `command`. A refused Auth is always an AuthError, whatever the text says."""
    if not isinstance(command, server.Auth):
        return error
    return AuthError(f"{address} refuses the token: {error.reason}", command="Auth", address=address)

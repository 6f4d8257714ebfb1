"""What is said first on every connection: who we are, then which protocol we speak and what we need."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from bunqueue.errors import AuthError, BunqueueError, CommandFailed
from bunqueue.protocol.commands import Ok, Reply, server


def greetings(token: str | None) -> Iterator[tuple[Struct, type[Reply]]]:
    """The commands in their order, and what answers them: before Auth a server answers nothing else."""
    if token is not None:
        yield server.Auth(token=token), Ok
    wanted = ["pipelining", server.IDEMPOTENT_PUSH]
    yield server.Hello(protocol_version=server.NEWEST, capabilities=wanted), server.HelloReply


def knows_pushes(reply: Reply) -> bool:
    """Whether a server, by its answer, knows a push again that is repeated: this may be done then."""
    return isinstance(reply, server.HelloReply) and server.IDEMPOTENT_PUSH in reply.capabilities


def refused(command: Struct, error: CommandFailed, address: str) -> BunqueueError:
    """The error of a server that refuses `command`: about a token it is an AuthError, whatever its text."""
    if not isinstance(command, server.Auth):
        return error
    return AuthError(f"{address} refuses the token: {error.reason}", command="Auth", address=address)

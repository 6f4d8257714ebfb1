"""One command in flight, and its frame."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Iterable
from functools import cache
from hashlib import blake2b
from typing import TypeVar

from msgspec import Raw, Struct
from msgspec.msgpack import Encoder

from bunqueue.client.connection.options import seconds
from bunqueue.client.connection.replies import describe, names
from bunqueue.client.connection.wire import WireRequest, next_number
from bunqueue.errors import CommandTimeout, ConnectionLost, ConnectTimeout, PayloadError
from bunqueue.protocol.commands import COMMANDS, Reply, Spec
from bunqueue.protocol.commands.base import AnsweredBy
from bunqueue.protocol.commands.core import PlainPush, Push, PushBatch
from bunqueue.protocol.framing import MAX_FRAME, frame

R = TypeVar("R", bound=Reply)

_encode = Encoder().encode
WORKERS = frozenset({"PULL", "PULLB", "ACK", "ACKB", "FAIL", "FAILB"})
"""Commands that only workers send; workers repeat them as often as needed."""
ADDING = (PlainPush, Push, PushBatch)
START = "Start one with: bunqueue start"
MARGIN_MS = 1000  # added to the age of a repeated push, because clocks do not run at the same speed


@cache
def spec_of(kind: type[Struct]) -> Spec:
    """The entry in the command table for a command's class."""
    return COMMANDS[str(kind.__struct_config__.tag)]


def reply_of(command: AnsweredBy[R]) -> type[R]:
    """The reply that a command declares."""
    return spec_of(type(command)).reply  # type: ignore[arg-type,return-value]  # all are structs


def new_key() -> str:
    """A globally unique idempotency key; a forked or restored copy of this process makes other keys."""
    return os.urandom(12).hex()


def content_hash(jobs: Iterable[tuple[str, Raw]]) -> str:
    """A fingerprint of names and data, for idempotency keys that programs choose themselves."""
    digest = blake2b(digest_size=8)
    for name, data in jobs:
        payload = bytes(data)
        digest.update(b"%d %d " % (len(name), len(payload)) + name.encode() + payload)
    return digest.hexdigest()


def is_repeatable(command: Struct, knows_pushes: bool) -> bool:
    """Whether executing it twice has the same effect as once. `knows_pushes`: the server recognizes a push by
    its idempotency key.
    """
    if isinstance(command, ADDING) and command.idempotency_key is not None:
        return knows_pushes
    return spec_of(type(command)).repeatable


def age(command: Struct, since: float) -> None:
    """Before a push is repeated, set how long ago it was first sent, at monotonic time `since`."""
    if isinstance(command, ADDING) and command.idempotency_key is not None:
        command.idempotency_age = (time.monotonic() - since) * 1000 + MARGIN_MS


class Request(WireRequest):
    """A command, its bytes, and the future for its reply."""

    __slots__ = ("command", "delay", "since")

    def __init__(self, command: Struct, future: asyncio.Future[bytes], deadline: float) -> None:
        # All fields are set here: calling the base class would cost 0.2 µs for each command.
        self.id = next_number()
        self.command = command
        self.frame = encode_frame(command, self.id)
        self.future = future
        self.deadline = deadline
        self.tries = 0
        self.since = 0.0  # when it was first sent, by the monotonic clock; 0: not a repeatable push
        if isinstance(command, ADDING) and command.idempotency_key is not None:
            self.since = time.monotonic() - command.idempotency_age / 1000
        self.delay = 0.0  # seconds of the last wait for its unavailable shard

    def repeat(self) -> None:
        """Update the frame before it is sent once more."""
        if self.since:
            age(self.command, self.since)
            self.frame = encode_frame(self.command, self.id)


def encode_frame(command: Struct, number: int) -> bytes:
    """`command` as a frame, with `number` as its `reqId`. Raises PayloadError."""
    command.req_id = Raw(_encode(number))  # type: ignore[attr-defined]  # every command has it
    try:
        payload = _encode(command)
    except Exception as error:
        raise unencodable(command, error) from error
    if len(payload) > MAX_FRAME:
        raise PayloadError(
            f"{describe(command)} has {len(payload)} bytes, a frame holds {MAX_FRAME}; send less at once, "
            f"or keep large data elsewhere and send its address",
            field="data",
            value=len(payload),
            bound=MAX_FRAME,
        )
    return frame(payload)


def poll_time(command: Struct) -> float:
    """Seconds for which the server may park `command` before it answers."""
    if not spec_of(type(command)).parks:
        return 0.0
    return seconds(getattr(command, "timeout", 0) or 0)


# -- how requests fail


def unencodable(command: Struct, error: Exception) -> PayloadError:
    """The error for a command that cannot be encoded: a lone surrogate, say, or a number beyond 64 bits."""
    problem = f"{type(error).__name__}: {error}"
    return PayloadError(f"{describe(command)} cannot be encoded: {problem}", **names(command))


def lost(command: Struct, address: str, reason: str, tries: int = 1) -> ConnectionLost:
    """The connection died after the command was written, for the `tries`th time."""
    if names(command)["command"] in WORKERS:
        advice = "the worker sorts it out over the next one"
    elif tries > 1:
        unknown = "; whether it was carried out is unknown" if isinstance(command, ADDING) else ""
        advice = f"it was sent {tries} times{unknown}; look at the server's log"
    else:
        advice = "whether it was carried out is unknown, so it was not repeated; look before you do it again"
    return ConnectionLost(
        f"{describe(command)}: connection to {address} lost ({reason}); {advice}",
        address=address,
        **names(command),
    )


class HungUp(ConnectionLost):
    """The server closes connections at once, or does not speak our protocol."""


def unwelcome(address: str, reason: str) -> HungUp:
    """A connection without TLS died before the server answered anything."""
    text = f"the greeting got no answer: {reason}; if the server speaks TLS, give tls=True"
    return HungUp(text, address=address)


def web_server(address: str) -> HungUp:
    """The port belongs to the server's HTTP gateway, or to some other web server."""
    text = "what answers there speaks HTTP; give the server's TCP port, 6789 unless set"
    return HungUp(text, address=address)


def closed(command: Struct, address: str) -> ConnectionLost:
    """The client itself was closed."""
    return ConnectionLost(
        f"{describe(command)}: this client's connection to {address} is closed; open a new one",
        address=address,
        **names(command),
    )


def timed_out(command: Struct, address: str) -> CommandTimeout:
    """The command was written, or waited for room, and its time is up."""
    unknown = "" if spec_of(type(command)).repeatable else "; whether it was carried out is unknown"
    return CommandTimeout(
        f"{describe(command)}: no answer from {address} in time{unknown}; "
        f"if the server is busy, raise ConnectionOptions(command_timeout=...)",
        address=address,
        **names(command),
    )


def unreachable(command: Struct, address: str, problem: BaseException | None) -> ConnectTimeout:
    """There was no connection for the whole time."""
    why = f" ({describe_problem(problem)})" if problem else ""
    advice = "" if isinstance(problem, HungUp) else "; is the server running there? " + START
    return ConnectTimeout(
        f"{describe(command)}: no connection to {address}{why}{advice}",
        address=address,
        **names(command),
    )


def is_refusal(error: BaseException) -> bool:
    """Whether nothing listens at an address; for a host with several addresses, at one of them."""
    return isinstance(error, ConnectionRefusedError) or f"[Errno {errno.ECONNREFUSED}]" in str(error)


def describe_problem(error: BaseException) -> str:
    """One line for any error."""
    return str(error) or type(error).__name__

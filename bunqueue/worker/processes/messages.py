"""The messages between a worker and a process that runs handlers for it, over a socket."""

from __future__ import annotations

import socket
from typing import TypeVar

from msgspec import Raw, Struct
from msgspec.msgpack import Decoder, Encoder

from bunqueue.logs import ForPeople
from bunqueue.protocol.framing import HEADER, frame

# Messages from the worker


class Setup(Struct, tag="setup", gc=False):
    """The first message: import these handlers, and forward log records from this level on, if given.
    `logging` is how the worker's process logs, if the command line has configured it.
    """

    paths: list[str]
    log_level: int | None
    logging: ForPeople | None = None


class Run(Struct, tag="run", gc=False):
    """Run a job. Messages about it carry its number."""

    number: int
    path: str
    job: Raw
    data: Raw  # middleware may have changed it
    token: str
    around: tuple[tuple[str, Raw], ...]  # paths of context managers, and their arguments


class End(Struct, tag="end", gc=False):
    """The job with this token has to end early."""

    token: str
    why: str
    reason: str | None


class Stopping(Struct, tag="stopping", gc=False):
    """The worker takes no more jobs."""


class Answer(Struct, tag="answer", gc=False):
    """A `Send` or an `Ask` was carried out, or refused: the name of the error's class and its text."""

    number: int
    error: str = ""
    text: str = ""
    reply: Raw = Raw(b"\xc0")  # to an `Ask`


ToChild = Setup | Run | End | Stopping | Answer

# Messages from the process


class Ready(Struct, tag="ready", gc=False):
    """The handlers are imported."""


class Broken(Struct, tag="broken", gc=False):
    """The handlers cannot be imported; the process ends."""

    text: str


class Send(Struct, tag="send", gc=False):
    """A command of a handler that waits for its outcome; with number 0 it does not wait."""

    run: int
    number: int
    command: Raw


class Ask(Struct, tag="ask", gc=False):
    """A command about the steps of the job, which waits for its reply."""

    run: int
    number: int
    command: Raw


class Done(Struct, tag="done", gc=False):
    """The handler's result, and the bytes of memory that the process uses now."""

    run: int
    result: Raw
    memory: int


class Raised(Struct, tag="raised", gc=False):
    """The handler's exception."""

    run: int
    text: str
    stack: list[str]
    unrecoverable: bool
    put_back: bool  # no attempt counts
    delay: float | None  # ms until the next run; always set for a job that is put back
    types: list[str]  # its class and base classes
    memory: int


FromChild = Ready | Broken | Send | Ask | Done | Raised

M = TypeVar("M")

encode = Encoder().encode
to_child = Decoder(ToChild)
from_child = Decoder(FromChild)


def send(sock: socket.socket, message: ToChild | FromChild) -> None:
    """Raises OSError if the other side has gone."""
    sock.sendall(frame(encode(message)))


def receive(sock: socket.socket, decoder: Decoder[M]) -> M | None:
    """The next message; None if the other side has gone."""
    head = _read(sock, HEADER)
    body = _read(sock, int.from_bytes(head, "big")) if head else None
    return decoder.decode(body) if body else None


def _read(sock: socket.socket, size: int) -> bytes | None:
    parts = []
    while size:
        try:
            part = sock.recv(min(size, 1 << 20))
        except ConnectionError:
            return None
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)

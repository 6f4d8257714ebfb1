"""A blocking connection that carries one command at a time, for threads that wait for the reply anyway.

For one command after another it takes less than half the time of a pool behind an event loop, because only
the waiting thread has to wake up. The caller decides what happens to a command that gets no reply.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable
from functools import partial

from msgspec import MsgspecError, Struct

from bunqueue.client.connection import handshake
from bunqueue.client.connection.replies import Head, R, decode_reply, peek
from bunqueue.client.connection.requests import encode_frame
from bunqueue.client.connection.sockets import connect
from bunqueue.client.connection.transport import Endpoint
from bunqueue.client.connection.wire import next_number
from bunqueue.errors import CommandFailed
from bunqueue.protocol.framing import HEADER, MAX_FRAME

READ_SIZE = 4096  # most replies are far smaller; the rest of a larger one is read by its exact size


class BlockingConnection:
    """One socket. Close it after any error: a late reply would be taken for the reply to the next command."""

    def __init__(self, endpoint: Endpoint, *, connect_timeout: float, timeout: float) -> None:
        """Connect and greet. Each step takes at most `connect_timeout` seconds; later reads wait up to
        `timeout`.

        Raises OSError (including TimeoutError) or BunqueueError (including AuthError and TlsError).
        """
        self._address = endpoint.address
        self.used_at = time.monotonic()
        """When the last reply came."""
        self.knows_pushes = False
        """Whether the server recognizes a push that is sent again."""
        self._rest = b""  # bytes received after the last reply
        self._socket = connect(endpoint, connect_timeout)
        self._readable = _readable_check(self._socket)
        try:
            for command, reply in handshake.greetings(endpoint.token):
                try:
                    self.knows_pushes = handshake.knows_pushes(self.ask(command, reply))
                except CommandFailed as error:
                    raise handshake.refused(command, error, self._address) from None
            self._socket.settimeout(timeout)
        except BaseException:
            self.close()
            raise

    @property
    def is_quiet(self) -> bool:
        """Whether nothing has arrived since the last reply. Anything that has arrived may be the end of the
        stream.
        """
        return not self._rest and not self._readable()

    def ask(self, command: Struct, reply: type[R]) -> R:
        """Execute one command. Raises OSError or BunqueueError."""
        number = next_number()
        _, payload = self.exchange(encode_frame(command, number), number)
        return decode_reply(payload, reply, command, self._address)

    def exchange(self, frame: bytes, number: int) -> tuple[Head, bytes]:
        """Send the frame of the command numbered `number` and wait for its reply. Raises OSError."""
        self._socket.sendall(frame)
        while True:
            payload = self._receive()
            try:
                head = peek(payload)
            except MsgspecError as error:
                raise ConnectionAbortedError(f"it sent what is no reply: {error}") from None
            if head.req_id == number:
                self.used_at = time.monotonic()
                return head, payload
            if head.req_id is None and head.error:  # about the whole connection: the server is closing it
                raise ConnectionAbortedError(f"the server says: {head.error}")

    def _receive(self) -> bytes:
        """One frame, without its length prefix."""
        data = self._rest or self._more(READ_SIZE)
        while len(data) < HEADER:
            data += self._more(READ_SIZE)
        size = int.from_bytes(data[:HEADER], "big")
        if len(data) == HEADER + size:  # nearly always
            self._rest = b""
            return data[HEADER:]
        if size > MAX_FRAME:
            raise ConnectionAbortedError("it sent what is no reply")
        parts, missing = [data], HEADER + size - len(data)
        while missing > 0:
            parts.append(self._more(missing))
            missing -= len(parts[-1])
        data = b"".join(parts)
        self._rest = data[HEADER + size :]
        return data[HEADER : HEADER + size]

    def _more(self, size: int) -> bytes:
        data = self._socket.recv(size)
        if not data:
            raise ConnectionResetError("it was closed by the server")
        return data

    def close(self) -> None:
        """Close the socket. Safe to call twice."""
        self._socket.close()


def _readable_check(sock: socket.socket) -> Callable[[], object]:
    """A function that returns something true if there is anything to read."""
    if not hasattr(select, "poll"):  # Windows
        return lambda: select.select([sock], [], [], 0)[0]
    poll = select.poll()  # unlike select, it has no limit on file descriptor numbers
    poll.register(sock, select.POLLIN)
    return partial(poll.poll, 0)

"""The secondary routers of a shard's host: `bunqueue start --routers`.

The first router has started the shard, and the shard has dialled it. The secondary ones dial the shard. They
send their clients' commands, and that clients have disconnected; everything between shards, or about the
shard itself, goes through the first router.

When a router ends, only its clients' connections are lost: they count as broken. A router that does not read
what it is sent is dropped, so the shard never waits for it.
"""

from __future__ import annotations

import hmac
import select
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from msgspec import MsgspecError

from bunqueue.logs import get_logger
from bunqueue.server.links import shard_protocol as link

READ_SIZE = 1 << 20  # more than a Unix socket buffers, so one read takes everything
MAX_UNREAD = 128 << 20  # bytes that a router has not taken; above it, the router is stalled and is dropped

Envelope = tuple[tuple[int, ...], bytes]  # connection and kind, and the body

_log = get_logger("shard")


class Router:
    """The connection of one router."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.number = -1  # `router_of` its connections, known after its greeting
        self.has_ended = False  # it has no more commands
        self.parts: list[bytes] = []  # to be sent at the end of this turn
        self.unread = bytearray()  # what it has not taken yet
        self.waits = False  # polled for writing
        self.connections: set[int] = set()  # of its clients, those that have sent commands
        self.splitter = link.EnvelopeSplitter(link.TO_SHARD)


class Routers:
    """All secondary routers."""

    def __init__(self, path: str, secret: str, connections: Callable[[], Iterable[int]]) -> None:
        """They dial ``path`` and present ``secret``. ``connections``: those that the shard knows."""
        self.changed = True  # the descriptors to poll have changed
        self.received = 0  # bytes, the last time
        self._secret = secret
        self._connections = connections
        self._buffer = memoryview(bytearray(READ_SIZE))
        self._routers: dict[int, Router] = {}  # by descriptor
        self._by_number: dict[int, Router] = {}
        Path(path).unlink(missing_ok=True)  # of the shard's last process
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(path)
        self._listener.listen(link.MAX_ROUTERS)
        self._listener.setblocking(False)

    def close(self) -> None:
        """Close the connections of all of them."""
        for router in self._routers.values():
            router.sock.close()
        self._listener.close()

    @property
    def have_ended(self) -> bool:
        """Whether no router has any more commands."""
        return all(router.has_ended for router in self._by_number.values())

    @property
    def wanted(self) -> dict[int, int]:
        """What to poll for, by descriptor."""
        wanted = {self._listener.fileno(): select.POLLIN}
        for descriptor, router in self._routers.items():
            wanted[descriptor] = select.POLLIN | (select.POLLOUT if router.waits else 0)
        return wanted

    def poll(self, first: socket.socket) -> select.poll:
        """A poll object for all of them, and the first router."""
        self.changed = False
        poll = select.poll()
        poll.register(first, select.POLLIN)
        for descriptor, what in self.wanted.items():
            poll.register(descriptor, what)
        return poll

    # In

    def receive(self, ready: Iterable[tuple[int, int]]) -> list[Envelope]:
        """What they have sent."""
        found: list[Envelope] = []
        self.received = 0
        for descriptor, what in ready:
            router = self._routers.get(descriptor)
            if router is None:
                if descriptor == self._listener.fileno():
                    self._accept()
                continue
            if what & select.POLLOUT:
                self._write(router)
            if what & ~select.POLLOUT:
                self._read(router, found)
        return found

    def _accept(self) -> None:
        with suppress(OSError):  # it has disconnected again
            sock, _ = self._listener.accept()
            sock.setblocking(False)
            self._routers[sock.fileno()] = Router(sock)
            self.changed = True

    def _read(self, router: Router, found: list[Envelope]) -> None:
        try:
            size = router.sock.recv_into(self._buffer)
        except BlockingIOError:
            return
        except OSError:
            size = 0
        if not size:
            self._end(router, found)
            return
        self.received += size
        connections = router.connections
        for envelope in router.splitter.feed(bytes(self._buffer[:size])):
            (conn, kind), body = envelope
            if router.number < 0:
                if kind != link.ROUTER or not self._greet(router, body, found):
                    self._end(router, found)
                    return
                continue
            if kind == link.DRAIN:
                router.has_ended = True
                continue
            if kind in link.COMMAND_KINDS:
                if conn < link.TICKET:
                    connections.add(conn)
            elif kind in link.END_KINDS:
                connections.discard(conn)
            found.append(envelope)

    def _greet(self, router: Router, body: bytes, found: list[Envelope]) -> bool:
        """A process claims to be a router; returns whether it is one."""
        try:
            hello = link.decode_router_hello(body)
        except MsgspecError:
            return False
        if not hmac.compare_digest(hello.secret.encode(), self._secret.encode()):
            _log.warning("refused a process that claims to be a router", router=hello.router)
            return False
        before = self._by_number.get(hello.router)
        if before is not None:  # it has ended, but that was not noticed yet
            self._end(before, found)
        router.number = hello.router
        self._by_number[hello.router] = router
        found.append(((hello.router << link.ROUTER_SHIFT, link.ROUTER), hello.live))
        return True

    def _end(self, router: Router, found: list[Envelope]) -> None:
        """A router is gone: report all connections of its clients as broken."""
        if self._routers.pop(router.sock.fileno(), None) is None:
            return
        self.changed = True
        router.sock.close()
        if router.number < 0:
            return
        del self._by_number[router.number]
        known = (conn for conn in self._connections() if link.router_of(conn) == router.number)
        found += [((conn, link.BROKEN), b"") for conn in sorted(router.connections.union(known))]

    # Out

    def parts(self, conn: int, otherwise: list[bytes]) -> list[bytes]:
        """The list of messages to the router of a connection, or a ticket, in this turn; ``otherwise``: that
        to the first."""
        router = self._by_number.get(link.router_of(conn))
        return otherwise if router is None else router.parts

    def send(self) -> None:
        """Send the messages of this turn."""
        for router in self._by_number.values():
            if not router.parts:
                continue
            data = b"".join(router.parts)
            router.parts.clear()
            if not router.unread:
                data = data[_sent(router.sock, data) :]
            if data:
                router.unread += data
                self._unread_changed(router)

    def _write(self, router: Router) -> None:
        """It takes more."""
        del router.unread[: _sent(router.sock, router.unread)]
        self._unread_changed(router)

    def _unread_changed(self, router: Router) -> None:
        """The amount that it has not read has changed."""
        waits = bool(router.unread)
        self.changed = self.changed or waits != router.waits
        router.waits = waits
        if len(router.unread) > MAX_UNREAD:
            _log.warning("dropped a router that does not read", router=router.number)
            router.unread.clear()
            with suppress(OSError):
                router.sock.shutdown(socket.SHUT_RDWR)  # so that reading shows its end


def _sent(sock: socket.socket, data: bytes | bytearray) -> int:
    """The number of bytes that the kernel takes now."""
    try:
        return sock.send(data)
    except BlockingIOError:
        return 0
    except OSError:  # it is gone, as reading will show
        return len(data)

"""Accepts connections, but never more than there are descriptors for.

The event loop's own code accepts all waiting connections at once, thousands after a stall, before any can be
refused.  Then the process has no descriptor left for anything else.  Here one turn of the loop accepts a
few, and surplus connections are closed while each is still only a descriptor.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from functools import partial
from socket import socket
from typing import TypeAlias

MADE_ROOM = 8  # of these may replace others, because the replaced ones are only closed one turn later
A_TURN = 32  # connections per turn of the event loop: delays everything else by about a millisecond
HANDSHAKE_S = 10.0  # a silent client occupies one of a limited number of places, so it must not stay
SHUTDOWN_S = 2.0  # for the client to close its side as well
PAUSE_S = 0.1  # after accepting has failed, usually because no file can be opened


Counted: TypeAlias = Callable[[], None]


class Acceptor:
    """Accepts connections on listening sockets and makes a protocol for each.  `close` closes the sockets."""

    def __init__(
        self,
        make: Callable[[Counted], asyncio.BaseProtocol],
        held: Callable[[], int],
        most: int,
        give_way: Callable[[], bool] = lambda: False,
    ) -> None:
        """``held`` returns the number of open connections.  A protocol calls the argument of ``make`` as soon
        as ``held`` includes it; before that, it is counted here.  At most ``most`` connections are accepted.
        At that limit ``give_way`` may end one to make room for the next; it returns False if it ends none."""
        self.tls: ssl.SSLContext | None = None
        """For new connections."""
        self.most = most
        self.refused = 0  # connections closed at once, since the caller last reset this to 0
        self.failed = 0  # failed TLS handshakes, counted in the same way
        self.reason = ""  # of the last failed handshake
        self._make = make
        self._held = held
        self._other_gives_way = give_way
        self._sockets: list[socket] = []
        self._greeting: dict[asyncio.Task[None], None] = {}  # oldest first

    def listen(self, sock: socket, backlog: int) -> None:
        """Start to accept clients."""
        sock.listen(backlog)
        sock.setblocking(False)
        self._sockets.append(sock)
        self._resume(sock)

    def leave(self, sock: socket) -> None:
        """Stop accepting on this socket, but leave it open: other processes may use it."""
        if sock in self._sockets:
            self._sockets.remove(sock)
            asyncio.get_running_loop().remove_reader(sock.fileno())

    def _resume(self, sock: socket) -> None:
        if sock in self._sockets:  # else it has been closed in the meantime
            asyncio.get_running_loop().add_reader(sock.fileno(), self._accept, sock)

    def _accept(self, sock: socket) -> None:
        """Accept some of the waiting connections; the loop calls again for the rest."""
        loop = asyncio.get_running_loop()
        made_room = 0
        for _ in range(A_TURN):
            if made_room == MADE_ROOM:
                return
            try:
                accepted, _ = sock.accept()
            except (BlockingIOError, ConnectionError):  # none is left, or the client has just gone
                return
            except OSError:
                loop.remove_reader(sock.fileno())
                loop.call_later(PAUSE_S, self._resume, sock)
                return
            if self._held() + len(self._greeting) >= self.most:
                if not self._give_way():
                    accepted.close()
                    self.refused += 1
                    continue
                made_room += 1
            accepted.setblocking(False)
            greeting = loop.create_task(self._greet(accepted))
            self._greeting[greeting] = None
            greeting.add_done_callback(self._greeted)

    def _give_way(self) -> bool:
        """Drop the oldest unfinished handshake: an honest client needs only a moment for it."""
        if self.tls is None or not self._greeting:
            return self._other_gives_way()
        oldest = next(iter(self._greeting))
        del self._greeting[oldest]
        oldest.cancel()
        return True

    def _greeted(self, task: asyncio.Task[None]) -> None:
        self._greeting.pop(task, None)

    async def _greet(self, accepted: socket) -> None:
        task = asyncio.current_task()
        assert task is not None
        make = partial(self._make, partial(self._greeted, task))
        limits = {"ssl_handshake_timeout": HANDSHAKE_S, "ssl_shutdown_timeout": SHUTDOWN_S}
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                make, accepted, ssl=self.tls, **(limits if self.tls else {})
            )
        except OSError as error:  # includes TLS errors and timeouts
            self.failed += 1
            self.reason = getattr(error, "reason", None) or str(error) or type(error).__name__

    def renew(self, tls: ssl.SSLContext, *, again: bool) -> None:
        """Use this context for new handshakes.  With ``again``, cancel those that use the old one."""
        self.tls = tls
        if again:
            for task in self._greeting:
                task.cancel()

    def close(self) -> None:
        """Stop accepting and cancel unfinished handshakes; keep established connections."""
        loop = asyncio.get_running_loop()
        sockets, self._sockets = self._sockets, []
        for sock in sockets:
            loop.remove_reader(sock.fileno())
            sock.close()
        for task in self._greeting:
            task.cancel()

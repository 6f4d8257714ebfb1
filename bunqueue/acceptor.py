"""Accepts connections, and never more than there are descriptors for.

The event loop's own way takes at once all that wait, thousands after a stall, before anybody can refuse one:
then the process has no descriptor left for anything else.  Here a turn of the loop takes a few, and what is
too much is closed before it is anything but a number.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from functools import partial
from socket import socket
from typing import TypeAlias

MADE_ROOM = 8  # of them in the place of others, which are closed a turn later only
A_TURN = 32  # connections from one turn of the event loop: about a millisecond that others wait
HANDSHAKE_S = 10.0  # a client that does not speak is one of a bounded number, so it must not stay
SHUTDOWN_S = 2.0  # for the client to say goodbye, too
PAUSE_S = 0.1  # when accepting fails: no file can be opened, mostly


Counted: TypeAlias = Callable[[], None]


class Acceptor:
    """Makes protocols of what connects to listening sockets, which it closes in the end."""

    def __init__(
        self,
        make: Callable[[Counted], asyncio.BaseProtocol],
        held: Callable[[], int],
        most: int,
        give_way: Callable[[], bool] = lambda: False,
    ) -> None:
        """``held`` gives the number of open connections.  A protocol calls what ``make`` got as soon as it is
        one of them: until then it is counted here.  No more than ``most`` are let in.  Then ``give_way`` may
        end one to make room for the next; False if none can be spared."""
        self.tls: ssl.SSLContext | None = None
        """For those that come from now on."""
        self.most = most
        self.refused = 0  # closed at once, since somebody set it to 0
        self.failed = 0  # at the TLS handshake, the same
        self.reason = ""  # of the last that failed
        self._make = make
        self._held = held
        self._other_gives_way = give_way
        self._sockets: list[socket] = []
        self._greeting: dict[asyncio.Task[None], None] = {}  # in the order in which they came

    def listen(self, sock: socket, backlog: int) -> None:
        """Let clients in."""
        sock.listen(backlog)
        sock.setblocking(False)
        self._sockets.append(sock)
        self._resume(sock)

    def leave(self, sock: socket) -> None:
        """Let nobody in there any more, but leave it open for others."""
        if sock in self._sockets:
            self._sockets.remove(sock)
            asyncio.get_running_loop().remove_reader(sock.fileno())

    def _resume(self, sock: socket) -> None:
        if sock in self._sockets:  # else it was closed meanwhile
            asyncio.get_running_loop().add_reader(sock.fileno(), self._accept, sock)

    def _accept(self, sock: socket) -> None:
        """Take some of those that wait; the loop comes again for the others."""
        loop = asyncio.get_running_loop()
        made_room = 0
        for _ in range(A_TURN):
            if made_room == MADE_ROOM:
                return
            try:
                accepted, _ = sock.accept()
            except (BlockingIOError, ConnectionError):  # nobody any more; or it has just left
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
        """Have the oldest that still shakes hands go: who means it needs a moment only."""
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
        except OSError as error:  # TLS errors are such, and timeouts
            self.failed += 1
            self.reason = getattr(error, "reason", None) or str(error) or type(error).__name__

    def renew(self, tls: ssl.SSLContext, *, again: bool) -> None:
        """Use this for handshakes from now on.  With ``again`` clients who used the old one are closed."""
        self.tls = tls
        if again:
            for task in self._greeting:
                task.cancel()

    def close(self) -> None:
        """Let nobody in any more, and give up what is half way; who is in stays."""
        loop = asyncio.get_running_loop()
        sockets, self._sockets = self._sockets, []
        for sock in sockets:
            loop.remove_reader(sock.fileno())
            sock.close()
        for task in self._greeting:
            task.cancel()

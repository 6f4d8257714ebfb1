"""Sockets that are bound at once and listen later, so a port in use is found early."""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections.abc import Iterable
from ipaddress import ip_address
from typing import Any

from bunqueue.server.host.reach import is_local

from .errors import StartError

# A peer that vanished silently is noticed after 60 + 4 x 15 s of silence.
_KEEPALIVE = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))

_HINTS = {
    errno.EADDRINUSE: "stop the other server, or choose another port with {flag}",
    errno.EACCES: "choose a port above 1023 with {flag}",
    errno.EADDRNOTAVAIL: "choose an address of this machine with {host_flag}",
}


class BoundSockets:
    """The TCP sockets of one port, on every address of a host."""

    def __init__(self, host: str, port: int, flag: str, host_flag: str = "--host") -> None:
        """``flag`` and ``host_flag``: the options for the port and the host, named in errors."""
        self._host = host
        self._port = port
        self._flag, self._host_flag = flag, host_flag
        self.sockets: list[socket.socket] = []
        self.others: list[list[socket.socket]] = []  # those of secondary routers, at the same port

    @classmethod
    def given(cls, descriptors: Iterable[int]) -> BoundSockets:
        """Use sockets that another process has bound."""
        found = cls("", 0, "")
        found.sockets = [socket.socket(fileno=descriptor) for descriptor in descriptors]
        return found

    @property
    def address(self) -> str:
        """``host:port``, with the actual port."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{host}:{self._port}"

    @property
    def known_as(self) -> str:
        """The same, for clients on other machines: with the machine's name if it listens on all addresses."""
        found = ip_address(self.sockets[0].getsockname()[0].partition("%")[0])
        return f"{socket.gethostname()}:{self._port}" if found.is_unspecified else self.address

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the sockets."""
        return is_local(self.sockets)

    def bind(self, others: int = 0) -> None:
        """Bind the port on every address that the host resolves to; also for this many secondary routers."""
        try:
            found = socket.getaddrinfo(
                self._host, self._port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            addresses = list(dict.fromkeys((family, address) for family, _, _, _, address in found))
            for family, address in addresses:
                self.sockets.append(self._bound(family, list(address)))
            for _ in range(others):
                self.others.append([])
                for sock, (family, address) in zip(self.sockets, addresses, strict=True):
                    self.others[-1].append(self._beside(sock, family, list(address)))
        except OSError as error:
            self.close()
            raise self.refusal(error) from error

    def _beside(self, first: socket.socket, family: int, address: list[Any]) -> socket.socket:
        """Bind one more socket at the port of the first: Linux spreads connections over them."""
        if sys.platform != "linux":
            return first.dup()
        # Set only now, so no other process can share the port with the first socket.
        first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        return self._bound(family, address, shared=True)

    def _bound(self, family: int, address: list[Any], *, shared: bool = False) -> socket.socket:
        sock = socket.socket(family, socket.SOCK_STREAM)
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            self._prepare(sock, family, address)
        except OSError:
            sock.close()
            raise
        return sock

    def _prepare(self, sock: socket.socket, family: int, address: list[Any]) -> None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted sockets inherit these, so setting them costs nothing per connection.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE:
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind((address[0], self._port, *address[2:]))
        self._port = sock.getsockname()[1]  # with port 0, all addresses get the same one

    def refusal(self, error: OSError) -> StartError:
        """The error to raise when they cannot be used."""
        hint = _HINTS.get(error.errno or 0, "check {host_flag} and {flag}")
        hint = hint.format(flag=self._flag, host_flag=self._host_flag)
        reason = os.strerror(error.errno) if error.errno in _HINTS else error.strerror
        return StartError(f"cannot listen on {self.address}: {reason}; {hint}")

    def close(self) -> None:
        """Release the port."""
        for sock in (*self.sockets, *(sock for some in self.others for sock in some)):
            sock.close()
        self.sockets.clear()
        self.others.clear()

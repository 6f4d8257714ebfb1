"""Where clients knock: the TCP sockets, and the private folder with the socket for the shards."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import shutil
import socket
import ssl
import tempfile
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from bunqueue.logs import get_logger

from .connection import ClientConnection
from .errors import StartError
from .handshakes import Handshakes
from .hub import Hub

BACKLOG = 4096  # a worker fleet that reconnects all at once; the kernel caps it (net.core.somaxconn)
SPARE_FILES = 256  # descriptors beside those of clients: shards, logs, connections on their way out
MAX_SOCKET_PATH = 100  # bytes; the kernel takes 108 on Linux, 104 on macOS

# A peer that vanished without a word is noticed after 60 + 4 x 15 s of silence.
_KEEPALIVE = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))

_HINTS = {
    errno.EADDRINUSE: "stop the other server, or choose another port with --tcp-port",
    errno.EACCES: "choose a port above 1023 with --tcp-port",
    errno.EADDRNOTAVAIL: "choose an address of this machine with --host",
}

_log = get_logger("router")


def connections_within_file_limit(connections: int) -> int:
    """Allow this process as many open files as the system lets it; how many clients these are good for.

    That is ``connections``, or fewer, which is said: to run out of files would turn clients away unheard.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    except (OSError, ValueError):  # macOS calls its hard limit infinite and then refuses that
        pass
    spare = min(SPARE_FILES, soft // 2)
    if soft == resource.RLIM_INFINITY or connections + spare <= soft:
        return connections
    _log.warning(
        "max_connections is lowered to what the limit of open files allows; raise that one (ulimit -n)",
        max_connections=soft - spare,
        wanted=connections,
        open_files=soft,
    )
    return soft - spare


def files_left() -> bool:
    """Whether another file can be opened; without one, uvloop closes new connections and says nothing."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        return False
    return True


class TcpListener:
    """The TCP sockets.  They are bound at once and listen later: a port in use is found out early."""

    def __init__(self, hub: Hub, host: str, port: int) -> None:
        self._hub = hub
        self._handshakes: Handshakes | None = None  # only with TLS
        self._host = host
        self._port = port
        self._sockets: list[socket.socket] = []
        self._servers: list[asyncio.Server] = []

    @property
    def address(self) -> str:
        """``host:port``, with the port that it really is."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{host}:{self._port}"

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches the sockets."""
        return all(ip_address(sock.getsockname()[0].partition("%")[0]).is_loopback for sock in self._sockets)

    def bind(self) -> None:
        """Take the port on every address that the host stands for."""
        try:
            found = socket.getaddrinfo(
                self._host, self._port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            for family, _, _, _, address in dict.fromkeys(found):
                self._bind(family, list(address))
        except OSError as error:
            self.close()
            raise self._refusal(error) from error

    def _bind(self, family: int, address: list[Any]) -> None:
        sock = socket.socket(family, socket.SOCK_STREAM)
        self._sockets.append(sock)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted sockets inherit these, so that they cost nothing there.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE:
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind((address[0], self._port, *address[2:]))
        self._port = sock.getsockname()[1]  # when any was asked for, all addresses get the same

    async def start(self, tls: ssl.SSLContext | None) -> None:
        """Let clients in; with ``tls`` only those that shake hands."""
        loop = asyncio.get_running_loop()
        try:
            if tls is not None:
                self._handshakes = Handshakes(self._hub, tls)
                while self._sockets:
                    self._handshakes.listen(self._sockets.pop(), BACKLOG)
            for sock in self._sockets:
                server = await loop.create_server(
                    lambda: ClientConnection(self._hub), sock=sock, backlog=BACKLOG
                )
                self._servers.append(server)
        except OSError as error:
            self.close()
            raise self._refusal(error) from error

    def renew(self, tls: ssl.SSLContext) -> None:
        """Shake hands with this from now on; who is in stays."""
        assert self._handshakes is not None
        self._handshakes.context = tls

    def sweep(self) -> None:
        """Called now and then."""
        if self._handshakes is not None:
            self._handshakes.tell()

    def _refusal(self, error: OSError) -> StartError:
        hint = _HINTS.get(error.errno or 0, "check --host and --tcp-port")
        reason = os.strerror(error.errno) if error.errno in _HINTS else error.strerror
        return StartError(f"cannot listen on {self.address}: {reason}; {hint}")

    def close(self) -> None:
        """Let nobody in any more; who is in stays."""
        if self._handshakes is not None:
            self._handshakes.close()
        for server in self._servers:
            server.close()
        for sock in self._sockets:
            sock.close()
        self._servers.clear()
        self._sockets.clear()


class RuntimeFolder:
    """A folder that only this user can enter, for as long as the server runs."""

    def __init__(self) -> None:
        # systemd makes one for the service and cleans it up; it may name several.
        given = os.environ.get("RUNTIME_DIRECTORY", "").split(":")[0]
        self._path = Path(tempfile.mkdtemp(prefix="bunqueue-", dir=given or None))
        if len(os.fsencode(self.socket)) >= MAX_SOCKET_PATH:  # a deep TMPDIR
            self._path.rmdir()
            self._path = Path(tempfile.mkdtemp(prefix="bunqueue-", dir="/tmp"))

    @property
    def socket(self) -> str:
        """The path of the socket for the shards."""
        return str(self._path / "shards.sock")

    def remove(self) -> None:
        """Remove it and what is in it."""
        shutil.rmtree(self._path, ignore_errors=True)

"""Where clients are let in, and the private folder with the sockets for the server's own processes."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import ssl
import tempfile
from pathlib import Path

from bunqueue.logs import get_logger

from .connection import ClientConnection
from .handshakes import Handshakes
from .hub import Hub
from .sockets import BoundSockets

BACKLOG = 4096  # a worker fleet that reconnects all at once; the kernel caps it (net.core.somaxconn)
SPARE_FILES = 256  # descriptors beside those of clients: shards, logs, connections on their way out
MAX_SOCKET_PATH = 100  # bytes; the kernel takes 108 on Linux, 104 on macOS

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
    """Lets clients in over the TCP sockets."""

    def __init__(self, hub: Hub, sockets: BoundSockets) -> None:
        self._hub = hub
        self._bound = sockets
        self._handshakes: Handshakes | None = None  # only with TLS
        self._servers: list[asyncio.Server] = []

    async def start(self, tls: ssl.SSLContext | None) -> None:
        """Let clients in; with ``tls`` only those that shake hands."""
        loop = asyncio.get_running_loop()
        sockets = self._bound.sockets
        try:
            if tls is not None:
                self._handshakes = Handshakes(self._hub, tls)
                while sockets:
                    self._handshakes.listen(sockets.pop(), BACKLOG)
            for sock in sockets:
                server = await loop.create_server(
                    lambda: ClientConnection(self._hub), sock=sock, backlog=BACKLOG
                )
                self._servers.append(server)
        except OSError as error:
            self.close()
            raise self._bound.refusal(error) from error

    def renew(self, tls: ssl.SSLContext) -> None:
        """Shake hands with this from now on; who is in stays."""
        assert self._handshakes is not None
        self._handshakes.context = tls

    def sweep(self) -> None:
        """Called now and then."""
        if self._handshakes is not None:
            self._handshakes.tell()

    def close(self) -> None:
        """Let nobody in any more; who is in stays."""
        if self._handshakes is not None:
            self._handshakes.close()
        for server in self._servers:
            server.close()
        self._servers.clear()
        self._bound.close()


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

    @property
    def gateway_socket(self) -> str:
        """The path of the socket for the HTTP gateway; no longer than the other."""
        return str(self._path / "http.sock")

    def remove(self) -> None:
        """Remove it and what is in it."""
        shutil.rmtree(self._path, ignore_errors=True)

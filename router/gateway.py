"""The HTTP gateway's process: started with the server, restarted when it dies or hangs, ended with the
server.

It is an ordinary client of the router, over a socket that only this user can reach, so it needs no token and
no limit applies to it. The router binds the port and keeps it: while the gateway is down, clients wait.
"""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import suppress

import msgspec

from bunqueue.logs import get_logger
from bunqueue.server.identities.directory import Directory
from bunqueue.server.settings.settings import Settings

from .clients.access import Access
from .clients.connection import ClientConnection
from .clients.hub import Hub
from .errors import StartError
from .processes.child_process import ChildProcess
from .processes.launcher import PYTHON, Launcher, Process
from .sockets import BoundSockets

COMMAND = (*PYTHON, "bunqueue.gateway")
READY = b"ready\n"
PING = b"ping\n"
WRONG = b"wrong "  # begins the line, either way, about an address that has presented a wrong token
PING_S = 3.0
SILENT_PINGS = 5  # a quarter of a minute: far longer than the largest request takes, so it hangs
BACKLOG = 1024  # connections that wait while the gateway is down; the kernel caps it (net.core.somaxconn)
GIVE_UP = 3  # failures before the first start: what keeps it from starting will not pass without help
STOP_S = 8.0  # to answer pending requests; then it is killed

_log = get_logger("router")


class GatewayConnection(ClientConnection):
    """One of the gateway's connections."""

    __slots__ = ()

    limited = False

    def __init__(self, hub: Hub) -> None:
        super().__init__(hub)
        self.access = Access(Directory(is_open=True), 0, hub.limits.quotas)


class Gateway(ChildProcess):
    """The process, if the settings want one."""

    def __init__(self, hub: Hub, settings: Settings, launcher: Launcher) -> None:
        super().__init__()
        self._hub = hub
        self._settings = settings
        self._launcher = launcher
        self.sockets = BoundSockets(settings.host, settings.http_port, "--http-port")
        self._server: asyncio.Server | None = None
        self._failures = 0
        self._stopping = False
        self._answered = True  # since the last ping
        self._path = ""
        hub.unauthenticated.on_wrong_token.append(self._tell_of_wrong_token)

    @property
    def wanted(self) -> bool:
        """Whether the settings want a gateway."""
        return bool(self._settings.http_port)

    def bind(self) -> None:
        """Bind the port. StartError if that is not possible."""
        if self.wanted:
            self.sockets.bind()

    async def start(self, path: str) -> None:
        """Start it; returns when it is ready. StartError if it cannot start. It connects to ``path``."""
        if not self.wanted:
            return
        loop = asyncio.get_running_loop()
        self._path = path
        self._started: asyncio.Future[None] = loop.create_future()
        self._server = await loop.create_unix_server(lambda: GatewayConnection(self._hub), path)
        try:
            for sock in self.sockets.sockets:
                sock.listen(BACKLOG)
        except OSError as error:
            raise self.sockets.refusal(error) from error
        self.keep(self._run, self._has_ended, lambda: not self._stopping)
        await self._started

    async def stop(self) -> None:
        """Let it answer pending requests, and end it; safe to call twice."""
        self._stopping = True
        self.close_input()
        if await self.stopped(STOP_S):
            _log.warning("the HTTP gateway did not stop in time and was killed")
        if self._server is not None:
            self._server.close()
        self.sockets.close()

    def read_files_again(self) -> None:
        """Have it reload the certificate and the identities."""
        if (process := self.running) is not None:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGHUP)

    async def _has_ended(self, status: int | str, ran_s: float) -> bool:
        """The process has ended; whether it is started again."""
        self._failures += 1
        _log.error("the HTTP gateway ended", status=str(status), ran_s=round(ran_s, 1))
        if self._failures < GIVE_UP or self._started.done():
            return True
        text = f"the HTTP gateway ended {GIVE_UP} times before it was ready (last status {status})"
        why = "the lines above say why; --http-port 0 starts the server without it"
        self._started.set_exception(StartError(f"{text}; {why}"))
        return False

    async def _run(self) -> int:
        """Run one process, from start to end; returns its exit status, negative for a signal."""
        descriptors = [sock.fileno() for sock in self.sockets.sockets]
        process = self.process = await self._launcher.start(COMMAND, talks=True, files=descriptors)
        if self._stopping:
            self.kill()
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(ConnectionError, RuntimeError):  # uvloop's error for a closed pipe
            process.stdin.write(self._handover(descriptors))
            await process.stdin.drain()
        if await process.stdout.readline() == READY:
            _log.info("the HTTP gateway is ready", http=self.sockets.address)
            if not self._started.done():
                self._started.set_result(None)
            await self._watch(process)
        return await process.wait()

    async def _watch(self, process: Process) -> None:
        """Watch it until it ends; kill it if it does not answer any more."""
        self._answered = True
        pinging = asyncio.get_running_loop().create_task(self._ping(process))
        try:
            assert process.stdout is not None
            while line := await process.stdout.readline():
                self._answered = True
                if line.startswith(WRONG):
                    address = line.removeprefix(WRONG).decode().strip()
                    self._hub.unauthenticated.wrong_elsewhere(address, self, counted=False)
        finally:
            pinging.cancel()

    def _tell_of_wrong_token(self, address: str, told_by: object) -> None:
        """Whoever guesses at a router is slowed down over HTTP as well."""
        process, throttle = self.running, self._hub.unauthenticated.throttle
        if told_by is self or process is None or process.stdin is None:
            return
        if not throttle.is_throttled(address, time.monotonic()) and not self._stopping:  # else it knows
            with suppress(ConnectionError, RuntimeError):  # it has just ended
                process.stdin.write(WRONG + address.encode() + b"\n")

    async def _ping(self, process: Process) -> None:
        """Count pings and not seconds: after the whole machine slept, silence does not count."""
        assert process.stdin is not None
        silent = 0
        while silent < SILENT_PINGS:
            self._answered = False
            if self._stopping:  # its input is closed
                return
            with suppress(ConnectionError, RuntimeError):  # it has just ended
                process.stdin.write(PING)
            await asyncio.sleep(PING_S)
            silent = 0 if self._answered else silent + 1
        if not self._stopping:
            _log.error("the HTTP gateway does not answer and is killed")
            self.kill()

    def _handover(self, descriptors: list[int]) -> bytes:
        """The line of settings that the process reads first. Closing its input stops it."""
        settings = {
            "socket": self._path,
            "descriptors": descriptors,
            "settings": self._settings.to_json().decode(),
        }
        return msgspec.json.encode(settings) + b"\n"

"""The gateway process.  The router starts it, and it ends when the router does.

The router passes the listening sockets and one line on standard input, which stays open.  Later input is a
liveness ping, which is answered.  End of file is the signal to stop: requests in progress are still answered,
event streams end at once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import msgspec
import uvicorn
from starlette.types import Receive, Scope, Send

from bunqueue.logs import configure_logging, get_logger
from bunqueue.server.host.acceptor import Acceptor, Counted
from bunqueue.server.host.auth_throttle import AuthThrottle
from bunqueue.server.host.descriptors import Share, raise_file_limit, share
from bunqueue.server.host.process_arguments import name_process
from bunqueue.server.host.reach import is_overheard
from bunqueue.server.host.watched_file import WatchedFile
from bunqueue.server.settings.settings import Settings

from .app import Application
from .events.ws_protocol import SocketConnection
from .http import status
from .http.bodies import MAX_BODY
from .http.connections import Connection, Waiting, end_stuck_ones
from .http.problems import refusal

READY = b"ready\n"
PONG = b"pong\n"
WRONG = b"wrong "  # begins the line, either way, about an address that has presented a wrong token
STOP_S = 4  # for requests in progress
LOG_S = 5.0  # between two log lines about clients' errors
KEEP_ALIVE_S = 30  # for the next request on a connection
NICE = 5  # the dashboard must not take the processor from the queues
MAX_LINE = 256 * 1024
BACKLOG = 1024  # the router listens on the same sockets with this value
MAX_CONNECTIONS = 4000

_log = get_logger("gateway")


class Start(msgspec.Struct):
    """What the router passes to this process."""

    socket: str
    descriptors: list[int]
    settings: str


def main() -> int:
    """Run the gateway.  Returns the exit status."""
    line = sys.stdin.buffer.readline(MAX_LINE)
    if not line.endswith(b"\n"):  # the router was killed before it had sent the whole line
        return 1
    start = msgspec.json.decode(line, type=Start)
    name_process("bunqueue gateway")
    settings = Settings.from_json(start.settings)
    configure_logging(settings.log_level, settings.log_format)
    logging.getLogger("uvicorn").setLevel(logging.ERROR)  # it logs a warning for each bad request
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the router decides when the gateway ends
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is something to read again
    with suppress(OSError):
        os.nice(NICE)
    try:
        import uvloop
    except ImportError:  # not available on every platform
        return asyncio.run(serve(start, settings))
    return uvloop.run(serve(start, settings))


async def serve(start: Start, settings: Settings) -> int:
    """Serve until standard input ends."""
    found = share(raise_file_limit(), MAX_CONNECTIONS, gateway=True)
    sockets = [socket.socket(fileno=descriptor) for descriptor in start.descriptors]
    overheard = is_overheard(settings, sockets)
    application = Application(settings, start.socket, found.waiting, overheard=overheard)
    end_stuck_ones(sockets)
    server = _Server(uvicorn.Config(application.asgi, **_options(settings)), found)
    loop = asyncio.get_running_loop()
    application.start()
    serving = loop.create_task(server.serve(sockets))
    reports = loop.create_task(_report(server, application))
    stopped = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), _Input(application.throttle, stopped).read)
    application.access.on_wrong_token = _tell_of_wrong_token
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    client_ca = WatchedFile(settings.tls_client_ca)

    def read_files_again() -> None:
        application.read_files_again()
        _renew(server, settings, client_ca)

    loop.add_signal_handler(signal.SIGHUP, read_files_again)
    stopping = loop.create_task(stopped.wait())
    await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
    loop.remove_reader(sys.stdin.fileno())
    await application.stop()
    server.should_exit = True
    stopping.cancel()
    reports.cancel()
    await serving
    application.close()
    return 0 if server.started else 1


async def _report(server: _Server, application: Application) -> None:
    while True:
        await asyncio.sleep(LOG_S)
        server.report()
        if news := application.throttle.news():
            _log.warning("wrong tokens over HTTP", **news)
            application.trail.wrong_tokens(str(news["address"]), "http", int(news["wrong"]))


def _options(settings: Settings) -> dict[str, Any]:
    """The settings as uvicorn's options."""
    options: dict[str, Any] = {
        "lifespan": "off",
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "proxy_headers": False,
        "timeout_keep_alive": KEEP_ALIVE_S,
        "timeout_graceful_shutdown": STOP_S,
        "http": Connection,
        "ws": SocketConnection,
        "ws_max_size": MAX_BODY,
        "ws_per_message_deflate": False,  # it costs too much time and memory for thousands of listeners
    }
    if settings.tls_cert:
        options |= {"ssl_certfile": settings.tls_cert, "ssl_keyfile": settings.tls_key}
        if settings.tls_client_ca:
            options |= {"ssl_ca_certs": settings.tls_client_ca, "ssl_cert_reqs": 2}
    return options


class Spared:
    """Above this number of connections, only liveness requests are answered."""

    def __init__(self, app: Any, too_many: Callable[[], bool]) -> None:
        self._app = app
        self._too_many = too_many

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http" and scope["path"] != "/healthz" and self._too_many():
            app = refusal(status.UNAVAILABLE, "too many connections", {"Connection": "close"})
        await app(scope, receive, send)


class _Server(uvicorn.Server):
    """Reports when it listens, installs no signal handlers, and limits connections to the available
    descriptors."""

    def __init__(self, config: uvicorn.Config, most: Share) -> None:
        super().__init__(config)
        self.waiting = Waiting()
        held = self.server_state.connections
        self._acceptor = Acceptor(
            self._connection, lambda: len(held), most.clients + most.lingering, self.waiting.give_way
        )
        config.app = Spared(config.app, lambda: len(held) > most.clients)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def _connection(self, counted: Counted) -> asyncio.Protocol:
        return Connection(
            self.config, self.server_state, self.lifespan.state, waiting=self.waiting, counted=counted
        )

    def report(self) -> None:
        """Log clients' errors from time to time, in one line for each kind."""
        waiting, acceptor = self.waiting, self._acceptor
        if waiting.malformed:
            _log.warning("requests that are not HTTP", requests=waiting.malformed, address=waiting.last)
        if acceptor.failed:
            _log.warning("clients failed at the TLS handshake", clients=acceptor.failed, last=acceptor.reason)
        if acceptor.refused:
            _log.warning("connections beyond the limit were closed", connections=acceptor.refused)
        waiting.malformed = acceptor.failed = acceptor.refused = 0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])
        if not self.started:
            return
        self._acceptor.tls = self.config.ssl
        for sock in sockets or ():
            self._acceptor.listen(sock, BACKLOG)
        with suppress(OSError):  # the router has just ended
            os.write(sys.stdout.fileno(), READY)

    def renew(self, tls: ssl.SSLContext, *, again: bool) -> None:
        """Use this context for handshakes from now on.  With ``again``, connected clients are closed."""
        self._acceptor.renew(tls, again=again)
        if again:
            for connection in list(self.server_state.connections):
                connection.transport.close()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._acceptor.close()
        await super().shutdown(sockets)


class _Input:
    """Handles standard input: lines of the router, or its end."""

    def __init__(self, throttle: AuthThrottle, stopped: asyncio.Event) -> None:
        self._throttle, self._stopped, self._rest = throttle, stopped, b""

    def read(self) -> None:
        """Handle what has arrived."""
        found = os.read(sys.stdin.fileno(), MAX_LINE)
        if not found:
            self._stopped.set()
            return
        *lines, self._rest = (self._rest + found).split(b"\n")
        now_s = time.monotonic()
        for line in lines:
            if line.startswith(WRONG):
                self._throttle.wrong_elsewhere(line.removeprefix(WRONG).decode(), now_s)
            else:
                with suppress(OSError):  # the router has just ended
                    os.write(sys.stdout.fileno(), PONG)


def _tell_of_wrong_token(address: str) -> None:
    with suppress(OSError):
        os.write(sys.stdout.fileno(), WRONG + address.encode() + b"\n")


def _renew(server: _Server, settings: Settings, client_ca: WatchedFile) -> None:
    """Load the new certificate files.  If they are invalid, the previous ones stay in use.

    The context is a new one, so no client can resume a session that was agreed on with the old one.
    """
    if server.config.ssl is None:
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key)
        if settings.tls_client_ca:
            context.load_verify_locations(settings.tls_client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except OSError as error:
        _log.error("the TLS certificate was not renewed", error=str(error))
    else:
        server.renew(context, again=client_ca.changed())

"""MCP over streamable HTTP.

Each request has its own token, which is sent to the bunqueue server: no client gets the rights of another.
Requests are independent of each other.  There are no sessions that could be hijacked.  Nothing is kept for a
client before the server has accepted its token.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from socket import socket
from typing import TYPE_CHECKING

import uvicorn
from mcp.server.transport_security import TransportSecuritySettings
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from bunqueue.client.connection.transport import Endpoint
from bunqueue.errors import AuthError, BunqueueError
from bunqueue.gateway.http.access import bearer, peer_of
from bunqueue.gateway.http.connections import Connection, Waiting
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import Spec
from bunqueue.server.host.acceptor import Acceptor, Counted
from bunqueue.server.host.auth_throttle import DELAY_S, AuthThrottle

from .calls import Calls
from .server import Context, make_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PATH = "/mcp"
MAX_TOKENS = 64  # with connections that are kept; each token has up to four
MAX_UNCHECKED = 20  # requests whose token is checked for the first time, at the same time
MAX_CONNECTIONS = 200  # each has one request at a time; idle ones are closed to make room for new ones
BACKLOG = 128
KEY = "bunqueue.calls"  # the key in the scope of a request
NO_TOKEN = "the server needs a token: send the header Authorization: Bearer TOKEN"


class Clients:
    """The clients of the bunqueue server, one for each token that it accepts."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._clients: OrderedDict[str | None, Calls] = OrderedDict()
        self._users: dict[Calls, int] = {}
        self._unchecked = asyncio.Semaphore(MAX_UNCHECKED)

    @asynccontextmanager
    async def of(self, token: str | None) -> AsyncIterator[Calls]:
        """The client for a token, which the server accepts.  Raises AuthError, or another BunqueueError."""
        calls = await self._accepted(token)
        self._users[calls] = self._users.get(calls, 0) + 1
        try:
            yield calls
        finally:
            self._users[calls] -= 1
            await self._close_unused()

    async def close(self) -> None:
        """Close all connections."""
        for calls in {*self._clients.values(), *self._users}:
            await calls.close()
        self._clients.clear()

    def knows(self, token: str | None) -> bool:
        """Whether the server has accepted a token.  A client with an accepted token is not delayed by the
        wrong tokens of others."""
        return token in self._clients

    async def _accepted(self, token: str | None) -> Calls:
        known = self._clients.get(token)
        async with self._unchecked if known is None else nullcontext():
            calls = known or Calls(replace(self._endpoint, token=token))
            try:
                answer = await calls.check()
                if not answer["ok"]:
                    raise AuthError(NO_TOKEN)
            except BaseException as error:
                if isinstance(error, AuthError):  # also a token that was accepted before
                    self._clients.pop(token, None)
                if self._clients.get(token) is not calls and not self._users.get(calls):
                    await calls.close()
                raise
        return await self._keep(token, calls)

    async def _keep(self, token: str | None, calls: Calls) -> Calls:
        kept = self._clients.setdefault(token, calls)
        self._clients.move_to_end(token)
        if kept is not calls:  # another request was faster
            await calls.close()
        while len(self._clients) > MAX_TOKENS:
            _, oldest = self._clients.popitem(last=False)
            self._users.setdefault(oldest, 0)
        return kept

    async def _close_unused(self) -> None:
        kept = set(self._clients.values())
        for calls in [calls for calls, users in self._users.items() if not users]:
            del self._users[calls]
            if calls not in kept:
                await calls.close()


class TokenGuard:
    """Admits requests with a token that the server accepts, and puts their client into the scope."""

    def __init__(self, app: ASGIApp, clients: Clients) -> None:
        self._app = app
        self._clients = clients
        self._throttle = AuthThrottle()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        peer, token = peer_of(scope), bearer(Headers(scope=scope))
        # Behind a proxy all clients have the same address.
        if self._throttle.is_throttled(peer, time.monotonic()) and not self._clients.knows(token):
            await asyncio.sleep(DELAY_S)
        began = False
        try:
            async with self._clients.of(token) as calls:
                began = True
                await self._app({**scope, KEY: calls}, receive, send)
        except BunqueueError as error:
            if began:
                raise
            if isinstance(error, AuthError):
                self._throttle.wrong(peer, time.monotonic())
            await _refusal(error)(scope, receive, send)


def _refusal(error: BunqueueError) -> JSONResponse:
    if isinstance(error, AuthError):
        body = {"ok": False, "error": str(error), "code": Code.INVALID_TOKEN}
        return JSONResponse(body, 401, {"WWW-Authenticate": "Bearer"})
    body = {"ok": False, "error": str(error), "code": Code.UNAVAILABLE}
    return JSONResponse(body, 503, {"Retry-After": "1"})


class Server(uvicorn.Server):
    """Limits the number of connections, and the time that one may stay silent: see `Connection`."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._waiting = Waiting()
        held = self.server_state.connections
        self._acceptor = Acceptor(
            self._connection, lambda: len(held), MAX_CONNECTIONS, self._waiting.give_way
        )

    def _connection(self, counted: Counted) -> asyncio.Protocol:
        state = self.lifespan.state
        return Connection(self.config, self.server_state, state, waiting=self._waiting, counted=counted)

    async def startup(self, sockets: list[socket] | None = None) -> None:
        await super().startup([])
        for sock in sockets or ():
            self._acceptor.listen(sock, BACKLOG)

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        self._acceptor.close()
        await super().shutdown(sockets)


def application(
    chosen: Mapping[str, Spec], clients: Clients, host: str, names: Sequence[str] = ()
) -> ASGIApp:
    """The ASGI application.  It answers to these host `names`, to `host`, and to the names of this
    machine."""
    server = make_server(chosen, _calls_of)
    own = dict.fromkeys((f"[{host}]" if ":" in host else host, "127.0.0.1", "localhost", "[::1]", *names))
    hosts = [name + port for name in own for port in ("", ":*")]
    security = TransportSecuritySettings(
        allowed_hosts=hosts,
        allowed_origins=[f"{scheme}://{name}" for scheme in ("http", "https") for name in hosts],
    )
    app = server.streamable_http_app(
        streamable_http_path=PATH, json_response=True, stateless_http=True, transport_security=security
    )
    return TokenGuard(app, clients)


def _calls_of(context: Context) -> Calls:
    assert context.request is not None  # over HTTP there is always one
    calls = context.request.scope[KEY]
    assert isinstance(calls, Calls)
    return calls


async def serve_http(
    chosen: Mapping[str, Spec], endpoint: Endpoint, host: str, port: int, names: Sequence[str] = ()
) -> None:
    """Serve until SIGTERM or SIGINT.  Prints the address once it listens.  Raises OSError if it cannot."""
    clients = Clients(endpoint)
    config = uvicorn.Config(
        application(chosen, clients, host, names),
        host=host,
        port=port,
        log_config=None,
        access_log=False,
        server_header=False,
        http=Connection,
        timeout_graceful_shutdown=5,
    )
    listening = config.bind_socket()
    try:
        listening.listen(BACKLOG)  # clients that connect after this wait for the server
        where = f"[{host}]" if ":" in host else host
        print(f"bunqueue mcp ready url=http://{where}:{listening.getsockname()[1]}{PATH}", flush=True)
        await Server(config).serve(sockets=[listening])
    finally:
        listening.close()
        await clients.close()

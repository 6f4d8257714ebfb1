"""Several connections to one server, as one Transport.

When a connection dies, the pool decides what happens to its commands. A command that was never written, or
that may be repeated, is sent again over another connection. For all others the outcome is unknown, and the
caller gets an error.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections import deque
from contextlib import suppress
from math import inf

from msgspec import Struct

from bunqueue.client import background
from bunqueue.client.connection import requests
from bunqueue.client.connection.connection import Connection
from bunqueue.client.connection.options import seconds
from bunqueue.client.connection.requests import Request
from bunqueue.client.connection.tls import tls_problem
from bunqueue.client.connection.transport import Endpoint, FrameHandler
from bunqueue.client.connection.wire import CLOSED, WEB
from bunqueue.errors import AuthError, BunqueueError, ConnectionLost, ConnectTimeout, OptionError, TlsError

logger = logging.getLogger("bunqueue.client")

PERMANENT_ERRORS = (AuthError, TlsError, OptionError)  # trying again would end the same way
GROW_AT = 16  # commands in flight on the least busy connection before another one is opened
MAX_TRIES = 3  # connections that may die with one command; the command itself may be what kills them
SHARD_DELAY, MAX_SHARD_DELAY = 0.05, 1.0  # seconds until a command is repeated whose shard was unavailable
FIRST_WORD = 1.0  # seconds without a connection before a warning is logged
OTHERS_TIMEOUT = 3.0  # seconds for one address to answer, if there are others
MIN_PAUSE = 1.0  # seconds between attempts to connect while new commands keep asking for a connection


class Pool:
    """Connections to one server in one event loop. Implements `Transport`."""

    def __init__(self, endpoint: Endpoint, *, quiet: bool = False) -> None:
        """``quiet``: somebody else reports that there is no connection."""
        self._endpoint = endpoint
        self._quiet = quiet
        self.reached = False
        """Whether there has ever been a connection."""
        self._options = endpoint.options
        self._depth = endpoint.options.depth
        self._crowd = min(GROW_AT, self._depth)
        self._address = endpoint.address
        # Clients of a cluster start with different hosts, and move to the next one if a host does not answer.
        self._turn = random.randrange(endpoint.count)
        self._timeout = seconds(endpoint.options.command_timeout)
        self._loop = asyncio.get_running_loop()
        self._connections: list[Connection] = []
        self._backlog: deque[Request] = deque()
        self._dialer: asyncio.Task[None] | None = None
        self._problem: BaseException | None = None  # of the last attempt to connect
        self._asked = asyncio.Event()  # set when a new command waits for a connection
        self._timer: asyncio.TimerHandle | None = None  # fires at the earliest deadline
        self._timer_at = 0.0
        self._handler: FrameHandler | None = None
        self._closed = False

    # -- Transport

    async def call(self, command: Struct, *, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        allowed = (self._timeout if timeout is None else timeout) + requests.poll_time(command)
        if self._closed:
            raise requests.closed(command, self._address)
        request = Request(command, self._loop.create_future(), self._loop.time() + allowed)
        self._send(request)
        return await request.future

    def listen(self, handler: FrameHandler | None) -> None:
        self._handler = handler

    def on_frame(self, payload: bytes | None) -> None:
        if self._handler is not None:
            self._handler(payload)

    async def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        dialer, self._dialer = self._dialer, None
        if dialer is not None:
            dialer.cancel()
            with suppress(asyncio.CancelledError):
                await dialer
        await asyncio.gather(*[connection.close() for connection in self._connections])
        while self._backlog:
            request = self._backlog.popleft()
            _fail(request, requests.closed(request.command, self._address))

    def abandon(self) -> None:
        """Hang up without the event loop, which is closed, so that the server sees the connections end."""
        self._closed = True
        for connection in self._connections:
            connection.hang_up()

    # -- sending

    def _send(self, request: Request) -> None:
        connection = self._idlest()
        if connection is None:
            self._backlog.append(request)
            self.watch(request.deadline)
        else:
            connection.send(request)
        if connection is None or len(connection.pending) >= self._crowd:
            self._dial()
            if not self._connections:
                self._asked.set()

    def _idlest(self) -> Connection | None:
        """The connection with the fewest commands in flight, if it has room."""
        best, load = None, self._depth
        for connection in self._connections:
            if len(connection.pending) < load:
                best, load = connection, len(connection.pending)
        return best

    def answered(self, connection: Connection) -> None:
        backlog, room = self._backlog, self._depth
        while backlog and len(connection.pending) < room:
            request = backlog.popleft()
            if not request.future.done():
                connection.send(request)

    def unavailable(self, request: Request, payload: bytes) -> None:
        """Send it again after a short delay that grows each time."""
        request.delay = min(request.delay * 2 or SHARD_DELAY, MAX_SHARD_DELAY)
        pause = request.delay * random.uniform(0.5, 1.0)
        if self._closed or self._loop.time() + pause >= request.deadline:
            if not request.future.done():
                request.future.set_result(payload)
        else:
            self._loop.call_later(pause, self._again, request)

    def _again(self, request: Request) -> None:
        if self._closed:
            _fail(request, requests.closed(request.command, self._address))
        elif not request.future.done():
            self._send(request)

    # -- deadlines

    def watch(self, deadline: float) -> None:
        """One timer serves all requests: most have the same timeout, so it is rarely reset."""
        if self._timer is None or deadline < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(deadline, self._expire)
            self._timer_at = deadline

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time()
        for connection in list(self._connections):
            for request in [r for r in connection.pending.values() if r.deadline <= now]:
                _fail(request, requests.timed_out(request.command, self._address))
                connection.expire(request)
        if any(request.deadline <= now for request in self._backlog):
            late = [request for request in self._backlog if request.deadline <= now]
            self._backlog = deque(request for request in self._backlog if request.deadline > now)
            for request in late:
                _fail(request, self._late(request))
        waiting = [r.deadline for connection in self._connections for r in connection.pending.values()]
        waiting += [request.deadline for request in self._backlog]
        if waiting:
            self.watch(min(waiting))

    def _late(self, request: Request) -> BunqueueError:
        if self._connections:
            return requests.timed_out(request.command, self._address)
        return requests.unreachable(request.command, self._address, self._problem)

    # -- connecting

    def _dial(self) -> None:
        if self._dialer is None and not self._closed and len(self._connections) < self._options.pool_size:
            self._dialer = background.begin(self._loop, self._keep_dialing())

    def _wanted(self) -> bool:
        """Whether another connection is needed."""
        if not self._connections:
            return self._options.auto_reconnect or bool(self._backlog)
        idlest = min(len(connection.pending) for connection in self._connections)
        return len(self._connections) < self._options.pool_size and idlest >= self._crowd

    async def _keep_dialing(self) -> None:
        failures = 0
        begun = self._loop.time()
        reporting = self._loop.call_later(FIRST_WORD, self._report_wait)
        try:
            while self._wanted():
                try:
                    self._add_connection(await self._connect())
                    failures = 0
                except Exception as error:
                    failures += 1
                    self._problem = error
                    self._turn += 1
                    logger.debug("bunqueue at %s: attempt %d failed: %s", self._address, failures, error)
                    rounds, untried = divmod(failures, self._endpoint.count)
                    if untried:
                        continue  # with the next address
                    left = self._patience(error, begun)
                    if left <= 0 or rounds == self._options.max_reconnect_attempts:
                        self._give_up(error)
                        return
                    await self._pause(min(self._options.retry_delay(rounds, random.random()), left))
        finally:
            reporting.cancel()
            self._dialer = None

    def _patience(self, error: Exception, begun: float) -> float:
        """For how many more seconds it makes sense to keep trying."""
        if isinstance(error, PERMANENT_ERRORS) or not isinstance(error, OSError | BunqueueError):
            return 0.0  # for example, the token is refused or the host is unknown
        if self.reached or not (isinstance(error, requests.HungUp) or requests.is_refusal(error)):
            return inf
        return begun + seconds(self._options.refused_timeout) - self._loop.time()

    def _report_wait(self) -> None:
        """No connection for a while: log why."""
        if not self._connections and not self._quiet:
            why = f" ({requests.describe_problem(self._problem)})" if self._problem else ""
            logger.warning("no connection to %s yet%s; trying on", self._address, why)

    async def _connect(self) -> Connection:
        """One attempt. Raises OSError (including TimeoutError) or BunqueueError."""
        endpoint = self._endpoint.at(self._turn)
        address = endpoint.address
        connection = Connection(self, address, self._options, others=bool(self._endpoint.others))
        timeout = seconds(self._options.connect_timeout)
        if self._endpoint.others:
            timeout = min(timeout, OTHERS_TIMEOUT)
        try:
            async with asyncio.timeout(timeout):
                await self._loop.create_connection(
                    lambda: connection,
                    endpoint.host,
                    endpoint.port,
                    ssl=endpoint.tls_context(),
                    server_hostname=endpoint.server_name,
                )
                await connection.handshake(endpoint.token, self._loop.time() + timeout)
        except BaseException as error:
            if not connection.closed:
                connection.abort("the attempt was given up")
            if isinstance(error, TimeoutError) and not error.args:  # our own timeout, not the system's
                raise ConnectTimeout(f"no answer within {timeout:g} s", address=address) from None
            if isinstance(error, ssl.SSLError):
                raise tls_problem(error, address) or error from None
            if connection.reason == WEB:
                raise requests.web_server(address) from None
            silent = connection.reason == CLOSED
            if isinstance(error, ConnectionLost) and silent and endpoint.tls is None:
                raise requests.unwelcome(address, connection.reason) from None
            raise
        return connection

    def _add_connection(self, connection: Connection) -> None:
        if connection.closed:  # lost between its last reply and now
            return
        connection.ready = self.reached = True
        self._connections.append(connection)
        self._problem = None
        if not connection.knows_pushes:  # an older server has replaced the previous one
            for request in [request for request in self._backlog if request.since and request.tries]:
                self._backlog.remove(request)
                why = "an older server took its place"
                _fail(request, requests.lost(request.command, self._address, why))
        self.answered(connection)

    def _give_up(self, error: Exception) -> None:
        """Retrying would not help: fail the waiting commands. The next command makes a new attempt."""
        while self._backlog:
            request = self._backlog.popleft()
            _fail(request, error if isinstance(error, PERMANENT_ERRORS) else self._late(request))

    async def _pause(self, delay: float) -> None:
        """Sleep for `delay` seconds, or less if new commands arrive."""
        self._asked.clear()
        shortest = min(delay, MIN_PAUSE)
        await asyncio.sleep(shortest)
        if delay > shortest:
            with suppress(TimeoutError):
                async with asyncio.timeout(delay - shortest):
                    await self._asked.wait()

    def lost(self, connection: Connection, reason: str) -> None:
        known = connection in self._connections
        if known:
            self._connections.remove(connection)
        unsent = set(connection.unsent)
        again: list[Request] = []
        for request in connection.pending.values():
            written = request not in unsent
            request.tries += written
            if self._closed:
                _fail(request, requests.closed(request.command, self._address))
            elif known and (not written or requests.is_repeatable(request.command, connection.knows_pushes)):
                self._repeat(request, reason, again)
            else:
                _fail(request, requests.lost(request.command, self._address, reason, request.tries))
        self._backlog.extendleft(reversed(again))
        if known and not self._closed:
            self._turn += 1  # switch to another host, if there is one: this one may be hanging
            logger.info("bunqueue at %s: connection lost: %s", self._address, reason)
            self.on_frame(None)
            self._dial()
            while self._backlog and (other := self._idlest()) is not None:
                other.send(self._backlog.popleft())

    def _repeat(self, request: Request, reason: str, again: list[Request]) -> None:
        """Send it again: at once, up to MAX_TRIES times. After that only in a cluster, whose hosts cut
        connections when they take shards over: there it is repeated until its deadline, with growing pauses.
        """
        if request.tries < MAX_TRIES:
            again.append(request)
            return
        pause = request.delay = min(request.delay * 2 or SHARD_DELAY, MAX_SHARD_DELAY)
        if self._endpoint.others and self._loop.time() + pause < request.deadline:
            self._loop.call_later(pause * random.uniform(0.5, 1.0), self._again, request)
        else:
            _fail(request, requests.lost(request.command, self._address, reason, request.tries))


def _fail(request: Request, error: BunqueueError) -> None:
    if not request.future.done():
        request.future.set_exception(error)

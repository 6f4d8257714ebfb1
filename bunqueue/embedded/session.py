"""The client's end of an embedded engine: a session of one event loop."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from asyncio import AbstractEventLoop, Future
from collections import deque
from collections.abc import Callable
from copy import copy

from msgspec import Raw, Struct
from msgspec.msgpack import Encoder

from bunqueue.client.connection.requests import closed, spec_of, unencodable
from bunqueue.client.connection.transport import FrameHandler
from bunqueue.errors import ConnectionLost, StorageError
from bunqueue.protocol.commands import Route
from bunqueue.protocol.commands.server import NEWEST
from bunqueue.protocol.event_frames import lost_frame
from bunqueue.protocol.framing import HEADER

from . import open_engines
from .engine import EmbeddedEngine

VERSION = NEWEST  # of the protocol, unless Hello says otherwise
MAX_PENDING = 100_000  # events that wait for a blocked loop; beyond this limit they are only counted

_encode = Encoder().encode


class Closed(Exception):
    """The session was closed while a call was in progress."""


def encoded(command: Struct) -> bytes:
    """The payload of a command. Raises PayloadError."""
    try:
        return _encode(command)
    except Exception as error:
        raise unencodable(command, error) from error


class EmbeddedTransport:
    """A session with an embedded engine; implements `bunqueue.client.connection.transport.Transport`.

    If an error stopped its engine, it continues with a new one.
    """

    def __init__(self, engine: EmbeddedEngine) -> None:
        self.engine = engine
        self.conn = 0
        self.version = VERSION
        self.loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._waiting: dict[bytes, Future[bytes]] = {}
        self._batch: list[bytes] = []
        self._events = EventBuffer()
        self._closed = False
        engine.join(self)

    async def call(self, command: Struct, *, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        """See `Transport.call`. The engine always answers, so ``timeout`` has no effect.

        Raises StorageError when the file cannot be read or written, PayloadError for a command that cannot be
        encoded.
        """
        if self.engine.inherited:
            raise ConnectionLost(
                f"the session with {self.engine.path} belongs to the parent of this process: one process"
                " at a time may have the file open"
            )
        if self.engine.closed and not self._closed:
            await self._join_again()
        if self._closed:
            raise self._is_closed(command)
        spec = spec_of(type(command))
        if spec.route is Route.ROUTER:
            self._run()
            return self.engine.ask_locally(self, command)
        try:
            payload = await self._send(command)
        except Closed:
            raise self._is_closed(command) from None
        return self.engine.complete(spec.name, payload)

    def _is_closed(self, command: Struct) -> ConnectionLost:
        return closed(command, f"embedded engine {self.engine.path}")

    def listen(self, handler: FrameHandler | None) -> None:
        """See `Transport.listen`."""
        self._events.handler = handler

    def _send(self, command: Struct) -> Future[bytes]:
        key = _encode(next(self._numbers))
        command.req_id = Raw(key)  # type: ignore[attr-defined]
        payload = encoded(command)
        future: Future[bytes] = self.loop.create_future()
        self._waiting[key] = future
        if not self._batch:
            self.loop.call_soon(self._run)
        self._batch.append(payload)
        return future

    async def _join_again(self) -> None:
        path = await open_engines.prepared(self.engine.path)
        with open_engines.lock:
            if self.engine.closed and not self._closed:  # otherwise another call was faster
                self.engine = open_engines.open_engine(path)
                self.engine.join(self)

    def _run(self) -> None:
        batch, self._batch = self._batch, []
        if batch and not self._closed and not self.engine.inherited:
            self.engine.run(self, batch, self.loop)

    async def close(self) -> None:
        """End the session. The last session of a file closes the file."""
        if self._closed:
            return
        self._run()
        self._closed = True
        if not self.engine.inherited:
            with open_engines.lock:
                engines, path = open_engines.engines, self.engine.path
                if self.engine.leave(self, self.loop) and engines.get(path) is self.engine:
                    del engines[path]
        self._end_calls(Closed())

    # -- deliveries of the engine, from any thread

    @property
    def disconnected(self) -> bool:
        """Whether the event loop was closed."""
        return self.loop.is_closed()

    def answer(self, key: bytes, payload: bytes, here: AbstractEventLoop | None) -> bool:
        """Receive a reply."""
        if self.loop is here:
            self._resolve(key, payload)
            return True
        return self._post(self._resolve, key, payload)

    def deliver(self, queue: str, payloads: list[bytes]) -> None:
        """Receive unrequested messages. They are handled in the event loop."""
        if self._events.put(queue, payloads):
            self._post(self._events.empty)

    def fail(self, why: str) -> None:
        """The engine was stopped by an error."""
        self._post(self._failed, why)

    def _post(self, function: Callable[..., None], *arguments: object) -> bool:
        """Call a function in the session's event loop. Returns False when the loop is closed."""
        try:
            self.loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            return False
        return True

    def _resolve(self, key: bytes, payload: bytes) -> None:
        future = self._waiting.pop(key, None)
        if future is not None and not future.done():
            future.set_result(payload)

    def _failed(self, why: str) -> None:
        self._end_calls(stopped(self.engine.path, why))
        if self._events.handler is not None:
            self._events.handler(None)

    def _end_calls(self, error: ConnectionLost | Closed) -> None:
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(copy(error))
        self._waiting.clear()


def stopped(path: str, why: str) -> StorageError:
    """The engine of a file was stopped by an error."""
    return StorageError(
        f"the embedded engine of {path} was stopped: {why}. Whether this command was carried out is not"
        " known; the next one opens the file anew"
    )


class EventBuffer:
    """Events on their way from any thread to one event loop, with a bound."""

    def __init__(self) -> None:
        self.handler: FrameHandler | None = None
        self._lock = threading.Lock()
        self._pending: deque[bytes] = deque()
        self._lost: dict[str, int] = {}  # queue -> events left out since the loop was blocked

    def put(self, queue: str, payloads: list[bytes]) -> bool:
        """Keep these events until they are handled. Returns whether `empty` has to be called for that."""
        if self.handler is None:
            return False
        with self._lock:
            idle = not self._pending
            if queue and len(self._pending) + len(payloads) > MAX_PENDING:
                self._lost[queue] = self._lost.get(queue, 0) + len(payloads)
            else:
                self._pending.extend(payloads)
            return idle

    def empty(self) -> None:
        """Handle all events, in the event loop."""
        with self._lock:
            payloads, self._pending = self._pending, deque()
            lost, self._lost = self._lost, {}
        now = time.time_ns() // 1_000_000
        payloads.extend(lost_frame(queue, count, now)[HEADER:] for queue, count in lost.items())
        for payload in payloads:
            if self.handler is not None:
                self.handler(payload)


async def shared_transport(data_path: str | None) -> EmbeddedTransport:
    """A session with the engine of a file, which is opened if this is the first session; None: in memory.

    Raises FileInUse when another process has the file open, StorageError when it cannot be read.
    """
    path = await open_engines.prepared(data_path)
    with open_engines.lock:
        return EmbeddedTransport(open_engines.open_engine(path))

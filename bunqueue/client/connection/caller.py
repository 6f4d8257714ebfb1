"""Sends a command and decodes its typed reply, for coroutines and for threads that may block."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar, overload

from msgspec import Struct

from bunqueue.client import engine_override
from bunqueue.client.connection import blocking_pool, requests
from bunqueue.client.connection.background_loop import check_thread, portal
from bunqueue.client.connection.blocked_loop import warn_if_in_loop
from bunqueue.client.connection.patience import Patience
from bunqueue.client.connection.replies import decode_reply
from bunqueue.client.connection.transport import Endpoint, Transport
from bunqueue.client.waits import Waits, wait_for
from bunqueue.errors import BunqueueError, QueueFull
from bunqueue.protocol.commands import Reply
from bunqueue.protocol.commands.base import AnsweredBy
from bunqueue.protocol.commands.events import Ended

if TYPE_CHECKING:
    from bunqueue.client.codecs.codec import Codec
    from bunqueue.embedded.direct import FileSession

R = TypeVar("R", bound=Reply)


class AsyncCaller:
    """Calls one endpoint through a session that is opened on first use, one for each event loop."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.known = False
        """Whether the server was already reached over another connection."""
        self._transport: Transport | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._override: engine_override.EngineOverride | None = None  # that the session belongs to
        self._waits: Waits | None = None
        self._closed = False
        self._entered = 0

    def enter(self) -> None:
        """Enter a context: reopen it if it was closed."""
        self._closed, self._entered = False, self._entered + 1

    def leave(self) -> bool:
        """Leave a context. Returns whether it was the outermost one, so the caller has to close."""
        self._entered -= 1
        return self._entered <= 0

    @overload
    async def call(self, command: AnsweredBy[R]) -> R: ...

    @overload
    async def call(self, command: Struct, reply: type[R]) -> R: ...

    async def call(self, command: Any, reply: type[Any] | None = None) -> Any:
        """The reply to `command`, as it is declared or as another type. Raises BunqueueError."""
        try:
            payload = await self._raw(command)
        except BunqueueError as error:
            raise error.with_traceback(None) from error.__cause__  # the place inside the client is no help
        return decode_reply(payload, reply or requests.reply_of(command), command, self.endpoint.address)

    def add(self, command: AnsweredBy[R], wait_s: float = 0) -> Coroutine[Any, Any, R]:
        """`call` for commands that add jobs. Retries for up to `wait_s` seconds while the queue is full."""
        return self._add_patiently(command, wait_s) if wait_s else self.call(command)

    async def _add_patiently(self, command: AnsweredBy[R], wait_s: float) -> R:
        patience = Patience(wait_s)
        while True:
            try:
                return await self.call(command)
            except QueueFull:
                pause = patience.pause()
                if pause is None:
                    raise
            await asyncio.sleep(pause)

    async def ended(self, queue: str, job_id: str, seconds: float | None) -> Ended:
        """How a job ended, waiting up to `seconds`. Raises TimeoutError or BunqueueError."""
        if self._waits is None or self._waits.loop is not asyncio.get_running_loop():
            self._waits = Waits(self.call)
        return await self._waits.ended(queue, job_id, seconds)

    async def raw(self, command: Struct) -> bytes:
        """The undecoded reply."""
        return await self._raw(command)

    def _raw(self, command: Struct) -> Coroutine[Any, Any, bytes]:
        """`raw`, without a coroutine of its own on the hot path."""
        if self._closed:
            raise requests.closed(command, self.endpoint.address)
        transport = self._transport
        if (
            transport is None
            or self._loop is not asyncio.get_running_loop()
            or self._override is not engine_override.current
        ):
            return self._open_and_call(command)
        return transport.call(command)

    async def _open_and_call(self, command: Struct) -> bytes:
        transport = await self.open()
        return await transport.call(command)

    @property
    def is_open(self) -> bool:
        """Whether there is a session."""
        return self._transport is not None

    def use(self, transport: Transport | None) -> None:
        """Use somebody else's session from now on, or, with None, one of our own again."""
        self._transport, self._loop = transport, asyncio.get_running_loop()
        self._override = engine_override.current

    async def open(self) -> Transport:
        loop, current = asyncio.get_running_loop(), engine_override.current
        transport = await self.endpoint.open(known=self.known)
        if self._closed:  # while it was opening
            await transport.close()
            return transport  # its calls raise ConnectionLost
        if self._transport is not None and self._loop is loop and self._override is current:
            await transport.close()  # another task was faster
            return self._transport
        self._transport, self._loop, self._override = transport, loop, current
        return transport

    async def close(self) -> None:
        """End the session. Later calls raise ConnectionLost until it is entered again."""
        self._closed, self._entered = True, 0
        loop = asyncio.get_running_loop()
        if self._waits is not None and self._waits.loop is loop:
            self._waits.close(self.endpoint.address)
        transport, self._transport = self._transport, None
        if transport is not None and self._loop is loop:
            await transport.close()


class Caller:
    """The blocking twin. Most commands borrow a connection for this thread, or are executed in this thread by
    an embedded engine. Commands that take a while go through a session in the background loop.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._caller = AsyncCaller(endpoint)
        self._blocking_pool = None if endpoint.embedded else blocking_pool.share(endpoint)
        self._file: FileSession | None = None  # of an embedded engine, once used
        self._closed = False
        self._entered = 0
        self._lock = threading.Lock()

    def enter(self) -> None:
        """Enter a context: reopen it if it was closed."""
        with self._lock:
            self._entered += 1
            if not self._closed:
                return
            self._closed, self._file = False, None
            self._caller = AsyncCaller(self.endpoint)
            if self._blocking_pool is not None:
                self._blocking_pool = blocking_pool.share(self.endpoint)

    def leave(self) -> bool:
        """Leave a context. Returns whether it was the outermost one, so the caller has to close."""
        with self._lock:
            self._entered -= 1
            return self._entered <= 0

    def ended(self, queue: str, job_id: str, seconds: float | None) -> Ended:
        """How a job ended, waiting up to `seconds`. Raises TimeoutError or BunqueueError."""
        self._check_thread()
        command = wait_for(queue, job_id, seconds)
        if self._closed:
            raise requests.closed(command, self.endpoint.address)
        if engine_override.current is None:
            return portal().run(self._caller.ended(queue, job_id, seconds))
        reply = self.call(command)
        if not reply.ended:
            raise TimeoutError
        return reply.ended[0]

    @overload
    def call(self, command: AnsweredBy[R]) -> R: ...

    @overload
    def call(self, command: Struct, reply: type[R]) -> R: ...

    def call(self, command: Any, reply: type[Any] | None = None) -> Any:
        """The reply to `command`, as it is declared or as another type. Raises BunqueueError."""
        try:
            payload = self.raw(command)
        except BunqueueError as error:
            raise error.with_traceback(None) from error.__cause__  # the place inside the client is no help
        return decode_reply(payload, reply or requests.reply_of(command), command, self.endpoint.address)

    def add(self, command: AnsweredBy[R], wait_s: float = 0) -> R:
        """`call` for commands that add jobs. Retries for up to `wait_s` seconds while the queue is full."""
        if not wait_s:
            return self.call(command)
        patience = Patience(wait_s)
        while True:
            try:
                return self.call(command)
            except QueueFull:
                pause = patience.pause()
                if pause is None:
                    raise
            time.sleep(pause)

    def raw(self, command: Struct) -> bytes:
        """The undecoded reply."""
        self._check_thread()
        codec = self.endpoint.codec
        reply = self._call_now(command) if codec is None else self._call_coded(codec, command)
        return reply or portal().run(self._caller.raw(command))

    def _check_thread(self) -> None:
        check_thread()
        if self._blocking_pool is not None and engine_override.current is None:  # else nothing is waited for
            warn_if_in_loop()

    def _call_coded(self, codec: Codec, command: Struct) -> bytes | None:
        """`_call_now` with encoded payloads."""
        if engine_override.current is not None:
            engine_override.current.meet(codec)
        from bunqueue.client.codecs.incoming import decoded
        from bunqueue.client.codecs.outgoing import encoded

        payload = self._call_now(encoded(codec, command))
        return None if payload is None else decoded(codec, payload, command)

    def _call_now(self, command: Struct) -> bytes | None:
        """The reply over the fast path; None if the command may take a while and needs the session in the
        loop, which applies the codec as well.
        """
        if self._closed:
            raise requests.closed(command, self.endpoint.address)
        if engine_override.current is not None:
            return engine_override.current.call(command)
        if requests.poll_time(command):
            return None
        if self._blocking_pool is None:
            return self._opened().call(command)
        payload = self._blocking_pool.call(command)
        self._caller.known = self._blocking_pool.reached
        return payload

    def _opened(self) -> FileSession:
        if self._file is None:
            from bunqueue.embedded.direct import FileSession

            with self._lock:
                self._file = self._file or FileSession(self.endpoint.data_path)
        return self._file

    def close(self) -> None:
        """End the session. Later calls raise ConnectionLost until it is entered again."""
        with self._lock:
            closed, self._closed, self._entered = self._closed, True, 0
        if closed:
            return
        if self._blocking_pool is not None:
            blocking_pool.release(self._blocking_pool, self.endpoint)
        if self._file is not None:
            self._file.close()
        if self._caller.is_open:
            portal().run(self._caller.close())

"""Sessions with the engine of a sandbox: for coroutines, and for threads that may block.

Both apply the planned faults to commands.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.msgpack import Encoder

from bunqueue.client.connection.replies import describe, names
from bunqueue.client.connection.requests import is_repeatable, poll_time
from bunqueue.embedded.direct import DirectSession
from bunqueue.embedded.session import EmbeddedTransport
from bunqueue.errors import ConnectionLost
from bunqueue.protocol.commands.core import Pull, PullBatch

from .errors import SandboxError
from .faults import Faults, Kind

if TYPE_CHECKING:
    from .engine import SandboxEngine

PATIENCE = 5.0  # seconds of real time to wait for an answer that depends on another client
MAX_TRIES = 3  # for repeatable commands, as in clients of a server

After = Callable[[Struct], Awaitable[None]]

_encode = Encoder().encode


class SandboxTransport(EmbeddedTransport):
    """A session for coroutines."""

    engine: SandboxEngine

    def __init__(self, engine: SandboxEngine, faults: Faults, after: After) -> None:
        """`after` is awaited after each answer."""
        super().__init__(engine)
        self.pulls_from: set[str] = set()
        self._faults = faults
        self._after = after

    async def call(self, command: Struct, *, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        delivery = Delivery(self._faults, command)
        while True:
            answer = await self._ask(command) if delivery.arrives else b""
            if (payload := delivery.outcome(answer)) is not None:
                await self._after(command)
                return payload
            self._break_connection()
            delivery.again()

    async def _ask(self, command: Struct) -> bytes:
        if isinstance(command, Pull | PullBatch):  # a worker may wait forever
            self.pulls_from.add(command.queue)
        elif poll_time(command):
            try:
                return await asyncio.wait_for(super().call(command), PATIENCE)
            except TimeoutError:
                raise never(command) from None
        return await super().call(command)

    def _break_connection(self) -> None:
        self.engine.reconnect(self)
        self._end_calls(ConnectionLost("the connection was lost with another command, as the test planned"))
        if self._events.handler is not None:
            self._events.handler(None)

    async def _join_again(self) -> None:
        raise ConnectionLost("the sandbox of this session has ended")

    def _failed(self, why: str) -> None:
        self._end_calls(ConnectionLost(f"the sandbox was stopped: {why}"))


class SandboxSession(DirectSession):
    """A session for threads that may block."""

    engine: SandboxEngine

    def __init__(
        self, engine: SandboxEngine, faults: Faults, handler: Callable[[bytes], None] = lambda payload: None
    ) -> None:
        """`handler` receives messages that answer no command."""
        super().__init__(engine)
        self._handler = handler
        self._faults = faults

    def call(self, command: Struct, *, patience: float = 0.0) -> bytes:
        """Like `Transport.call`.  ``patience`` is how long to wait, in seconds of real time, for other
        clients that the answer depends on."""
        delivery = Delivery(self._faults, command)
        while True:
            answer = self._arrive(command, patience) if delivery.arrives else b""
            if (payload := delivery.outcome(answer)) is not None:
                return payload
            self.engine.reconnect(self)
            delivery.again()

    def _arrive(self, command: Struct, patience: float) -> bytes:
        if self.engine.closed:
            raise ConnectionLost("the sandbox of this session has ended")
        payload = self.ask(command, patience)
        if payload is None:
            raise never(command)
        return payload

    def deliver(self, queue: str, payloads: list[bytes]) -> None:
        """Pass on messages that answer no command."""
        for payload in payloads:
            self._handler(payload)


class Delivery:
    """A command in transit, with the fault that hits it, if any."""

    def __init__(self, faults: Faults, command: Struct) -> None:
        self._faults = faults
        self._command = command
        self._fault = faults.meeting(command)
        self._tries = 1

    @property
    def arrives(self) -> bool:
        """Whether the command reaches the engine."""
        return self._fault is None or self._fault.kind is Kind.ANSWER_LOST

    def outcome(self, answer: bytes) -> bytes | None:
        """The payload that the client receives, or None if its connection is lost."""
        if self._fault is None:
            return answer
        if self._fault.kind is Kind.REFUSED:
            return _encode({"ok": False, "error": self._fault.text, "code": self._fault.code})
        return None

    def again(self) -> None:
        """Repeat the command over another connection.  Raises ConnectionLost if that is not safe."""
        assert self._fault is not None
        if self._tries == MAX_TRIES or not is_repeatable(self._command, knows_pushes=True):
            what, why = describe(self._command), self._fault.kind.value
            message = f"{what}: connection to the sandbox lost ({why}, as the test planned)"
            raise ConnectionLost(message, address="the sandbox", **names(self._command))
        self._fault = self._faults.meeting(self._command)
        self._tries += 1


def never(command: Struct) -> SandboxError:
    """The error for a wait that cannot end because the clock is stopped."""
    return SandboxError(
        f"{describe(command)}: nothing happened that it waits for. In a sandbox time stands still: run "
        f"the job before you wait for it, with drain() or a worker, or let its time come with advance()",
        **names(command),
    )

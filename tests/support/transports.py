"""Every way a client reaches an engine, with one interface: coroutines, also for clients that block."""

from __future__ import annotations

import asyncio
from typing import Protocol, TypeVar

from msgspec import Struct

from bunqueue.client.connection.caller import AsyncCaller, Caller
from bunqueue.client.connection.transport import Endpoint
from bunqueue.protocol.commands import Reply
from bunqueue.protocol.commands.events import Ended

R = TypeVar("R", bound=Reply)


class Client(Protocol):
    """`AsyncCaller`, or what looks like it."""

    @property
    def is_open(self) -> bool: ...

    async def call(self, command: Struct, reply: type[R]) -> R: ...

    async def ended(self, queue: str, job_id: str, seconds: float | None) -> Ended: ...

    async def close(self) -> None: ...


class InThread:
    """A blocking client. Each call has a thread of its own, so the event loop of the test turns meanwhile."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._caller = Caller(endpoint)

    @property
    def is_open(self) -> bool:
        """Whether there is a session in the background loop: for what waits at the engine."""
        return self._caller._caller.is_open

    async def call(self, command: Struct, reply: type[R]) -> R:
        return await asyncio.to_thread(self._caller.call, command, reply)

    async def ended(self, queue: str, job_id: str, seconds: float | None) -> Ended:
        return await asyncio.to_thread(self._caller.ended, queue, job_id, seconds)

    async def close(self) -> None:
        await asyncio.to_thread(self._caller.close)


def client(endpoint: Endpoint, *, blocking: bool) -> Client:
    """A new client. Asynchronous ones share a pool for each endpoint, blocking ones a few connections."""
    return InThread(endpoint) if blocking else AsyncCaller(endpoint)

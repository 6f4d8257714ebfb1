"""Takes what handlers say, in the loop and in threads, to the server."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Generator
from typing import Any

from msgspec import Struct

from bunqueue.client.connection.caller import AsyncCaller
from bunqueue.errors import BunqueueError
from bunqueue.protocol.commands import Ok

logger = logging.getLogger("bunqueue.worker")

MAX_SOON = 1000  # lines under way that nobody waits for; beyond, they are left out


class _Done:
    """Something to await for those who need not."""

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


DONE = _Done()


class WorkerChannel:
    """The `JobChannel` of a worker to its server."""

    def __init__(self, caller: AsyncCaller) -> None:
        self.stopping = False
        self._caller = caller
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._soon: set[asyncio.Task[None]] = set()

    def say(self, command: Struct) -> Awaitable[None]:
        sending = self._send(command)
        if threading.get_ident() == self._thread:
            return sending
        try:
            waiting = asyncio.run_coroutine_threadsafe(sending, self._loop)
        except RuntimeError:  # the worker is gone, and left this thread behind
            sending.close()
            raise
        waiting.result()
        return DONE

    def say_soon(self, command: Struct) -> None:
        if threading.get_ident() == self._thread:
            self._begin(command)
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._begin, command)

    async def _send(self, command: Struct) -> None:
        await self._caller.call(command, Ok)

    def _begin(self, command: Struct) -> None:
        if len(self._soon) >= MAX_SOON:
            return
        task = self._loop.create_task(self._send_quietly(command))
        self._soon.add(task)
        task.add_done_callback(self._soon.discard)

    async def _send_quietly(self, command: Struct) -> None:
        try:
            await self._send(command)
        except BunqueueError as error:
            logger.debug("what a handler said was lost: %s", error)

    async def settle(self, patience: float) -> None:
        """Wait for what is under way, at most `patience` seconds."""
        if self._soon:
            await asyncio.wait(self._soon, timeout=patience)

"""Reads the store every second, and sooner when something has happened; knows whether it answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from bunqueue.logs import get_logger
from bunqueue.store.answer_timeout import AnswerTimeout
from bunqueue.store.database import StoreError, StoreUnavailable

REFRESH_S = 1.0  # between two reads of the store
SILENT_S = 3.0  # a store that does not answer for so long is unavailable

_log = get_logger("cluster")


class StoreWatch:
    """One task for as long as the host is in the cluster."""

    def __init__(self, refresh: Callable[[], Awaitable[None]]) -> None:
        """``refresh`` reads the store, and does what follows.  It may raise StoreError."""
        self._refresh = refresh
        self._timeout = AnswerTimeout()
        self._error = ""
        self._asked_at: float | None = None  # since when the store is being read
        self._soon = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def soon(self) -> None:
        """Something has happened: do not wait for the second to end."""
        self._soon.set()

    @property
    def timeout_s(self) -> float:
        """How long the store may take for an answer."""
        return self._timeout.seconds

    @property
    def error(self) -> str:
        """Why the store cannot be read; "" while it can."""
        if self._error or self._asked_at is None:
            return self._error
        silent_s = asyncio.get_running_loop().time() - self._asked_at
        return f"it has not answered for {silent_s:.0f} s" if silent_s > SILENT_S else ""

    async def _run(self) -> None:
        while True:
            try:
                self._asked_at = asyncio.get_running_loop().time()
                await self._refresh_in_time(self._asked_at)
                if self._error:
                    _log.info("the store answers again")
                self._error = ""
            except StoreError as error:
                if not self._error:
                    _log.warning("the store cannot be read", error=str(error))
                self._error = str(error)
            except Exception:
                _log.exception("the cluster could not be looked after")
            self._asked_at = None
            with suppress(TimeoutError):
                await asyncio.wait_for(self._soon.wait(), REFRESH_S)
            self._soon.clear()

    async def _refresh_in_time(self, begun: float) -> None:
        """StoreUnavailable if there is no answer.  The next read may find another server that leads."""
        seconds = self._timeout.seconds
        try:
            async with asyncio.timeout(seconds):
                await self._refresh()
        except TimeoutError:
            raise StoreUnavailable(f"it has not answered for {seconds:.0f} s") from None
        finally:
            self._timeout.took(asyncio.get_running_loop().time() - begun)

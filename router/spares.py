"""Processes that have loaded the program, and wait to be told which shard they are.

A host of a cluster has a few: to load the program takes most of a second on a busy machine, and when a shard
is taken over somebody waits for that.  They know nothing yet, so none is ever wrong; one that has died is not
used.
"""

from __future__ import annotations

import asyncio
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Sequence
from contextlib import suppress

from bunqueue.logs import get_logger

SPARES = 4  # some 45 MB each, of which others of their kind share a part
FILL_S = 5.0  # after a shard has started: more may start now, and these come first

_log = get_logger("router")


async def start(command: Sequence[str]) -> Process:
    """A process of a shard, which is told on its standard input what it is."""
    # A session of its own keeps a terminal's Ctrl-C away: the router decides when a shard ends.
    return await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=DEVNULL, start_new_session=True)


class Spares:
    """See above."""

    def __init__(self, command: Sequence[str], count: int = SPARES) -> None:
        self._command, self._count = command, count
        self._waiting: list[Process] = []
        self._timer: asyncio.TimerHandle | None = None
        self._filling: asyncio.Task[None] | None = None
        self._stopped = False

    async def take(self) -> Process:
        """One that waits, or a new one."""
        self._fill_later()
        self._bury()
        return self._waiting.pop() if self._waiting else await start(self._command)

    def _bury(self) -> None:
        """Forget those that have died."""
        for process in self._waiting:
            if process.returncode is not None and process.stdin is not None:
                process.stdin.close()
        self._waiting = [process for process in self._waiting if process.returncode is None]

    def _fill_later(self) -> None:
        """Start those that are missing when no shard has started for a while."""
        if self._timer is not None:
            self._timer.cancel()
        if self._count and not self._stopped:
            self._timer = asyncio.get_running_loop().call_later(FILL_S, self._begin_to_fill)

    def _begin_to_fill(self) -> None:
        self._timer = None
        if self._filling is None or self._filling.done():
            self._filling = asyncio.get_running_loop().create_task(self._fill())

    async def _fill(self) -> None:
        self._bury()
        try:
            while len(self._waiting) < self._count and not self._stopped:
                self._waiting.append(await start(self._command))
        except OSError as error:
            _log.warning("no process could be started to spare", error=str(error))

    def kill(self) -> None:
        """End all at once."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        for process in self._waiting:
            with suppress(ProcessLookupError):
                process.kill()

    async def stop(self) -> None:
        """End them.  Safe to call twice."""
        self._stopped = True
        if self._filling is not None:
            await self._filling
        self.kill()
        for process in self._waiting:
            await process.wait()
        self._bury()

"""A process of the server: run, run again when it has ended, killed.

Shards, the gateway, the follower and other routers are kept this way; they differ in how they start, and in
what their end means.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from .launcher import Process

FIRST_DELAY_S, LAST_DELAY_S = 0.05, 5.0  # before a restart; doubled each time
HEALTHY_S = 10.0  # after a run this long, the next restart has the shortest delay


class ChildProcess:
    """One of them, over all its runs."""

    def __init__(self) -> None:
        self.process: Process | None = None
        self.task: asyncio.Task[None] | None = None  # keeps it running

    @property
    def was_ready(self) -> bool:
        """Whether its last run came as far as to do its work; else the delay keeps growing."""
        return True

    @property
    def running(self) -> Process | None:
        """The process, while there is one."""
        process = self.process
        return process if process is not None and process.returncode is None else None

    def kill(self) -> None:
        """End the process, if there is one, now."""
        if (process := self.running) is not None:
            with suppress(ProcessLookupError):
                process.kill()

    def close_input(self) -> None:
        """Close its standard input, which asks some processes to stop."""
        if (process := self.running) is not None and process.stdin is not None:
            process.stdin.close()

    def keep(
        self,
        run: Callable[[], Awaitable[int]],
        ended: Callable[[int | str, float], Awaitable[bool]],
        wanted: Callable[[], bool],
    ) -> asyncio.Task[None]:
        """Run it again and again while it is ``wanted``. ``run`` starts the process and returns its exit
        status, negative for a signal. ``ended`` is called with that, or with why it could not
        be started, and with the seconds it ran; it returns whether to start it again."""
        self.task = asyncio.get_running_loop().create_task(self._keep(run, ended, wanted))
        return self.task

    async def _keep(
        self,
        run: Callable[[], Awaitable[int]],
        ended: Callable[[int | str, float], Awaitable[bool]],
        wanted: Callable[[], bool],
    ) -> None:
        loop, delay = asyncio.get_running_loop(), FIRST_DELAY_S
        while wanted():
            begun = loop.time()
            status: int | str
            try:
                status = await run()
            except Exception as error:  # no process, say; whatever it is, it is tried again
                status = str(error)
                self.kill()
            ran_s = loop.time() - begun
            if not wanted() or not await ended(status, ran_s):
                return
            if ran_s >= HEALTHY_S and self.was_ready:
                delay = FIRST_DELAY_S
            await asyncio.sleep(delay)
            delay = min(2 * delay, LAST_DELAY_S)

    async def stopped(self, limit_s: float) -> bool:
        """Wait until it has ended for good; whether it had to be killed, as that took too long."""
        if self.task is None:
            return False
        if self.running is None:
            self.task.cancel()  # it waits to start the process again
        _, late = await asyncio.wait([self.task], timeout=limit_s)
        if late:
            self.kill()
            await asyncio.wait([self.task])
        return bool(late)

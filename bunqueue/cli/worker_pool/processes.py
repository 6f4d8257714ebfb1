"""Keep several processes of one command running. A process that dies is replaced, after a pause if it failed
at once. All are stopped when one ends with a status that a restart cannot fix."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence

from bunqueue.server.host.lifeline import end_with_parent
from bunqueue.text import printable
from bunqueue.worker.log import log_event

BAD_USAGE, RECYCLED, BAD_CONFIG = 2, 75, 78
"""Exit statuses: wrong flags or target, a process that asks to be replaced (EX_TEMPFAIL), a process that the
server refuses (EX_CONFIG). A restart helps in the second case only."""
NOT_REPLACED = 79
"""The exit status of a process whose end somebody asked for at the server."""
FIRST_PAUSE, MAX_PAUSE = 1.0, 30.0  # seconds before a process that failed is replaced; doubled each time
LONG_LIFE = 60.0  # seconds after which the pause starts again at FIRST_PAUSE
SHORT_LIFE = 5.0  # seconds; a process that ends sooner, even with status 0, restarts after a pause
CHANGED_PATIENCE = 2.0  # seconds that processes have to end after a file change, before a second SIGTERM


_in_log = False


def report_to_log() -> None:
    """Make `report` write to the log from now on, as JSON lines."""
    global _in_log
    _in_log = True


def report(text: str) -> None:
    """Write a line to standard error, or to the log."""
    if _in_log:
        log_event("worker", {}, "%s", text)
    else:
        print("bunqueue worker:", printable(text), file=sys.stderr, flush=True)


class WorkerProcesses:
    """`count` processes of one command. Each shuts down when its standard input closes, and so when this
    process ends."""

    def __init__(self, command: Sequence[str], count: int) -> None:
        self._command = command
        self._count = count
        self._running: set[asyncio.subprocess.Process] = set()
        self._stopping = False
        self._changed = asyncio.Event()
        self._stopped = asyncio.Event()
        self._status = 0
        self._waits_for_change = False

    def stop(self) -> None:
        """Stop all processes; a second call stops them without grace."""
        self._stopping = True
        self._stopped.set()
        self._signal()

    def _signal(self) -> None:
        for process in self._running:
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)

    async def run(self, changes: AsyncIterator[str] | None = None) -> int:
        """Run until `stop` is called, or a restart would not help. Return the exit status.

        Each of `changes` restarts all processes. A process that a restart would not help waits for the next
        change.
        """
        watching = asyncio.create_task(self._follow(changes)) if changes is not None else None
        self._waits_for_change = watching is not None
        await asyncio.gather(*[self._keep(number) for number in range(self._count)])
        if watching is not None:
            watching.cancel()
        return self._status

    async def _keep(self, number: int) -> None:
        pause = 0.0
        while not self._stopping:
            begun = time.monotonic()
            status = await self._run_once()
            if self._stopping:
                return
            lived = time.monotonic() - begun
            if status == NOT_REPLACED:
                report(f"process {number + 1} was asked to stop, and is not replaced")
                return
            if status in (BAD_USAGE, BAD_CONFIG):
                if not self._waits_for_change:
                    self._status = status
                    self.stop()
                    return
                report("waiting for a change")
                await self._first(self._changed, None)
            elif status == RECYCLED or self._changed.is_set() or (status == 0 and lived > SHORT_LIFE):
                pause = 0.0
            else:
                pause = FIRST_PAUSE if lived > LONG_LIFE else pause * 2 or FIRST_PAUSE
                pause = min(pause, MAX_PAUSE)
                report(f"process {number + 1} {described(status)}; another one is started in {pause:g} s")
                await self._first(self._stopped, pause)
            self._changed.clear()

    async def _run_once(self) -> int:
        # A process group of its own: the terminal's signals come to this process, which passes them on.
        process = await asyncio.create_subprocess_exec(*self._command, stdin=subprocess.PIPE, process_group=0)
        self._running.add(process)
        if self._stopping:
            self._signal()
        try:
            return await process.wait()
        finally:
            self._running.discard(process)

    async def _first(self, event: asyncio.Event, limit: float | None) -> None:
        """Wait for an event or `stop`, at most `limit` seconds."""
        waits = [asyncio.create_task(each.wait()) for each in (event, self._stopped)]
        await asyncio.wait(waits, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    async def _follow(self, changes: AsyncIterator[str]) -> None:
        async for path in changes:
            report(f"{path} has changed")
            self._changed.set()
            before = set(self._running)
            self._signal()
            await asyncio.sleep(CHANGED_PATIENCE)
            for process in before & self._running:
                process.send_signal(signal.SIGTERM)  # the second signal ends a process at once


def described(status: int) -> str:
    """How a process ended, as text."""
    if status >= 0:
        return f"has ended with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"


def oversee(command: Sequence[str], count: int, changes: Callable[[], AsyncIterator[str]] | None) -> int:
    """Run worker processes until SIGTERM or SIGINT. Return the exit status."""

    async def main() -> int:
        workers = WorkerProcesses(command, count)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, workers.stop)
        return await workers.run(changes() if changes is not None else None)

    return asyncio.run(main())


def end_with_overseer() -> None:
    """Shut this worker process down when its standard input closes: its overseer has ended."""
    end_with_parent(lambda: os.kill(os.getpid(), signal.SIGTERM))

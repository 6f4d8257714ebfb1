"""Several processes of the same kind, kept running: those that die are replaced, those that fail at once are
given a pause, and when one says that it makes no sense all are stopped.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence

from bunqueue.client.worker.log import said

BAD_USAGE, WORN_OUT, BAD_CONFIG = 2, 75, 78
"""Exit statuses: of wrong flags and targets, of a process that wants to be replaced (EX_TEMPFAIL), and of one
that the server refuses (EX_CONFIG). Starting again helps in the second case only."""
FIRST_PAUSE, MAX_PAUSE = 1.0, 30.0  # seconds before a process that failed is replaced; doubled each time
LONG_LIFE = 60.0  # seconds after which a failure is the first one again
SHORT_LIFE = 5.0  # seconds; what ends sooner, though in order, is not started again without a pause
CHANGED_PATIENCE = 2.0  # seconds for processes to end when the program has changed; then they are hurried


_in_log = False


def say_in_log() -> None:
    """Have `say` write to the log from now on, where each line is to be JSON."""
    global _in_log
    _in_log = True


def say(text: str) -> None:
    """A line for whoever looks at the terminal."""
    if _in_log:
        said("worker", {}, "%s", text)
    else:
        print(f"bunqueue worker: {text}", file=sys.stderr, flush=True)


class WorkerProcesses:
    """`count` processes of one command. Each ends, in order, when its standard input does: with us."""

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
        """Have all end; when called again, without any grace."""
        self._stopping = True
        self._stopped.set()
        self._signal()

    def _signal(self) -> None:
        for process in self._running:
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)

    async def run(self, changes: AsyncIterator[str] | None = None) -> int:
        """Until `stop` is called, or one of them makes no sense; the exit status.

        With `changes` all are replaced at each of them, and what makes no sense waits for the next one.
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
            if status in (BAD_USAGE, BAD_CONFIG):
                if not self._waits_for_change:
                    self._status = status
                    self.stop()
                    return
                say("waiting for a change")
                await self._first(self._changed, None)
            elif status == WORN_OUT or self._changed.is_set() or (status == 0 and lived > SHORT_LIFE):
                pause = 0.0
            else:
                pause = FIRST_PAUSE if lived > LONG_LIFE else pause * 2 or FIRST_PAUSE
                pause = min(pause, MAX_PAUSE)
                say(f"process {number + 1} {described(status)}; another one is started in {pause:g} s")
                await self._first(self._stopped, pause)
            self._changed.clear()

    async def _run_once(self) -> int:
        # A process group of its own: the terminal's signals come to us, and we pass them on.
        process = await asyncio.create_subprocess_exec(*self._command, stdin=subprocess.PIPE, process_group=0)
        self._running.add(process)
        if self._stopping:
            self._signal()
        try:
            return await process.wait()
        finally:
            self._running.discard(process)

    async def _first(self, event: asyncio.Event, limit: float | None) -> None:
        """Wait for an event or the end, at most `limit` seconds."""
        waits = [asyncio.create_task(each.wait()) for each in (event, self._stopped)]
        await asyncio.wait(waits, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    async def _follow(self, changes: AsyncIterator[str]) -> None:
        async for path in changes:
            say(f"{path} has changed")
            self._changed.set()
            before = set(self._running)
            self._signal()
            await asyncio.sleep(CHANGED_PATIENCE)
            for process in before & self._running:
                process.send_signal(signal.SIGTERM)  # the second one does not wait


def described(status: int) -> str:
    """How a process ended."""
    if status >= 0:
        return f"has ended with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"


def oversee(command: Sequence[str], count: int, changes: Callable[[], AsyncIterator[str]] | None) -> int:
    """Run a crew until SIGTERM or SIGINT; the exit status."""

    async def main() -> int:
        crew = WorkerProcesses(command, count)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, crew.stop)
        return await crew.run(changes() if changes is not None else None)

    return asyncio.run(main())


def end_with_overseer() -> None:
    """In one of the processes: have it stop in order when standard input ends, as the overseer has then."""
    import threading

    def listen() -> None:
        while os.read(0, 1024):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=listen, name="bunqueue-overseer", daemon=True).start()

"""Worker processes as a service manager runs them: those that end are started again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from .server import ROOT
from .waiting import wait_until

PROGRAM = Path(__file__).with_name("worker_program.py")


class WorkerPool:
    """Processes that work on one queue. What the options of the worker are, `Worker` says."""

    def __init__(self, folder: Path, queue: str, *, size: int = 4, **options: Any) -> None:
        self._folder = folder
        self._runs = folder / "runs"
        self._orders = json.dumps({"queue": queue, "runs": str(self._runs), "options": options})
        self._size = size
        self._log = folder / "workers.log"
        self.processes: list[subprocess.Popen[bytes]] = []
        self.ended = 0
        """Processes that ended by themselves."""
        self.stats: Counter[str] = Counter()
        """Of the processes that ended in order."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[WorkerPool]:
        """All processes run, for as long as this lasts; then they are stopped in order."""
        self._runs.touch()
        keeper = asyncio.create_task(self._keep())
        try:
            yield self
        finally:
            keeper.cancel()
            with suppress(asyncio.CancelledError):
                await keeper
            await asyncio.to_thread(self._stop)

    async def _keep(self) -> None:
        while True:
            for process in list(self.processes):
                if process.poll() is not None:
                    self.ended += 1
                    self._finish(process)
            while len(self.processes) < self._size:
                self.processes.append(self._start())
            await asyncio.sleep(0.1)  # between two looks

    def _start(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, str(PROGRAM), self._orders],
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )

    def _finish(self, process: subprocess.Popen[bytes]) -> None:
        self.processes.remove(process)
        assert process.stdout is not None
        with process.stdout as pipe:
            words = pipe.read()
        if words:
            self.stats.update(json.loads(words))

    def _stop(self) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGCONT)
            process.send_signal(signal.SIGTERM)
        try:
            wait_until(lambda: all(each.poll() is not None for each in self.processes), "all have ended")
        finally:
            for process in list(self.processes):
                process.kill()
                process.wait()
                self._finish(process)
            sys.stderr.write(f"--- log of the workers\n{self.log()[-5000:]}\n")

    def runs(self) -> Counter[str]:
        """How often each job was begun."""
        return Counter(line.split()[0] for line in self._runs.read_text().splitlines())

    def begun_by(self) -> Counter[int]:
        """How many runs each process has begun."""
        return Counter(int(line.split()[1]) for line in self._runs.read_text().splitlines())

    def log(self) -> str:
        return self._log.read_text(errors="replace")

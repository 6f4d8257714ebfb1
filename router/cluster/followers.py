"""The process that follows the shards of other hosts: started with the server, and restarted when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from bunqueue.logs import get_logger
from bunqueue.server.links.process_start import FollowerStart, Orders, Report
from bunqueue.server.settings.settings import Settings

from ..launcher import PYTHON, Launcher, Process

COMMAND = (*PYTHON, "shardproc.replication.follower")
FIRST_DELAY_S, LAST_DELAY_S = 0.1, 5.0  # before a restart; doubled each time
HEALTHY_S = 10.0  # after a run this long, the next restart has the shortest delay
STOP_S = 3.0

_log = get_logger("cluster")


_decode = msgspec.json.Decoder(Report).decode


class Followers:
    """Runs the process and calls ``on_report`` with each of its reports."""

    def __init__(
        self,
        settings: Settings,
        host: str,
        on_report: Callable[[Report], None],
        launcher: Launcher,
        command: Sequence[str] = COMMAND,
    ) -> None:
        self._settings, self._host, self._on_report = settings, host, on_report
        self._launcher, self._command = launcher, command
        self._process: Process | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._stopping = False
        self._wanted: frozenset[int] = frozenset()
        self._orders = 0
        self.open: frozenset[int] = frozenset()
        """The shards whose files the process has open, or may be about to open; a shard's process can open
        them after that."""

    def start(self) -> None:
        self._keeper = asyncio.get_running_loop().create_task(self._keep())

    def follow(self, shards: frozenset[int]) -> None:
        """Follow these shards, and no others."""
        if shards != self._wanted:
            self._wanted = shards
            self._orders += 1
            self._order()

    def _order(self) -> None:
        process = self._process
        if process is not None and process.stdin is not None and process.returncode is None:
            self.open |= self._wanted  # until a report acknowledges another order
            with suppress(ConnectionError, RuntimeError):
                order = Orders(sorted(self._wanted), self._orders)
                process.stdin.write(msgspec.json.encode(order) + b"\n")

    async def stop(self) -> None:
        """End the process, which closes the files. Safe to call twice."""
        self._stopping = True
        process, keeper, self._keeper = self._process, self._keeper, None
        if keeper is None:
            return
        if process is None or process.returncode is not None:
            keeper.cancel()
        elif process.stdin is not None:
            process.stdin.close()
        _, late = await asyncio.wait([keeper], timeout=STOP_S)
        if late:
            self.kill()
            await asyncio.wait([keeper])

    def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        delay = FIRST_DELAY_S
        while not self._stopping:
            begun = loop.time()
            try:
                await self._run()
            except Exception as error:
                _log.error("the follower ended", error=str(error))
                self.kill()
            self.open = frozenset()
            if self._stopping:
                return
            if loop.time() - begun >= HEALTHY_S:
                delay = FIRST_DELAY_S
            await asyncio.sleep(delay)
            delay = min(2 * delay, LAST_DELAY_S)

    async def _run(self) -> None:
        process = self._process = await self._launcher.start(self._command, talks=True)
        assert process.stdin is not None
        assert process.stdout is not None
        start = FollowerStart(self._host, self._settings.to_json().decode())
        process.stdin.write(msgspec.json.encode(start) + b"\n")
        self._order()
        while line := await process.stdout.readline():
            report = _decode(line)
            seen = frozenset(observed.shard for observed in report.observed)
            self.open = seen | (self._wanted if report.order == self._orders else self.open)
            self._on_report(report)
        status = await process.wait()
        if not self._stopping:
            _log.error("the follower ended", status=status)

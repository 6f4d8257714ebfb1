"""The process that follows the shards of other hosts: started with the server, and restarted when it ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from bunqueue.logs import get_logger
from bunqueue.server.links.pipe_messages import FollowerStart, Orders, Report
from bunqueue.server.settings.settings import Settings

from ..processes.child_process import ChildProcess
from ..processes.launcher import PYTHON, Launcher

COMMAND = (*PYTHON, "shardproc.replication.follower")
STOP_S = 3.0

_log = get_logger("cluster")


_decode = msgspec.json.Decoder(Report).decode


class Followers(ChildProcess):
    """Runs the process and calls ``on_report`` with each of its reports."""

    def __init__(
        self,
        settings: Settings,
        host: str,
        on_report: Callable[[Report], None],
        launcher: Launcher,
        command: Sequence[str] = COMMAND,
    ) -> None:
        super().__init__()
        self._settings, self._host, self._on_report = settings, host, on_report
        self._launcher, self._command = launcher, command
        self._stopping = False
        self._wanted: frozenset[int] = frozenset()
        self._orders = 0
        self.open: frozenset[int] = frozenset()
        """The shards whose files the process has open, or may be about to open; a shard's process can open
        them after that."""

    def start(self) -> None:
        self.keep(self._run, self._has_ended, lambda: not self._stopping)

    def follow(self, shards: frozenset[int]) -> None:
        """Follow these shards, and no others."""
        if shards != self._wanted:
            self._wanted = shards
            self._orders += 1
            self._order()

    def _order(self) -> None:
        process = self.running
        if process is not None and process.stdin is not None:
            self.open |= self._wanted  # until a report acknowledges another order
            with suppress(ConnectionError, RuntimeError):
                order = Orders(sorted(self._wanted), self._orders)
                process.stdin.write(msgspec.json.encode(order) + b"\n")

    async def stop(self) -> None:
        """End the process, which closes the files. Safe to call twice."""
        self._stopping = True
        self.close_input()
        await self.stopped(STOP_S)

    async def _has_ended(self, status: int | str, ran_s: float) -> bool:
        _log.error("the follower ended", status=str(status), ran_s=round(ran_s, 1))
        return True

    async def _run(self) -> int:
        try:
            return await self._run_once()
        finally:
            self.open = frozenset()

    async def _run_once(self) -> int:
        process = self.process = await self._launcher.start(self._command, talks=True)
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
        return await process.wait()

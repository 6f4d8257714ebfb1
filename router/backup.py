"""The process that ships what changes in the data folder: started with the server, restarted when it ends,
and ended after the shards, so that it stores what they have committed last."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from bunqueue.logs import get_logger
from bunqueue.server.folder.data_folder import NAME, read_manifest
from bunqueue.server.links.pipe_messages import ShipperStart, Shipping
from bunqueue.server.settings.settings import Settings

from .clients.hub import Hub
from .clients.own_commands import now_ms
from .errors import BAD_USAGE, WRONG_FILES, StartError
from .processes.child_process import ChildProcess
from .processes.launcher import PYTHON, Launcher

COMMAND = (*PYTHON, "bunqueue.backup")
STOP_S = 10.0  # to store what was committed last; the rest is stored after the next start

_log = get_logger("router")
_decode = msgspec.json.Decoder(Shipping).decode


class Backup(ChildProcess):
    """The process, if the settings want one. What it reports is in the hub."""

    def __init__(self, hub: Hub, settings: Settings, launcher: Launcher) -> None:
        super().__init__()
        self._hub, self._settings, self._launcher = hub, settings, launcher
        self._stopping = False
        self._address = ""
        self._passed: Callable[[str], None] = lambda text: None

    def check(self) -> None:
        """StartError if the settings cannot be used. Whether the target answers is not tried."""
        settings = self._settings
        if not settings.backup:
            return
        if settings.store:
            raise StartError("backup: the store has the jobs: back up its database", BAD_USAGE)
        from bunqueue.backup.repository import Repository
        from bunqueue.backup.sealing import key_of
        from bunqueue.backup.targets import TargetError, target_of

        try:
            key = key_of(settings.backup_key, settings.backup_key_command)
            Repository(target_of(settings.backup), key)
        except TargetError as error:
            raise StartError(f"backup: {error}", BAD_USAGE) from error

    async def admit(self) -> None:
        """StartError if another server has taken over from this one, as far as the target can be asked."""
        settings = self._settings
        if not settings.backup:
            return
        try:
            passed = await asyncio.to_thread(_passed, settings)
        except Exception as error:  # the target may be away: it is asked again by the process
            _log.warning("whether another server has taken over is not known yet", error=str(error))
            return
        if passed:
            raise StartError(passed, WRONG_FILES)

    def start(self, address: str, passed: Callable[[str], None]) -> None:
        """Start it, when the shards are ready. ``address``: where clients reach the server. ``passed`` is
        called if another server takes over."""
        self._address, self._passed = address, passed
        if self._settings.backup:
            self._hub.health.shipping = Shipping(until=now_ms())
            self._hub.health.shipped_at = time.monotonic()
            self.keep(self._run, self._has_ended, lambda: not self._stopping)

    async def stop(self) -> None:
        """Let it store what is left, and end it. Safe to call twice."""
        self._stopping = True
        self.close_input()
        if await self.stopped(STOP_S):
            _log.warning("the last changes are not backed up: they are after the next start")

    async def _has_ended(self, status: int | str, ran_s: float) -> bool:
        _log.error("the process that backs up ended", status=str(status), ran_s=round(ran_s, 1))
        return True

    async def _run(self) -> int:
        process = self.process = await self._launcher.start(COMMAND, talks=True)
        assert process.stdin is not None
        assert process.stdout is not None
        start = ShipperStart(self._settings.to_json().decode(), self._address)
        process.stdin.write(msgspec.json.encode(start) + b"\n")
        if self._stopping:
            self.close_input()
        while line := await process.stdout.readline():
            report = _decode(line)
            last = self._hub.health.shipping
            report.until = report.until or (last.until if last is not None else 0)
            self._hub.health.shipping = report
            if not report.error:
                self._hub.health.shipped_at = time.monotonic()
            if report.passed:
                self._passed(report.error)
        return await process.wait()


def _passed(settings: Settings) -> str:
    """Why this server must not go on, as another has taken over; "" if none has."""
    from bunqueue.backup.primary import read_primary, superseded
    from bunqueue.backup.repository import Repository
    from bunqueue.backup.sealing import key_of
    from bunqueue.backup.targets import target_of

    folder = Path(settings.data_dir)
    copy = read_manifest(folder).copy if (folder / NAME).exists() else ""
    if not copy:
        return ""
    key = key_of(settings.backup_key, settings.backup_key_command)
    primary, _ = read_primary(Repository(target_of(settings.backup, hasty=True), key))
    return superseded(settings.backup, primary, copy) if primary.is_passed(copy) else ""

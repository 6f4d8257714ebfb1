"""A standby: this server follows what another one ships, shows it, and can be promoted.

A process keeps the folder up to date (`bunqueue.backup.following`). The shards show the files, and change
nothing (`shardproc.view`). From time to time they end, which takes moments, the process writes what it has
fetched meanwhile into the files, and they start again; commands wait for that. A promotion is the same, but
what starts again is the whole server.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from bunqueue.backup.follower import check_folder, followed
from bunqueue.backup.primary import read_primary
from bunqueue.backup.repository import Repository
from bunqueue.backup.sealing import KeyRefused, key_of
from bunqueue.backup.targets import TargetError, target_of
from bunqueue.logs import get_logger
from bunqueue.protocol.codec import encode_frame, request_id
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError
from bunqueue.protocol.commands.backups import Promoted, PromoteReply, PromoteStandby, StandbyView
from bunqueue.server.folder.data_folder import NAME, read_manifest
from bunqueue.server.host.systemd import notify
from bunqueue.server.links.pipe_messages import Following, OwnerObservation, StandbyOrder, StandbyStart
from bunqueue.server.settings.settings import Settings

from .clients.hub import Hub
from .clients.own_commands import refusal
from .core.hosts import Hosts
from .core.ports import Asks, LocalEndpoint
from .core.routing import HERE, Peek, decode
from .errors import BAD_USAGE, StartError
from .processes.child_process import ChildProcess
from .processes.launcher import PYTHON, Launcher

COMMAND = (*PYTHON, "bunqueue.backup.following")
REFRESH_S = 5.0  # at least, between two times that the shards start again ...
SHARE = 10  # ... or so many times of how long that takes
ALIVE_S = 15.0  # after its last sign of life the primary is taken for dead
AGAIN_S = 2.0  # between two tries
WAIT_USEC = 30_000_000  # added to systemd's timeout for a start that waits
ANSWER_S = 9.0  # less than clients wait for a reply
STOP_S = 3.0

_log = get_logger("standby")
_decode = msgspec.json.Decoder(Following).decode


class Processes(Protocol):
    """The supervisor, as far as it starts and ends the shards of a standby."""

    def run(self, index: int, observed: OwnerObservation | None) -> None: ...

    async def drain(self, index: int) -> None: ...


def resolved(settings: Settings) -> Settings:
    """The settings of a server with ``follow``: with as many shards as its primary has; or, once it has been
    promoted, those of a primary. Waits until somebody ships. StartError and DataFolderError."""
    folder, source = Path(settings.data_dir), settings.follow
    if (folder / NAME).exists() and (manifest := read_manifest(folder)).followed == source:
        _log.info("this server was promoted: it is the primary, and ships to where it followed", to=source)
        return msgspec.structs.replace(settings, follow="", backup=source, shards=manifest.shards)
    try:
        repository = Repository(target_of(source), key_of(settings.backup_key, settings.backup_key_command))
    except TargetError as error:
        raise StartError(f"follow: {error}", BAD_USAGE) from error
    check_folder(folder, source)
    found = followed(folder) if folder.is_dir() else None
    shards = found.shards if found is not None and found.base else _shards_of_primary(repository)
    return msgspec.structs.replace(settings, shards=shards, routers=1)


def _shards_of_primary(repository: Repository) -> int:
    where = repository.target.where
    said = ""
    while True:
        try:
            repository.open()
            primary, _ = read_primary(repository)
            if primary.base:
                return repository.backup(primary.base).shards
            reason = f"nobody ships there yet: start the primary with --backup {where}"
        except KeyRefused as error:
            raise StartError(f"follow: {error}", BAD_USAGE) from error
        except TargetError as error:
            reason = str(error)
        if reason != said:
            _log.warning("waits for a primary", follow=where, reason=reason)
            said = reason
        notify(f"STATUS=waits for a primary: {reason}\nEXTEND_TIMEOUT_USEC={WAIT_USEC}")
        time.sleep(AGAIN_S)


class FollowerProcess(ChildProcess):
    """The process that follows, and what it has reported last."""

    def __init__(self, settings: Settings, launcher: Launcher, on_report: Callable[[], None]) -> None:
        super().__init__()
        self._settings, self._launcher, self._on_report = settings, launcher, on_report
        self._stopping = False
        self._number = 0
        self._answered: asyncio.Future[str] | None = None  # what became of the last order
        self.report = Following()

    def start(self) -> None:
        self.keep(self._run, self._has_ended, lambda: not self._stopping)

    async def stop(self) -> None:
        self._stopping = True
        self.close_input()
        await self.stopped(STOP_S)

    async def order(self, what: Literal["apply", "claim", "finish"], *, force: bool = False) -> str:
        """Have something done; returns why it failed, or ""."""
        process = self.running
        if process is None or process.stdin is None:
            return "the process that follows is starting again"
        self._number += 1
        self._answered = asyncio.get_running_loop().create_future()
        process.stdin.write(msgspec.json.encode(StandbyOrder(self._number, what, force)) + b"\n")
        return await self._answered

    async def _has_ended(self, status: int | str, ran_s: float) -> bool:
        _log.error("the process that follows ended", status=str(status), ran_s=round(ran_s, 1))
        return True

    async def _run(self) -> int:
        process = self.process = await self._launcher.start(COMMAND, talks=True)
        assert process.stdin is not None
        assert process.stdout is not None
        start = StandbyStart(self._settings.to_json().decode())
        process.stdin.write(msgspec.json.encode(start) + b"\n")
        try:
            while line := await process.stdout.readline():
                report = self.report = _decode(line)
                if report.order == self._number:
                    self._answer(report.failed)
                self._on_report()
        finally:
            self._answer("the process that follows has ended")
        return await process.wait()

    def _answer(self, failed: str) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_result(failed)


class Standby(Hosts):
    """See above."""

    def __init__(
        self,
        hub: Hub,
        processes: Processes,
        launcher: Launcher,
        settings: Settings,
        restart: Callable[[], None],
    ) -> None:
        """``restart`` has the server begin again, with the settings that it was started with."""
        self._hub, self._processes, self._settings, self._restart = hub, processes, settings, restart
        self._follower = FollowerProcess(settings, launcher, self._reported)
        self._changed = asyncio.Event()  # there is a report, or a shard is up
        self._busy = asyncio.Lock()  # the files are written
        self._tasks: set[asyncio.Task[None]] = set()
        self._refresh_at = 0.0
        self._promotion: asyncio.Task[None] | None = None
        self._force = False

    # -- start and stop ---------------------------------------------------------------------------

    def owned_at_start(self, shards: int) -> range:
        return range(0)

    async def start(self) -> None:
        """Follow; returns once the shards show something."""
        self._follower.start()
        while not self._report.shards:
            await self._next_change()
            if self._report.error:
                notify(f"STATUS={self._report.error}\nEXTEND_TIMEOUT_USEC={WAIT_USEC}")
        if self._report.claimed:
            self._finish_soon()
            await asyncio.Event().wait()  # until the server restarts
        async with self._busy:
            if self._report.waiting:
                await self._insist("apply")
            await self._open()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await self._follower.stop()

    # -- what is known ----------------------------------------------------------------------------

    @property
    def _report(self) -> Following:
        return self._follower.report

    def standby(self) -> StandbyView:
        report = self._report
        return StandbyView(
            source=self._settings.follow,
            primary=report.primary,
            term=report.term,
            until=report.until,
            shown=report.shown,
            lag=round(1000 * report.behind_s),
            silent=round(1000 * report.silent_s),
            error=report.error or None,
        )

    def view_refusal(self) -> str:
        primary = f" at {self._report.primary}" if self._report.primary else ""
        return (
            f"this server is a standby, which takes no changes: send them to the primary{primary}, or make "
            "this one the primary with bunqueue promote"
        )

    def recovered(self, link: LocalEndpoint) -> bool:
        asyncio.get_running_loop().call_soon(self._changed.set)
        return True

    async def _next_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    # -- following --------------------------------------------------------------------------------

    def _reported(self) -> None:
        self._changed.set()
        report, now = self._report, asyncio.get_running_loop().time()
        if report.anew:
            _log.warning("begins anew", reason=report.error)
            self._restart()
        elif self._busy.locked() or not self._hub.shards.served:
            return
        elif report.claimed:
            self._finish_soon()
        elif report.waiting and now >= self._refresh_at:
            self._soon(self._refresh())

    def _soon(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _refresh(self) -> None:
        """Show what is new."""
        loop = asyncio.get_running_loop()
        async with self._busy:
            begun = loop.time()
            await self._close()
            await self._insist("apply")
            await self._open()
            now = loop.time()
            self._refresh_at = now + max(REFRESH_S, SHARE * (now - begun))

    async def _close(self) -> None:
        """End the shards; what is asked meanwhile waits."""
        for link in self._hub.shards.served_here:
            self._hub.pause(link)
        await asyncio.gather(*map(self._processes.drain, range(self._settings.shards)))

    async def _open(self) -> None:
        """Start the shards."""
        for shard in range(self._settings.shards):
            self._processes.run(shard, None)
        while self._hub.shards.missing:
            await self._next_change()

    async def _insist(self, what: Literal["apply", "finish"]) -> None:
        """Have something done that has to be done, however often it fails."""
        while failed := await self._follower.order(what, force=self._force):
            _log.error("what was fetched cannot be used; tried again", error=failed)
            await asyncio.sleep(AGAIN_S)

    # -- promotion --------------------------------------------------------------------------------

    def answers(self, peeked: Peek) -> bool:
        return peeked.handling == HERE and peeked.spec.request is PromoteStandby

    def answer_later(self, client: Asks, payload: bytes) -> None:
        self._soon(self._answer(client, payload))

    async def _answer(self, client: Asks, payload: bytes) -> None:
        try:
            command = decode(payload)
            assert isinstance(command, PromoteStandby)
            await self._claim(force=command.force)
            reply = PromoteReply(data=Promoted(self._report.term, self._report.until), req_id=command.req_id)
            frame = encode_frame(reply)
        except CommandError as error:
            frame = refusal(error, request_id(payload))
        if not client.finished:
            client.gathered(frame)

    async def _claim(self, *, force: bool) -> None:
        """Become the primary. CommandError if that cannot be."""
        report = self._report
        self._force = self._force or force
        if self._promotion is not None:
            return
        if not (force or report.claimed or report.stopped or report.silent_s >= ALIVE_S):
            raise CommandError(
                f"the primary{' at ' + report.primary if report.primary else ''} has given a sign of life "
                f"{report.silent_s:.0f} s ago: stop it first; if it is gone, try again in {ALIVE_S:.0f} s",
                Code.PRIMARY_ALIVE,
                retry_after=1000,
            )
        try:
            async with asyncio.timeout(ANSWER_S):
                failed = await self._follower.order("claim")
        except TimeoutError:
            failed = f"{self._settings.follow} has not answered within {ANSWER_S:g} s"
        if failed and not (force or self._report.claimed):
            raise CommandError(
                f"it cannot be promoted: {failed}; try again, or promote it all the same with --force",
                Code.UNAVAILABLE,
                retry_after=1000,
            )
        _log.warning("promoted: this server becomes the primary", term=self._report.term, force=force)
        self._finish_soon()

    def _finish_soon(self) -> None:
        if self._promotion is None:
            self._promotion = self._soon(self._finish())

    async def _finish(self) -> None:
        async with self._busy:
            await self._close()
            await self._insist("finish")
        self._restart()

"""The shard processes: starts them, watches them, restarts them when they die, drains them at the end.

The supervisor is independent of what it supervises: it knows processes and links, but no commands.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Awaitable, Sequence
from contextlib import suppress

import msgspec

from bunqueue.logs import get_logger
from bunqueue.server.host.systemd import notify
from bunqueue.server.links import shard_protocol as link_protocol
from bunqueue.server.links.pipe_messages import OwnerObservation, ShardStart
from bunqueue.server.settings.settings import Settings

from ..clients.hub import Hub
from ..core.ports import LocalEndpoint
from ..errors import StartError
from ..processes.child_process import ChildProcess
from ..processes.launcher import PYTHON, Launcher, Process
from ..processes.runtime_folder import RuntimeFolder
from .link import ShardLink

COMMAND = (*PYTHON, "shardproc")
GIVE_UP = 5  # failures in a row before READY: what keeps a shard from starting will not pass without help
PING_S = 1.0  # so a shard that receives nothing for longer knows that the router was paused
SILENT_PINGS = 30  # half a minute: far longer than the longest batch, so it hangs
PAUSED_S = 2.5  # between two pings: the router was stopped, and could receive nothing
WORDS_S = 0.5  # to read the last message of a process after its end
EXIT_S = 1.0  # for a process to end after it has closed its link
HAND_OVER_S = 15.0  # for a shard to give itself up; then it is killed, and another host takes it over
DRAIN_S = 10.0  # to answer, commit and exit; then it is killed, which loses nothing
REPORT_S = 1.0  # between two log lines about the progress of loading
WAIT_REPORT_S = 5.0  # and about what a shard waits for
WAIT_USEC = 30_000_000  # added to systemd's timeout for a start that waits for the store

_log = get_logger("router")


class ShardProcess(ChildProcess):
    """One shard: its process and its link, while it has any."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self.index = index
        self.link: ShardLink | None = None
        self.secret = ""  # of this start; a leftover process of an earlier start does not know it
        self.ready = False
        self.damaged: str | None = None  # why it must not be restarted
        self.wanted = True  # to be started again when it ends
        self.observed: OwnerObservation | None = None  # its owner until now, on another host
        self.unlinked = asyncio.Event()  # there is no link
        self.unlinked.set()
        self.last_words = ""  # why it ended, if it said so
        self.failures = 0  # in a row, before READY
        self.silent = 0  # pings without an answer
        self.started_at = self.reported_at = 0.0

    @property
    def was_ready(self) -> bool:
        return self.ready


class Supervisor:
    """All shards of the server."""

    def __init__(
        self, hub: Hub, settings: Settings, launcher: Launcher, command: Sequence[str] = COMMAND
    ) -> None:
        self._hub = hub
        self._settings = settings
        self._launcher = launcher
        self._command = command
        self._epoch = secrets.token_hex(16)  # distinguishes connections of this run from those of others
        self._shards = [ShardProcess(index) for index in range(settings.shards)]
        self._pinger: asyncio.Task[None] | None = None
        self._server: asyncio.Server | None = None
        self._folder: RuntimeFolder | None = None
        self._stopping = False
        self._links_gone = asyncio.Event()

    @property
    def folder(self) -> RuntimeFolder:
        """The folder with the sockets of the server's own processes; available after `start`."""
        assert self._folder is not None
        return self._folder

    async def start(self) -> None:
        """Start all shards; returns when all are ready. StartError if one cannot start."""
        loop = asyncio.get_running_loop()
        self._started: asyncio.Future[None] = loop.create_future()
        self._folder = RuntimeFolder()
        self._server = await loop.create_unix_server(lambda: ShardLink(self._hub, self), self._folder.socket)
        self._pinger = loop.create_task(self._ping())
        owned = self._hub.hosts.owned_at_start(len(self._shards))
        for index in owned:
            self._keep(self._shards[index])
        if owned:
            await self._started
        else:
            self._started.set_result(None)

    # For a host in a cluster

    def run(self, index: int, observed: OwnerObservation | None) -> None:
        """Own a shard, once its owner has ended; ``observed`` is what is known of that one."""
        shard = self._shards[index]
        shard.wanted, shard.failures, shard.damaged, shard.observed = True, 0, None, observed
        self._keep(shard).add_done_callback(lambda _: self._hub.hosts.stopped(index))

    def has(self, link: LocalEndpoint) -> bool:
        """Whether a link is still that to its shard's process."""
        return self._shards[link.shard].link is link

    def check_owner(self, index: int) -> None:
        """The owner that a shard's process waits for has given the shard up."""
        shard = self._shards[index]
        if shard.link is not None and not shard.ready:
            shard.link.control(link_protocol.OWNER_RELEASED)

    def end(self, index: int) -> None:
        """A shard's process is not needed."""
        self._shards[index].wanted = False
        self._shards[index].kill()

    async def hand_over(self, index: int) -> None:
        """Have a shard answer what it has, and give itself up."""
        await self._give_up(self._shards[index], link_protocol.HANDOVER)

    async def drain(self, index: int) -> None:
        """Have a shard answer what it has, and end."""
        await self._give_up(self._shards[index], link_protocol.DRAIN)

    async def _give_up(self, shard: ShardProcess, how: int) -> None:
        shard.wanted = False
        if shard.link is not None:
            shard.link.control(how)
        if shard.task is not None:
            _, late = await asyncio.wait([shard.task], timeout=HAND_OVER_S)
            if late:
                _log.warning("a shard did not give itself up in time and is killed", shard=shard.index)
                shard.kill()

    async def stop(self) -> None:
        """Drain the shards that run, end the others, and wait until all have ended."""
        if self._stopping:
            return
        self._stopping = True
        if self._pinger is not None:
            self._pinger.cancel()
        for shard in self._shards:
            if shard.ready and shard.link is not None:
                shard.link.control(link_protocol.DRAIN)
            else:
                shard.kill()
        await self._wait(DRAIN_S)
        if self._server is not None:
            self._server.close()
        self.remove_folder()

    async def _wait(self, limit_s: float) -> None:
        """Wait until the processes have ended and their last messages have been read."""
        tasks = [shard.task for shard in self._shards if shard.task is not None]
        for shard in self._shards:
            if shard.task is not None and (shard.process is None or shard.process.returncode is not None):
                shard.task.cancel()  # it waits to start the shard again
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=limit_s)
            for shard in self._shards:
                if late and shard.process is not None and shard.process.returncode is None:
                    _log.warning("shard did not stop in time and is killed", shard=shard.index)
                    shard.kill()
            await asyncio.wait(tasks)
        if any(shard.link for shard in self._shards):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._links_gone.wait(), EXIT_S)

    def kill(self) -> None:
        """End all at once; safe for the data, but replies may be lost."""
        for shard in self._shards:
            shard.kill()
        self.remove_folder()

    def remove_folder(self) -> None:
        """Remove the folder with the socket that the shards connect to."""
        if self._folder is not None:
            self._folder.remove()

    # One shard

    def _keep(self, shard: ShardProcess) -> asyncio.Task[None]:
        """Run a shard, again and again."""

        def run() -> Awaitable[int]:
            return self._run(shard)

        def ended(status: int | str, ran_s: float) -> Awaitable[bool]:
            return self._has_ended(shard, status, ran_s)

        return shard.keep(run, ended, lambda: shard.wanted and not self._stopping)

    async def _has_ended(self, shard: ShardProcess, status: int | str, ran_s: float) -> bool:
        """A shard's process has ended; whether it is started again."""
        shard.observed = None  # it was of another time
        if shard.damaged is not None:
            self._set_aside(shard.index, shard.damaged)
            return False
        await self._until_read(shard)
        reason = self._hub.health.deaths.note(shard.index, status, shard.last_words)
        shard.failures = 0 if shard.ready else shard.failures + 1
        figures = {"status": status, "was_ready": shard.ready, "ran_s": round(ran_s, 1)}
        _log.error("shard ended", shard=shard.index, **figures, reason=reason)
        if (status != link_protocol.NEVER and shard.failures < GIVE_UP) or self._started.done():
            return True
        text = f"shard {shard.index} cannot open its data; the log line above says why"
        if status != link_protocol.NEVER:
            text = f"shard {shard.index} ended {GIVE_UP} times before it was ready (last status {status})"
            text += "; the log lines above say why"
        self._started.set_exception(StartError(text))
        return False

    async def _until_read(self, shard: ShardProcess) -> None:
        """A process has ended: wait for its last message, which may still arrive."""
        with suppress(TimeoutError):
            await asyncio.wait_for(shard.unlinked.wait(), WORDS_S)

    def _set_aside(self, shard: int, text: str) -> None:
        """A shard whose file is damaged would end again and again: the others continue without it."""
        self._hub.shards.damaged[shard] = text
        self._hub.siblings.shard_damaged(shard, text)
        _log.error("shard is out of service", shard=shard, error=text)
        if self._started.done():
            return
        if self._settings.damaged_shard == "stop" or len(self._hub.shards.damaged) == len(self._shards):
            self._started.set_exception(StartError(text))
        else:
            self._begin()

    def _begin(self) -> None:
        """The start is over as soon as no shard is waited for."""
        if not self._started.done() and not self._hub.shards.missing:
            self._started.set_result(None)

    async def _run(self, shard: ShardProcess) -> int:
        """Run one process, from start to end; returns its exit status, negative for a signal."""
        shard.last_words = ""
        shard.ready, shard.silent, shard.secret = False, 0, secrets.token_hex(16)
        shard.started_at = shard.reported_at = asyncio.get_running_loop().time()
        process = shard.process = await self._launcher.start(self._command)
        if self._stopping:
            shard.kill()
        assert process.stdin is not None
        with suppress(ConnectionError, RuntimeError):  # uvloop's error for a closed pipe
            process.stdin.write(self._handover(shard))
            await process.stdin.drain()
            process.stdin.close()
        return await process.wait()

    def _handover(self, shard: ShardProcess) -> bytes:
        """The settings that a shard gets when it starts."""
        assert self._folder is not None
        start = ShardStart(
            shard=shard.index,
            shards=len(self._shards),
            socket=self._folder.socket,
            secret=shard.secret,
            epoch=self._epoch,
            settings=self._settings.to_json().decode(),
            observed=shard.observed,
            routers=self._folder.shard(shard.index) if self._settings.routers > 1 else "",
            in_cluster=bool(self._settings.cluster),
            view=self._hub.hosts.view_refusal(),
        )
        return msgspec.json.encode(start)

    async def _ping(self) -> None:
        """Check regularly that each shard still answers.

        Counts pings and not seconds: after the whole machine slept, silence counts against no shard.
        """
        loop = asyncio.get_running_loop()
        while True:
            begun = loop.time()
            await asyncio.sleep(PING_S)
            if (paused_s := loop.time() - begun) > PAUSED_S:
                self._hub.resumed(paused_s)
            for shard in self._shards:
                if not shard.ready or shard.link is None:
                    continue
                shard.silent = 0 if shard.link.active else shard.silent + 1
                shard.link.active = False
                if shard.silent >= SILENT_PINGS:
                    _log.error("shard does not answer and is killed", shard=shard.index)
                    shard.kill()
                shard.link.control(link_protocol.PING)

    # Called by the links

    def greeted(self, link: ShardLink, hello: link_protocol.ShardHello) -> bool:
        if not 0 <= hello.shard < len(self._shards):
            return False
        shard = self._shards[hello.shard]
        if shard.link is not None or not hmac.compare_digest(hello.secret.encode(), shard.secret.encode()):
            return False
        shard.link = link
        shard.unlinked.clear()
        link.secret = shard.secret
        self._links_gone.clear()
        return True

    def progressed(self, link: ShardLink, progress: link_protocol.ShardProgress) -> None:
        shard, now = self._shards[link.shard], asyncio.get_running_loop().time()
        if now - shard.reported_at >= REPORT_S:
            shard.reported_at = now
            _log.info("shard is loading", shard=shard.index, loaded=progress.loaded, total=progress.total)

    def recovered(self, link: ShardLink) -> None:
        shard = self._shards[link.shard]
        shard.ready = True
        if self._hub.hosts.recovered(link):
            self._hub.link_up(link)
        took = asyncio.get_running_loop().time() - shard.started_at
        _log.info("shard ready", shard=shard.index, took_ms=round(took * 1000))
        self._begin()

    def waiting(self, link: ShardLink, text: str) -> None:
        shard, now = self._shards[link.shard], asyncio.get_running_loop().time()
        notify(f"STATUS=shard {shard.index} waits: {text}\nEXTEND_TIMEOUT_USEC={WAIT_USEC}")
        if now - shard.reported_at >= WAIT_REPORT_S:
            shard.reported_at = now
            _log.warning("shard waits", shard=shard.index, reason=text)

    def ending(self, link: ShardLink, text: str) -> None:
        self._shards[link.shard].last_words = text

    def damaged(self, link: ShardLink, text: str) -> None:
        shard = self._shards[link.shard]
        shard.damaged = text
        shard.kill()

    def lost(self, link: ShardLink) -> None:
        shard = self._shards[link.shard]
        shard.link = None
        shard.unlinked.set()
        self._hub.link_down(link)
        self._hub.hosts.ended(link.shard)
        if not any(shard.link for shard in self._shards):
            self._links_gone.set()
        if not self._stopping:
            asyncio.get_running_loop().call_later(EXIT_S, self._finish_off, shard, shard.process)

    def _finish_off(self, shard: ShardProcess, process: Process | None) -> None:
        """Kill the process of a shard that has lost its link, as it is of no use."""
        if shard.process is process:
            shard.kill()

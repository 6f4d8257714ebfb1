"""The secondary routers' processes: the first router starts them, watches them, and restarts them when they
die."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import msgspec

from bunqueue.logs import get_logger
from bunqueue.server.links import router_protocol as router_link
from bunqueue.server.links import shard_protocol as link_protocol
from bunqueue.server.settings.settings import Settings

from ..clients.hub import Hub
from ..clients.listener import TcpListener
from ..core.ports import Endpoint
from ..core.siblings import Row, Siblings
from ..errors import StartError
from ..processes.child_process import ChildProcess
from ..processes.launcher import PYTHON, Launcher
from ..processes.runtime_folder import RuntimeFolder
from .link import connected
from .peer import PeerRouter
from .shared_figures import SharedFigures

COMMAND = (*PYTHON, "router.secondary")
PING_S = 1.0
SILENT_PINGS = 15  # far longer than the largest command takes, so it hangs
GIVE_UP = 3  # failures before the first start: what keeps it from starting will not pass without help
STOP_S = 4.0  # after the shards have ended, for clients to take their last replies

_log = get_logger("router")


class RouterProcess(ChildProcess):
    """One secondary router."""

    def __init__(self, number: int, sockets: Sequence[socket.socket]) -> None:
        super().__init__()
        self.number = number
        self.sockets = sockets  # on which it accepts clients
        self.link: PeerRouter | None = None
        self.silent = 0  # pings without an answer
        self.begun = False
        self.incarnation = 0  # number of times that it was started
        self.taken_over = False  # the first router accepts clients in its place
        self.failures = 0


class SecondaryRouters(Siblings):
    """All of them, as the first router sees them."""

    def __init__(
        self,
        hub: Hub,
        settings: Settings,
        listener: TcpListener,
        sockets: Sequence[Sequence[socket.socket]],
        folder: RuntimeFolder,
        launcher: Launcher,
    ) -> None:
        self._hub, self._settings, self._listener, self._folder = hub, settings, listener, folder
        self._launcher = launcher
        self._routers = [RouterProcess(number, some) for number, some in enumerate(sockets, 1)]
        self._table = SharedFigures(folder.table, settings.routers, 0)
        self._pausing: dict[int, tuple[set[PeerRouter], Callable[[], None]]] = {}
        self._stopping = False
        self._pinger: asyncio.Task[None] | None = None
        hub.unauthenticated.on_wrong_token.append(self._tell_of_wrong_token)

    # Start and stop

    async def start(self) -> None:
        """Start them; returns when all accept clients. StartError if one cannot be started."""
        loop = asyncio.get_running_loop()
        self._started: asyncio.Future[None] = loop.create_future()
        for router in self._routers:
            self._keep(router)
        self._pinger = loop.create_task(self._ping())
        await self._started

    def stop_reading(self) -> None:
        """Have them send no more commands."""
        self._stopping = True
        for link in self._links:
            link.send(router_link.STOP)

    async def stop(self) -> None:
        """The shards have ended: wait for them to deliver what was answered."""
        self._stopping = True
        if self._pinger is not None:
            self._pinger.cancel()
        await asyncio.gather(*(router.stopped(STOP_S) for router in self._routers))

    def kill(self) -> None:
        """End all at once."""
        for router in self._routers:
            router.kill()

    def _keep(self, router: RouterProcess) -> None:
        """Run one, again and again."""

        def run() -> Awaitable[int]:
            return self._run(router)

        def ended(status: int | str, ran_s: float) -> Awaitable[bool]:
            return self._has_ended(router, status, ran_s)

        router.keep(run, ended, lambda: not self._stopping)

    async def _has_ended(self, router: RouterProcess, status: int | str, ran_s: float) -> bool:
        """A process has ended; whether it is started again."""
        self._table.clear(router.number)
        router.failures += 1
        _log.error(
            "a secondary router ended", number=router.number, status=str(status), ran_s=round(ran_s, 1)
        )
        if not self._started.done():
            if router.failures >= GIVE_UP:
                text = f"router {router.number} ended {GIVE_UP} times at its start (last status {status})"
                self._started.set_exception(StartError(f"{text}; the log lines above say why"))
                return False
        elif not router.taken_over:
            router.taken_over = True
            self._listener.take_over(router.sockets)
        return True

    async def _run(self, router: RouterProcess) -> int:
        """Run one process, from start to end; returns its exit status, negative for a signal."""
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        router.begun, router.silent = False, 0
        sockets = [sock.fileno() for sock in router.sockets]
        with its:
            files = [its.fileno(), *sockets]
            process = router.process = await self._launcher.start(COMMAND, files=files)
            start = router_link.Start(
                number=router.number,
                origin=self._hub.clients.origin,
                incarnation=router.incarnation,
                link=its.fileno(),
                sockets=sockets,
                table=self._folder.table,
                settings=self._settings.to_json().decode(),
            )
            router.incarnation += 1
        link = router.link = await connected(PeerRouter(self._hub, self, router.number), ours)
        if self._stopping:
            router.kill()
        assert process.stdin is not None
        with suppress(ConnectionError, RuntimeError):  # uvloop's error for a closed pipe
            process.stdin.write(msgspec.json.encode(start))
            await process.stdin.drain()
            process.stdin.close()
        for shard, text in self._hub.shards.damaged.items():
            link.send(router_link.SHARD_DAMAGED, text.encode(), shard=shard)
        for serving in self._hub.shards.served:
            link.send_up(self._up(serving), serving.shard)
        link.send(router_link.BEGIN)
        status = await process.wait()
        link.abort()
        return status

    async def _ping(self) -> None:
        """Count pings and not seconds: after the whole machine slept, silence counts against nobody."""
        while True:
            await asyncio.sleep(PING_S)
            for router in self._routers:
                link = router.link
                if link is None or link.gate.closed:  # its messages are not read now
                    continue
                router.silent = 0 if link.active else router.silent + 1
                link.active = False
                if router.silent >= SILENT_PINGS:
                    _log.error("a secondary router does not answer and is killed", number=router.number)
                    router.kill()
                link.send(router_link.PING)

    # Called by the links

    def begun(self, link: PeerRouter) -> None:
        """It accepts clients."""
        router = self._routers[link.number - 1]
        router.begun = True
        if router.taken_over:
            router.taken_over = False
            self._listener.give_back(router.sockets)
        _log.info("a secondary router is ready", number=router.number)
        if not self._started.done() and all(router.begun for router in self._routers):
            self._started.set_result(None)

    def disconnected(self, link: PeerRouter) -> None:
        """Its process has ended, or is about to."""
        router = self._routers[link.number - 1]
        if router.link is link:
            router.link = None
            router.kill()
        for shard in list(self._pausing):
            self.shard_paused(link, shard)
        self._hub.hosts.connections_changed()

    def wrong_token(self, address: str, sender: PeerRouter) -> None:
        """A wrong token was presented to one router."""
        self._hub.unauthenticated.wrong_elsewhere(address, sender)

    def _tell_of_wrong_token(self, address: str, told_by: object) -> None:
        for link in self._links:
            if link is not told_by:
                link.send(router_link.WRONG_TOKEN, address.encode())

    def shard_paused(self, link: PeerRouter, shard: int) -> None:
        """A router has stopped sending to a shard."""
        waiting, done = self._pausing.get(shard, (set(), None))
        waiting.discard(link)
        if done is not None and not waiting:
            del self._pausing[shard]
            done()

    # Messages to them

    @property
    def _links(self) -> list[PeerRouter]:
        return [router.link for router in self._routers if router.link is not None]

    @property
    def others(self) -> Sequence[Row]:
        return self._table.rows[1:]

    @property
    def all_connections(self) -> int:
        return self._table.connections

    def joined(self, number: int, connections: int) -> None:
        self._table.connected(connections)

    def left(self, number: int, connections: int) -> None:
        self._table.connected(connections)

    def of(self, number: int) -> PeerRouter | None:
        return self._routers[number - 1].link if 0 < number <= len(self._routers) else None

    @property
    def connections(self) -> list[int]:
        return [conn for link in self._links for conn in link.live]

    def relay(self, shard: int, kind: int, body: bytes) -> None:
        """EVENTS, or that answers are LOST."""
        frames = b""
        match kind:
            case link_protocol.EVENTS:
                conns, frames = link_protocol.unpack_events(body)
            case _:
                conns = link_protocol.unpack_connections(body)
        for link in self._links:
            some = [conn for conn in conns if self._hub.sibling_of(conn) is link]
            if some and frames:
                body = link_protocol.pack_events(some, [frames])
            elif some:
                body = link_protocol.pack_connections(some)
            if some:
                link.from_shard(shard, link_protocol.CONTROL, kind, 0, 0, body)

    def shard_up(self, shard: Endpoint) -> None:
        for link in self._links:
            link.send_up(self._up(shard), shard.shard)

    def _up(self, shard: Endpoint) -> router_link.Up:
        here = self._hub.shards.local(shard.shard)
        if here is shard:
            return router_link.Up(self._folder.shard(shard.shard), here.secret, shard.epoch)
        return router_link.Up("", "", shard.epoch)

    def shard_down(self, shard: Endpoint) -> None:
        for link in self._links:
            link.send(router_link.SHARD_DOWN, shard.epoch.to_bytes(8), shard=shard.shard)

    def pause(self, shard: int, done: Callable[[], None]) -> None:
        waiting = set(self._links)
        self._pausing[shard] = waiting, done
        for link in waiting:
            link.send(router_link.MOVING, shard=shard)
        if not waiting:
            del self._pausing[shard]
            done()

    def shard_damaged(self, shard: int, text: str) -> None:
        for link in self._links:
            link.send(router_link.SHARD_DAMAGED, text.encode(), shard=shard)

    def read_files_again(self) -> None:
        for link in self._links:
            link.send(router_link.RENEW)

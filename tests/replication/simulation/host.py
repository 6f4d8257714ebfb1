"""A machine with a router and the processes of all shards, on their own or as the second one of a log.

The router is a small one: it carries what real ones carry, loses what was on its way to a shard that has
died, cuts the connections whose answers nobody knows any more, and starts the shard again.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import msgpack
from replication.simulated_log import SimulatedLog
from replication.simulation.parts import Disk, HostClock, SimulatedLink, Socket
from replication.simulation.scheduler import Scheduler, Task

from bunqueue.server.links import shard_protocol as link
from shardproc.core import StorageFailed
from shardproc.replication.errors import Fenced, LogDamaged, LogShorter
from shardproc.replication.replay import applied
from shardproc.replication.replicated_server import ReplicatedServer
from shardproc.replication.replicated_shard import ReplicatedShard
from shardproc.replication.start import catch_up

RESTART_S = 0.1
PING_S = 1.0


@dataclass(frozen=True)
class Kinds:
    """What a process is made of: the real things, or some with a seeded bug."""

    shard: type[ReplicatedShard] = ReplicatedShard
    server: type[ReplicatedServer] = ReplicatedServer
    link: type[SimulatedLink] = SimulatedLink
    checks_epochs: bool = True


class NoSnapshots:
    """The world makes them."""

    def check(self, appended: int) -> None:
        pass


@dataclass(eq=False)
class Connection:
    """A client's, as the router has it."""

    number: int
    host: Host
    used: dict[int, int] = field(default_factory=dict)  # shard -> commands in flight
    replies: dict[str, dict[str, Any]] = field(default_factory=dict)
    is_cut: bool = False


class Process:
    """One life of one shard on a machine."""

    def __init__(self, host: Host, number: int) -> None:
        self.host, self.number = host, number
        self.ready = False
        self.log: SimulatedLink | None = None
        self._splitter = link.EnvelopeSplitter(link.TO_ROUTER)
        self.socket = Socket(host.scheduler, self._sent)
        self.task = host.scheduler.spawn(self._run, mortal=True, ahead_s=host.ahead_s)
        host.alive[number] = self
        host.lives += 1
        self.token = f"{host.identity}/{host.lives}"

    def _sent(self, data: bytes) -> None:
        for (conn, kind, replies, _), body in self._splitter.feed(data):
            self.host.heard(self, conn, kind, replies, body)

    def tell(self, kind: int, body: bytes = b"", conn: int = link.CONTROL) -> None:
        self.socket.put(link.envelope(conn, kind, body))

    def _run(self) -> None:
        try:
            self._live()
        except (ConnectionError, Fenced, StorageFailed):
            pass
        finally:
            if self.log is not None:
                self.log.close()
            self.host.alive[self.number] = None
            self.host.ended(self)

    def _live(self) -> None:
        host, kinds = self.host, self.host.kinds
        log, disk = host.logs[self.number], host.disks[self.number]
        host.fetch_snapshot(self.number)
        self.log = kinds.link(host.scheduler, log, lambda: host.scheduler.now < host.cut_off_until)
        position = position_of(disk.image)
        try:
            opened = catch_up(
                ":memory:", self.log, self.token, self.socket, lambda text: None, kind=disk.kind
            )  # type: ignore[arg-type]
        except LogDamaged as error:
            snapshot = log.visible.snapshot
            if isinstance(error, LogShorter) or snapshot is None or snapshot.position <= position:
                raise
            return  # it waited for so long that it needs a newer snapshot: its next life fetches that
        shard = kinds.shard(
            opened.database,
            opened.recorder,
            opened.log,
            opened.preloaded,
            shard=self.number,
            shards=len(host.logs),
            full_sync=False,
            clock=HostClock(host.scheduler, host.ahead_ms, host.name),
            chance=host.scheduler.rng.random,
        )
        try:
            shard.recover(shard.now(), host.epoch, lambda loaded, total: None)
            self.socket.sendall(link.answer(link.CONTROL, link.READY))
            kinds.server(shard, self.socket, NoSnapshots()).run()  # type: ignore[arg-type]
        finally:
            shard.close()


class Host:
    """``ahead_s`` and ``ahead_ms``: of its monotonic and of its wall clock."""

    def __init__(
        self, scheduler: Scheduler, name: str, logs: list[SimulatedLog], kinds: Kinds, ahead_ms: int
    ) -> None:
        self.scheduler, self.name, self.logs, self.kinds = scheduler, name, logs, kinds
        self.ahead_ms, self.ahead_s = ahead_ms, scheduler.rng.random() * 1000
        self.identity, self.epoch = f"{name}-0", ""
        self.lives = self._starts = self._folders = 0
        self.disks = [Disk(scheduler) for _ in logs]
        self.processes: list[Process | None] = [None for _ in logs]  # of the router that runs
        self.alive = self.processes.copy()  # those of an earlier router, too
        self.connections: dict[int, Connection] = {}
        self.cut_off_until = 0.0  # from the logs
        self.is_on = False
        self.listens = False  # for clients: as soon as all shards are ready
        self._last_number = 0

    # -- its life

    def start(self) -> None:
        """Start the router, which starts the shards as soon as those of an earlier one have ended."""
        assert not self.is_on
        self._starts += 1
        self.epoch = f"{self.name}.{self._starts}"
        self.is_on = True
        for number in range(len(self.logs)):
            self._start_shard(number, self.epoch)
        self.scheduler.later(PING_S, lambda: self._ping(self.epoch))

    def _start_shard(self, number: int, epoch: str) -> None:
        if not self.is_on or epoch != self.epoch:
            return
        if self.alive[number] is not None:  # it has the file
            self.scheduler.later(RESTART_S, lambda: self._start_shard(number, epoch))
            return
        self.processes[number] = Process(self, number)

    def _ping(self, epoch: str) -> None:
        if not self.is_on or epoch != self.epoch:
            return
        for process in self.processes:
            if process is not None and process.ready:
                process.tell(link.PING)
        self.scheduler.later(PING_S, lambda: self._ping(epoch))

    def lose_router(self) -> None:
        """SIGKILL to the router alone: its shards notice that, and end."""
        self.is_on = self.listens = False
        self._cut_all()
        processes, self.processes = self.processes, [None for _ in self.logs]
        for process in processes:
            if process is not None:
                process.socket.is_cut = True

    def lose_power(self, tasks: list[Task]) -> None:
        """All its processes are gone."""
        self.lose_router()
        for task in tasks:
            task.kill()

    def stop(self) -> None:
        """In order: the shards are told to end."""
        self.is_on = self.listens = False
        self._cut_all()
        for process in self.processes:
            if process is not None and process.ready:
                process.tell(link.DRAIN)
            elif process is not None:
                process.task.kill()
        self.processes = [None for _ in self.logs]

    def lose_folder(self) -> None:
        """Its data folder is deleted while nothing runs; it begins another one."""
        self._folders += 1
        self.identity = f"{self.name}-{self._folders}"
        for disk in self.disks:
            assert disk.user is None
            disk.image = b""

    def fetch_snapshot(self, number: int) -> None:
        """As the real start does."""
        snapshot, disk = self.logs[number].visible.snapshot, self.disks[number]
        if snapshot is not None and snapshot.position > position_of(disk.image):
            disk.image = snapshot.image

    def ended(self, process: Process) -> None:
        number, epoch = process.number, self.epoch
        if self.processes[number] is not process:
            return
        self.processes[number] = None
        for connection in list(self.connections.values()):
            if connection.used.get(number):
                self._cut(connection)
        self.scheduler.later(RESTART_S, lambda: self._start_shard(number, epoch))

    # -- connections of clients

    def connect(self) -> Connection:
        self._last_number += 1
        connection = self.connections[self._last_number] = Connection(self._last_number, self)
        return connection

    def _cut(self, connection: Connection) -> None:
        """To the shards it is severed: its client may come back."""
        connection.is_cut = True
        del self.connections[connection.number]
        for shard in connection.used:
            process = self.processes[shard]
            if process is not None and process.ready:
                process.tell(link.SEVERED, conn=connection.number)

    def _cut_all(self) -> None:
        for connection in self.connections.values():
            connection.is_cut = True
        self.connections.clear()

    def command(self, connection: Connection, shard: int, payload: bytes) -> bool:
        """Hand a command to a shard; False when that is not there."""
        process = self.processes[shard]
        if process is None or not process.ready:
            return False
        connection.used[shard] = connection.used.get(shard, 0) + 1
        frame = len(payload).to_bytes(4, "big") + payload
        process.tell(link.COMMANDS_V3, frame, connection.number)
        return True

    # -- what a shard says

    def heard(self, process: Process, conn: int, kind: int, replies: int, body: bytes) -> None:
        if self.processes[process.number] is not process:
            return  # of a router that is gone
        if conn != link.CONTROL:
            if connection := self.connections.get(conn):
                self._deliver(connection, process.number, replies, body)
        elif kind == link.READY:
            self._link_up(process)
        elif kind == link.TO_PEER:
            peer = self.processes[body[0]]
            if peer is not None and peer.ready:
                peer.tell(link.PEER_MESSAGE, bytes((process.number,)) + body[1:])
        elif kind == link.LOST:
            for number in link.unpack_connections(body):
                if connection := self.connections.get(number):
                    self._cut(connection)

    def _deliver(self, connection: Connection, shard: int, replies: int, body: bytes) -> None:
        connection.used[shard] -= replies
        for payload in link.split_frames(body):
            reply = msgpack.unpackb(payload, strict_map_key=False)
            if req_id := reply.pop("reqId", None):
                connection.replies[req_id] = reply

    def _link_up(self, process: Process) -> None:
        process.tell(link.LIVE, link.pack_connections(list(self.connections)))
        process.ready = True
        for other in self.processes:
            if other is not None and other.ready and other is not process:
                other.tell(link.PEER, bytes((process.number,)))
                process.tell(link.PEER, bytes((other.number,)))
        if all(other is not None and other.ready for other in self.processes):
            self.listens = True


def position_of(image: bytes) -> int:
    """That of the last record in a file; -1 without one."""
    if not image:
        return -1
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.deserialize(image)
        return applied(connection)

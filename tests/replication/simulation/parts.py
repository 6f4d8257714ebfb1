"""What a shard's process has from its machine: a file, a clock, a socket, a connection to the log."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

from replication.simulated_log import Link, SimulatedLog
from replication.simulation.scheduler import START_MS, Killed, Ready, Scheduler

from shardproc.clock import Clock, Mark
from shardproc.replication.owner import Answer, Connect, Request, Uncertain
from shardproc.replication.recorder import RecordingConnection


class Disk:
    """One shard's file on one machine: what was committed, whatever becomes of its process."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.image = b""
        self.user: SimulatedConnection | None = None
        self.kind = type("SimulatedConnection", (SimulatedConnection,), {"disk": self})

    def committed(self) -> bytes | None:
        """The file, as a reader sees it; None while a transaction is open."""
        if self.user is None:
            return self.image
        return None if self.user.in_transaction else self.user.content()


class SimulatedConnection(RecordingConnection):
    """The connection to a `Disk`.  A process may die before its commit, and after it."""

    disk: Disk

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        assert self.disk.user is None, "two processes write to one file"
        if self.disk.image:
            self.deserialize(self.disk.image)
        self.disk.user = self

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        if sql != "commit":
            return super().execute(sql, parameters)
        self.disk.scheduler.moment()
        cursor = super().execute(sql, parameters)
        self.disk.scheduler.moment()
        return cursor

    def close(self) -> None:
        if self.disk.user is self:
            if self.in_transaction:
                sqlite3.Connection.execute(self, "rollback")
            self.disk.image, self.disk.user = self.content(), None
        super().close()

    def content(self) -> bytes:
        (pages,) = sqlite3.Connection.execute(self, "pragma page_count").fetchone()
        return self.serialize() if pages else b""


class HostClock(Clock):
    """The wall clock of a machine, which is ahead of the others by some ms, or behind."""

    __slots__ = ("_ahead", "_boot", "_scheduler")

    def __init__(self, scheduler: Scheduler, ahead_ms: int, boot: str) -> None:
        self._scheduler, self._ahead, self._boot = scheduler, ahead_ms, boot

    def now_ms(self) -> int:
        return START_MS + self._ahead + int(self._scheduler.now * 1000)

    def check_jump(self) -> int:
        return 0

    def _mark(self, uncertainty: int = 0) -> Mark:
        return Mark(self.now_ms(), int(self._scheduler.now * 1000), self._boot, uncertainty)


class Socket:
    """A process's end of its socket to the router."""

    def __init__(self, scheduler: Scheduler, heard: Callable[[bytes], None]) -> None:
        self.scheduler = scheduler
        self._heard = heard
        self._arrived = bytearray()
        self.is_cut = False  # the router is gone
        self._descriptor = scheduler.descriptor(lambda: bool(self._arrived) or self.is_cut)

    def put(self, data: bytes) -> None:
        """The router sends something."""
        self._arrived += data

    def fileno(self) -> int:
        return self._descriptor

    def recv_into(self, buffer: memoryview) -> int:
        """All that is there, or a part of it."""
        rng = self.scheduler.rng
        size = len(self._arrived) if rng.random() < 0.8 else rng.randint(1, max(1, len(self._arrived)))
        size = min(size, len(self._arrived), len(buffer))
        buffer[:size] = self._arrived[:size]
        del self._arrived[:size]
        return size

    def recv(self, size: int, flags: int = 0) -> bytes:
        found = bytes(self._arrived[:size])
        if not flags:
            del self._arrived[:size]
        return found

    def sendall(self, data: bytes) -> None:
        """A process may die when the router has a part of it."""
        if self.is_cut:
            raise BrokenPipeError
        try:
            self.scheduler.moment()
        except Killed:
            self._heard(data[: self.scheduler.rng.randint(0, len(data))])
            raise
        if self.is_cut:  # by now
            raise BrokenPipeError
        self._heard(data)
        self.scheduler.moment()


class SimulatedLink:
    """Carries an owner's requests to a `SimulatedLog`."""

    wants_write = False

    def __init__(self, scheduler: Scheduler, log: SimulatedLog, is_cut_off: Ready) -> None:
        """``is_cut_off``: nothing passes, and nobody says so."""
        self._scheduler, self._log, self._is_cut_off = scheduler, log, is_cut_off
        self._link: Link | None = None
        self._descriptor = scheduler.descriptor(self._is_ready)

    def _is_ready(self) -> bool:
        link = self._link
        return link is not None and not self._is_cut_off() and (bool(link.answers) or link.is_cut)

    @property
    def fileno(self) -> int | None:
        return None if self._link is None else self._descriptor

    def send(self, request: Request) -> Answer | None:
        self._scheduler.moment()
        if isinstance(request, Connect):
            self.close()
            self._link = self._log.connect()
        assert self._link is not None
        if self._is_cut_off():
            return None
        if self._link.is_cut:
            self.close()
            return Uncertain("the connection ended")
        self._log.send(self._link, request)
        self._scheduler.moment()
        return None

    def receive(self) -> Answer | None:
        if self._link is None or not self._is_ready():
            return None
        if self._link.answers:
            answer = self.understood(self._link.answers.pop(0))
        else:
            answer = Uncertain("the connection ended")
        if isinstance(answer, Uncertain):
            self.close()
        self._scheduler.moment()
        return answer

    def understood(self, answer: Answer) -> Answer:
        return answer

    def close(self) -> None:
        if self._link is not None:
            self._link.is_open = False
        self._link = None

"""Embedded mode: a shard inside your own process, engine and storage without sockets.

All queues and workers of a process that name the same file share one engine, also from several
event loops and threads.  The guarantees are the server's: a call returns after its commit.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
import threading
from asyncio import AbstractEventLoop, Future, TimerHandle
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Raw, Struct
from msgspec.msgpack import Encoder

from bunqueue.errors import ConnectionLost

if TYPE_CHECKING:
    from shardproc.core import Shard

MEMORY = ":memory:"
VERSION = 2  # of the protocol: the shape of answers

_encode = Encoder().encode


class EmbeddedEngine:
    """One open file, shared by the sessions of this process.

    Calls made within one turn of an event loop are one batch and one transaction.
    """

    def __init__(self, path: str) -> None:
        from shardproc.core import Shard

        if path != MEMORY:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._shard: Shard = Shard(path, full_sync=False)
        self._shard.recover(self._shard.now(), secrets.token_hex(8), lambda loaded, total: None)
        self._shard.engine.adopt((), self._shard.now())
        self._sessions: dict[int, EmbeddedTransport] = {}
        self._numbers = itertools.count(1)
        self._timers: dict[AbstractEventLoop, TimerHandle] = {}

    @property
    def inherited(self) -> bool:
        """Whether this process is a child of the one that opened the file, which it must not touch."""
        return self._pid != os.getpid()

    def abandon(self) -> None:
        """In a forked child: keep the parent's lock on the file from lasting as long as the child."""
        self._shard.store.database.abandon()

    def join(self) -> EmbeddedTransport:
        """A new session for the running event loop."""
        with self._lock:
            session = EmbeddedTransport(self, next(self._numbers), asyncio.get_running_loop())
            self._sessions[session.conn] = session
            self._arm(session.loop)
        return session

    def leave(self, session: EmbeddedTransport) -> bool:
        """End a session; True when it was the last and the file is closed."""
        with self._lock:
            if self._sessions.pop(session.conn, None) is None:
                return False
            self._shard.engine.disconnect(session.conn, self._shard.now(), severed=False)
            self._deliver(session.loop)
            return self.close_if_idle()

    def close_if_idle(self) -> bool:
        """Close the file if nobody has a session; whether it is closed now."""
        with self._lock:
            if self._sessions:
                return False
            for timer in self._timers.values():
                timer.cancel()
            self._shard.close()
            return True

    def run(self, session: EmbeddedTransport, payloads: list[bytes]) -> None:
        """Carry out commands of a session, commit, and give all sessions their replies."""
        with self._lock:
            shard = self._shard
            now = shard.tick()
            client = shard.client(session.conn, VERSION)
            for payload in payloads:
                shard.execute(client, payload, now)
            self._deliver(session.loop)

    def _tick(self, loop: AbstractEventLoop) -> None:
        with self._lock:
            if self._sessions and not self.inherited:
                self._shard.tick()
                self._shard.work()
                self._deliver(loop)

    def _deliver(self, loop: AbstractEventLoop) -> None:
        for conn, reply in self._shard.commit():
            session = self._sessions.get(conn)
            if session is None or not isinstance(reply.req_id, Raw):
                continue
            key, payload = bytes(reply.req_id), _encode(reply)
            if session.loop is loop:
                session.resolve(key, payload)
            else:
                session.loop.call_soon_threadsafe(session.resolve, key, payload)
        self._arm(loop)

    def _arm(self, loop: AbstractEventLoop) -> None:
        """Have this loop look again when the next thing is due."""
        timer = self._timers.pop(loop, None)
        if timer is not None:
            timer.cancel()
        self._timers[loop] = loop.call_later(self._shard.wait_ms() / 1000, self._tick, loop)


class EmbeddedTransport:
    """A session with an embedded engine; implements `bunqueue.client.transport.Transport`."""

    def __init__(self, engine: EmbeddedEngine, conn: int, loop: AbstractEventLoop) -> None:
        self.conn = conn
        self.loop = loop
        self._engine = engine
        self._numbers = itertools.count(1)
        self._waiting: dict[bytes, Future[bytes]] = {}
        self._batch: list[bytes] = []
        self._closed = False

    async def call(self, command: Struct, *, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        """See `Transport.call`; the engine always answers, so ``timeout`` has nothing to bound."""
        if self._closed:
            raise ConnectionLost(f"the session with {self._engine.path} is closed: open a new queue")
        if self._engine.inherited:
            raise ConnectionLost(
                f"the session with {self._engine.path} belongs to the parent of this process: one process"
                " at a time may have the file open"
            )
        key = _encode(next(self._numbers))
        command.req_id = Raw(key)  # type: ignore[attr-defined]
        future: Future[bytes] = self.loop.create_future()
        self._waiting[key] = future
        if not self._batch:
            self.loop.call_soon(self._run)
        self._batch.append(_encode(command))
        return await future

    def _run(self) -> None:
        batch, self._batch = self._batch, []
        if batch and not self._closed and not self._engine.inherited:
            self._engine.run(self, batch)

    def resolve(self, key: bytes, payload: bytes) -> None:
        """A reply is here."""
        future = self._waiting.pop(key, None)
        if future is not None and not future.done():
            future.set_result(payload)

    async def close(self) -> None:
        """End the session; the last one of a file closes it."""
        if self._closed:
            return
        self._run()
        self._closed = True
        if not self._engine.inherited:
            with _lock:
                if self._engine.leave(self) and _engines.get(self._engine.path) is self._engine:
                    del _engines[self._engine.path]
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(ConnectionLost(f"the session with {self._engine.path} was closed"))
        self._waiting.clear()


_engines: dict[str, EmbeddedEngine] = {}
_lock = threading.Lock()
_abandoned: list[EmbeddedEngine] = []


def _after_fork() -> None:
    """The engines are the parent's.  They are kept, not closed: SQLite would take its files away from it."""
    global _lock
    _lock = threading.Lock()
    for engine in _engines.values():
        engine.abandon()
    _abandoned.extend(_engines.values())
    _engines.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _open(path: str) -> EmbeddedEngine:
    engine = _engines.get(path)
    if engine is None:
        engine = _engines[path] = EmbeddedEngine(path)
    return engine


def _prepare(data_path: str | None) -> str:
    """Have the engine of a file ready; the path that names it."""
    path = MEMORY if data_path is None or data_path == MEMORY else str(Path(data_path).resolve())
    with _lock:
        _open(path)
    return path


def _abandon(opening: asyncio.Future[str]) -> None:
    """Who had a file opened was cancelled meanwhile: close it, unless somebody uses it."""
    if opening.cancelled() or opening.exception() is not None:
        return
    with _lock:
        engine = _engines.get(opening.result())
        if engine is not None and engine.close_if_idle():
            del _engines[engine.path]


async def shared_transport(data_path: str | None) -> EmbeddedTransport:
    """A session with the engine of a file, opened when it is the first; None: in memory.

    Raises DatabaseBusy when another process has the file open.
    """
    opening = asyncio.ensure_future(asyncio.to_thread(_prepare, data_path))  # may take seconds
    try:
        path = await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(_abandon)
        raise
    with _lock:
        return _open(path).join()

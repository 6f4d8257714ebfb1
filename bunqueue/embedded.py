"""Embedded mode: a shard inside your own process, engine and storage without sockets.

All queues and workers of a process that name the same file share one engine, also from several
event loops and threads.  The guarantees are the server's: a call returns after its commit.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import secrets
import threading
from asyncio import AbstractEventLoop, Future
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Raw, Struct
from msgspec.msgpack import Encoder

from bunqueue.errors import ConnectionLost, FileInUse, StorageError

if TYPE_CHECKING:
    from shardproc.core import Shard

MEMORY = ":memory:"
HEADER = b"SQLite format 3\0"  # how every database begins that is not empty
VERSION = 2  # of the protocol: the shape of answers
LOCK_WAIT_S = 0.5  # for another process to let go of the file

_encode = Encoder().encode
logger = logging.getLogger("bunqueue.embedded")


class EmbeddedEngine:
    """One open file, shared by the sessions of this process.

    Calls made within one turn of an event loop are one batch and one transaction.  A thread of its own looks
    after what is due without a call: event loops come and go.
    """

    def __init__(self, path: str) -> None:
        from shardproc.core import Shard

        self.path = path
        self.closed = False
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._due = threading.Condition(self._lock)  # the next deadline is earlier than it was
        self._looks_at = 0  # when the thread ticks next, epoch ms
        self._shard: Shard = Shard(path, full_sync=False, lock_wait_s=LOCK_WAIT_S)
        self._shard.recover(self._shard.now(), secrets.token_hex(8), lambda loaded, total: None)
        self._shard.engine.adopt((), self._shard.now())
        self._sessions: dict[int, EmbeddedTransport] = {}
        self._numbers = itertools.count(1)
        threading.Thread(target=self._keep_time, name="bunqueue-embedded", daemon=True).start()

    @property
    def inherited(self) -> bool:
        """Whether this process is a child of the one that opened the file, which it must not touch."""
        return self._pid != os.getpid()

    def abandon(self) -> None:
        """In a forked child: keep the parent's lock on the file from lasting as long as the child."""
        self._shard.store.database.abandon()

    def join(self, session: EmbeddedTransport) -> None:
        """Give a session its number."""
        with self._lock:
            session.engine, session.conn = self, next(self._numbers)
            self._sessions[session.conn] = session

    def leave(self, session: EmbeddedTransport) -> bool:
        """End a session; True when it was the last and the file is closed."""
        with self._lock, self._breaking():
            if self._sessions.pop(session.conn, None) is not None:
                self._shard.engine.disconnect(session.conn, self._shard.now(), severed=False)
                self._deliver(session.loop)
                return self.close_if_idle()
        return False

    def close_if_idle(self) -> bool:
        """Close the file if nobody has a session; whether it is closed now."""
        with self._lock:
            if not self._sessions and not self.closed:
                self._close()
            return self.closed

    def run(self, session: EmbeddedTransport, payloads: list[bytes]) -> None:
        """Carry out commands of a session, commit, and give all sessions their replies."""
        with self._lock:
            if self.closed:  # by an error in another thread, a moment ago
                session.fail("it was closed by an error before this command")
                return
            with self._breaking():
                shard = self._shard
                now = shard.tick()
                client = shard.client(session.conn, VERSION)
                for payload in payloads:
                    shard.execute(client, payload, now)
                self._deliver(session.loop)

    def _keep_time(self) -> None:
        """The thread: do what is due when it is due."""
        with self._due:
            while not self.closed:
                wait = self._shard.wait_ms()
                self._looks_at = self._shard.now() + wait
                self._due.wait(max(wait, 1) / 1000)  # at least for a moment: others want the lock, too
                if not self.closed:
                    with self._breaking():
                        self._tick()

    def _tick(self) -> None:
        self._shard.tick()
        self._shard.work()
        self._end({conn for conn, session in self._sessions.items() if session.loop.is_closed()})
        self._deliver(None)

    def _deliver(self, here: AbstractEventLoop | None) -> None:
        """Commit, and tell the sessions; ``here`` is the event loop of this thread."""
        while replies := self._shard.commit():
            gone = set()
            for conn, reply in replies:
                session = self._sessions.get(conn)
                if session is None or isinstance(reply, Raw) or not isinstance(reply.req_id, Raw):
                    continue
                key, payload = bytes(reply.req_id), _encode(reply)
                if session.loop is here:
                    session.resolve(key, payload)
                elif not session.post(session.resolve, key, payload):
                    gone.add(conn)
            self._end(gone)
        if self._shard.engine.next_deadline() < self._looks_at:
            self._due.notify()

    def _end(self, gone: set[int]) -> None:
        """End the sessions whose event loop was closed under them; to be committed by the caller."""
        for conn in gone:
            del self._sessions[conn]
            self._shard.engine.disconnect(conn, self._shard.now(), severed=False)

    @contextmanager
    def _breaking(self) -> Iterator[None]:
        """Close the engine if anything goes wrong within: memory may be ahead of the file, or halfway, so
        nothing of it must be told or written.  The next call opens the file anew and reads what was
        committed.
        """
        try:
            yield
        except BaseException as error:
            logger.exception("the embedded engine of %s was stopped by an error", self.path)
            sessions, self._sessions = list(self._sessions.values()), {}
            with suppress(Exception):
                self._close()
            for session in sessions:
                session.post(session.fail, f"{type(error).__name__}: {error}")
            if not isinstance(error, Exception):
                raise

    def _close(self) -> None:
        self.closed = True
        self._due.notify_all()
        self._shard.close()


class EmbeddedTransport:
    """A session with an embedded engine; implements `bunqueue.client.transport.Transport`.

    When its engine was stopped by an error it goes on with a new one.
    """

    def __init__(self, engine: EmbeddedEngine) -> None:
        self.engine = engine
        self.conn = 0
        self.loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._waiting: dict[bytes, Future[bytes]] = {}
        self._batch: list[bytes] = []
        self._closed = False
        engine.join(self)

    async def call(self, command: Struct, *, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        """See `Transport.call`; the engine always answers, so ``timeout`` has nothing to bound.

        Raises StorageError when the file cannot be read or written.
        """
        if self.engine.inherited:
            raise ConnectionLost(
                f"the session with {self.engine.path} belongs to the parent of this process: one process"
                " at a time may have the file open"
            )
        if self.engine.closed and not self._closed:
            await self._join_again()
        if self._closed:
            raise ConnectionLost(f"the session with {self.engine.path} is closed: open a new queue")
        key = _encode(next(self._numbers))
        command.req_id = Raw(key)  # type: ignore[attr-defined]
        future: Future[bytes] = self.loop.create_future()
        self._waiting[key] = future
        if not self._batch:
            self.loop.call_soon(self._run)
        self._batch.append(_encode(command))
        return await future

    async def _join_again(self) -> None:
        path = await _prepared(self.engine.path)
        with _lock:
            if self.engine.closed and not self._closed:  # else somebody else was faster
                _open(path).join(self)

    def _run(self) -> None:
        batch, self._batch = self._batch, []
        if batch and not self._closed and not self.engine.inherited:
            self.engine.run(self, batch)

    def post(self, function: Callable[..., None], *arguments: object) -> bool:
        """Have a function called in the session's event loop; False when that is closed."""
        try:
            self.loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            return False
        return True

    def resolve(self, key: bytes, payload: bytes) -> None:
        """A reply is here."""
        future = self._waiting.pop(key, None)
        if future is not None and not future.done():
            future.set_result(payload)

    def fail(self, why: str) -> None:
        """The engine was stopped by an error."""
        self._end_calls(
            StorageError,
            f"the embedded engine of {self.engine.path} was stopped: {why}. Whether this command was carried"
            " out is not known; the next one opens the file anew",
        )

    def _end_calls(self, error: type[ConnectionLost], text: str) -> None:
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error(text))
        self._waiting.clear()

    async def close(self) -> None:
        """End the session; the last one of a file closes it."""
        if self._closed:
            return
        self._run()
        self._closed = True
        if not self.engine.inherited:
            with _lock:
                if self.engine.leave(self) and _engines.get(self.engine.path) is self.engine:
                    del _engines[self.engine.path]
        self._end_calls(ConnectionLost, f"the session with {self.engine.path} was closed")


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
    from shardproc.storage.database import DatabaseBusy, DatabaseError
    from shardproc.storage.schema import SchemaTooNew

    engine = _engines.get(path)
    if engine is None or engine.closed:
        try:
            _check(path)
            engine = _engines[path] = EmbeddedEngine(path)
        except DatabaseBusy:
            raise FileInUse(
                f"{path} is in use by another process; the file of an embedded queue belongs to one process: "
                "start a server to share it (bunqueue start)"
            ) from None
        except OSError as error:
            raise StorageError(f"{path} cannot be opened: {error.strerror or error}") from None
        except (DatabaseError, SchemaTooNew) as error:
            raise StorageError(f"{path} cannot be opened: {error}") from error
    return engine


def _check(path: str) -> None:
    """Raise OSError for what cannot be an engine's file, before anything is put beside it."""
    file = Path(path)
    if path == MEMORY:
        return
    if not file.parent.is_dir():
        raise NotADirectoryError(f"there is no folder {file.parent}; make it first")
    if file.is_dir():
        raise IsADirectoryError("it is a folder; data_path names a file in one, such as jobs.db")
    if file.exists():
        with file.open("rb") as opened:
            head = opened.read(len(HEADER))
        if head and head != HEADER:
            raise OSError("it is something else than the file of a queue; give another data_path")


def _prepare(path: str) -> str:
    """Have the engine of a file ready."""
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


async def _prepared(path: str) -> str:
    """`_prepare` in a thread, as it may take seconds."""
    opening = asyncio.ensure_future(asyncio.to_thread(_prepare, path))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(_abandon)
        raise


async def shared_transport(data_path: str | None) -> EmbeddedTransport:
    """A session with the engine of a file, opened when it is the first; None: in memory.

    Raises FileInUse when another process has the file open, StorageError when it cannot be read.
    """
    if data_path is None or data_path == MEMORY:
        path = await _prepared(MEMORY)
    else:
        path = await _prepared(str(await asyncio.to_thread(Path(data_path).resolve)))
    with _lock:
        return EmbeddedTransport(_open(path))

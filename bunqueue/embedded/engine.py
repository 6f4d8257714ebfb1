"""One open file: a shard, the sessions that use it, and a thread for work that is due."""

from __future__ import annotations

import itertools
import logging
import os
import secrets
import threading
from asyncio import AbstractEventLoop
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Protocol

from msgspec import Raw, Struct
from msgspec.msgpack import Encoder

from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import Spec
from bunqueue.protocol.commands.base import CommandError
from bunqueue.protocol.event_frames import lost_frame
from bunqueue.protocol.framing import HEADER

from .file_watch import FileWatch, FileWritten
from .local_commands import LocalCommands

if TYPE_CHECKING:
    from bunqueue.protocol.commands import Reply
    from shardproc.core import Shard

LOCK_WAIT_S = 0.5  # for another process to release the file

_encode = Encoder().encode
logger = logging.getLogger("bunqueue.embedded")


class Session(Protocol):
    """A source of commands, as the engine sees it.  All methods are called with the engine locked, from any
    thread.  ``here`` is the event loop of the calling thread, if it is known."""

    conn: int  # assigned by `EmbeddedEngine.join`
    version: int  # of the protocol: it determines the format of answers

    @property
    def disconnected(self) -> bool:
        """Whether the client can no longer be reached."""

    def answer(self, key: bytes, payload: bytes, here: AbstractEventLoop | None) -> bool:
        """Deliver the reply to a command.  Returns False when nobody is there to receive it."""

    def deliver(self, queue: str, payloads: list[bytes]) -> None:
        """Deliver unrequested messages: events of a queue, or, with "" as its name, notices."""

    def fail(self, why: str) -> None:
        """The engine was stopped by an error."""


class EmbeddedEngine:
    """One open file, shared by the sessions of this process.

    Calls made within one turn of an event loop are one batch and one transaction.  A thread of the engine
    does work that is due without a call, because event loops come and go.
    """

    raises = False  # whether an error is also raised where it happens, not only passed to the sessions

    def __init__(self, path: str, *, again: bool = False) -> None:
        """``again``: this process had the file open until an error a moment ago, so its workers are alive and
        still have their lock tokens.  Otherwise the workers that held jobs ended with the process that had
        the file."""
        self.path = path
        self.closed = False
        self._pid = os.getpid()
        self.lock = threading.RLock()
        """Held while commands run and while their results are delivered."""
        self._due = threading.Condition(self.lock)  # notified when the next deadline has moved forward
        self._next_tick_at = 0  # the next tick of the thread, epoch ms
        self._sessions: dict[int, Session] = {}
        self._numbers = itertools.count(1)
        self._shard = self._open()
        try:
            self._shard.recover(self._shard.now(), secrets.token_hex(8), lambda loaded, total: None)
        except BaseException:
            self._shard.close()
            raise
        self._shard.engine.reattach((), self._shard.now())
        if not again:
            self._shard.engine.all_clients_gone(self._shard.now())
        self._local = LocalCommands(self._shard.engine, self._shard.now, lambda: len(self._sessions))
        self._watch = FileWatch(self._shard.store.database)
        self._begin()

    def _open(self) -> Shard:
        from shardproc.core import Shard

        return Shard(self.path, full_sync=False, lock_wait_s=LOCK_WAIT_S)

    def _begin(self) -> None:
        threading.Thread(target=self._keep_time, name="bunqueue-embedded", daemon=True).start()

    @property
    def inherited(self) -> bool:
        """Whether this process is a child of the process that opened the file.  A child must not touch the
        file."""
        return self._pid != os.getpid()

    def abandon(self) -> None:
        """In a forked child: release the parent's lock on the file, which would otherwise last as long as the
        child."""
        self._shard.store.database.abandon()

    def join(self, session: Session) -> None:
        """Assign a number to a session."""
        with self.lock:
            session.conn = next(self._numbers)
            self._sessions[session.conn] = session

    def leave(self, session: Session, here: AbstractEventLoop | None = None) -> bool:
        """End a session.  Returns True if it was the last one and the file is closed."""
        with self.lock, self._breaking():
            if self._sessions.pop(session.conn, None) is not None:
                self._disconnect(session.conn)
                self._deliver(here)
                return self.close_if_idle()
        return False

    def close_if_idle(self) -> bool:
        """Close the file if there are no sessions.  Returns whether it is closed now."""
        with self.lock:
            if not self._sessions and not self.closed:
                self._close()
            return self.closed

    def close(self) -> None:
        """End all sessions, and close the file."""
        with self.lock:
            if self.closed:
                return
            with self._breaking():
                self._end(set(self._sessions))
                self._deliver(None)
                self._close()

    def run(self, session: Session, payloads: list[bytes], here: AbstractEventLoop | None = None) -> None:
        """Carry out commands of a session, commit, and deliver the replies to all sessions."""
        with self.lock:
            if self.closed:  # by an error in another thread, a moment ago
                session.fail("it was closed by an error before this command")
                return
            with self._breaking():
                self._watch.check()
                shard = self._shard
                shard.restriction = None if self._watch.refusal is None else self._refuse_growth
                now = self._begin_batch()
                client = shard.client(session.conn, session.version)
                for payload in payloads:
                    shard.execute(client, payload, now)
                shard.work()
                self._deliver(here)

    def ask_locally(self, session: Session, command: Struct) -> bytes:
        """The reply to a command that the router answers on a server."""
        with self.lock:
            return self._local.answer(session, command)

    def complete(self, name: str, payload: bytes) -> bytes:
        """The shard's answer to a command.  Some answers are completed with facts that the shard does not
        know."""
        if name not in self._local.completed:
            return payload
        with self.lock:
            return self._local.complete(name, payload)

    def _refuse_growth(self, spec: Spec) -> CommandError | None:
        """While the file is missing, refuse commands that add jobs, because the jobs would be lost."""
        return CommandError(self._watch.refusal or "", Code.STORAGE_FAILED) if spec.grows else None

    def _keep_time(self) -> None:
        """Run in the thread: do work when it is due."""
        with self._due:
            while not self.closed:
                wait = int(min(self._shard.wait_ms(), self._watch.pause_ms))
                self._next_tick_at = self._shard.now() + wait
                self._due.wait(max(wait, 1) / 1000)  # at least a moment: others want the lock
                if not self.closed:
                    with self._breaking():
                        self._tick()

    def _begin_batch(self) -> int:
        """Do work that is due, and return the time.  Waits while another program holds the file's write
        lock."""
        from shardproc.storage.database import DISK_ERRORS, disk_problem

        shard = self._shard
        try:
            return shard.tick()
        except DISK_ERRORS as error:
            if disk_problem(error) != "locked" or shard.store.is_writing:
                raise
        return shard.now()

    def _tick(self) -> None:
        self._watch.check()
        self._begin_batch()
        self._shard.work()
        self._end({conn for conn, session in self._sessions.items() if session.disconnected})
        self._deliver(None)

    def _deliver(self, here: AbstractEventLoop | None) -> None:
        """Commit, then deliver what the sessions wait for.  ``here`` is the event loop of this thread."""
        while replies := self._commit():
            gone = set()
            for conn, reply in replies:
                session = self._sessions.get(conn)
                if session is None or isinstance(reply, Raw) or not isinstance(reply.req_id, Raw):
                    continue
                if not session.answer(bytes(reply.req_id), _encode(reply), here):
                    gone.add(conn)
            self._end(gone)
        if self._shard.engine.next_deadline() < self._next_tick_at:
            self._due.notify()

    def _commit(self) -> list[tuple[int, Reply | Raw]]:
        """Commit, deliver what was published, and return the replies."""
        replies = self._shard.commit()
        state = self._shard.engine.state
        for queue, published in self._shard.published.items():
            if published.lost:
                published.frames.append(lost_frame(queue, published.lost, state.now))
            payloads = [frame[HEADER:] for frame in published.frames]
            for conn in state.listeners.get(queue, ()):
                if conn in self._sessions:
                    self._sessions[conn].deliver(queue, payloads)
        for conn, notice in self._shard.notices:
            if conn in self._sessions:
                self._sessions[conn].deliver("", [notice[HEADER:]])
        return replies

    def _end(self, gone: set[int]) -> None:
        """End the sessions with a closed event loop.  The caller commits."""
        for conn in gone:
            del self._sessions[conn]
            self._disconnect(conn)

    def _disconnect(self, conn: int) -> None:
        self._local.workers.disconnected(conn)
        self._shard.engine.disconnect(conn, self._shard.now(), severed=False)

    @contextmanager
    def _breaking(self) -> Iterator[None]:
        """Close the engine if anything goes wrong within: memory may be ahead of the file, or in an
        intermediate state, so nothing of it may be delivered or written.  The next call reopens the file and
        reads what was committed."""
        try:
            yield
        except BaseException as error:
            if isinstance(error, FileWritten):
                logger.warning("%s; it is opened again", error)
            else:
                logger.exception("the embedded engine of %s was stopped by an error", self.path)
            sessions, self._sessions = list(self._sessions.values()), {}
            with suppress(Exception):
                self._close()
            for session in sessions:
                session.fail(f"{type(error).__name__}: {error}")
            if self.raises or not isinstance(error, Exception):
                raise

    def _close(self) -> None:
        self.closed = True
        self._due.notify_all()
        self._shard.compact()
        self._shard.close()

"""The fast path for blocking calls: a session for threads that carry out their commands themselves.

It needs no event loop, and no thread has to be woken.  Commands that take time by nature, a wait or a poll,
use the session of the background loop.
"""

from __future__ import annotations

import itertools
import os
import threading
from asyncio import AbstractEventLoop
from pathlib import Path

from msgspec import Raw, Struct
from msgspec.msgpack import Encoder

from bunqueue.client.connection.requests import closed, spec_of
from bunqueue.errors import ConnectionLost
from bunqueue.protocol.commands import Route

from . import open_engines
from .engine import EmbeddedEngine
from .session import VERSION, encoded, stopped

_encode = Encoder().encode


class Answer:
    """The answer to one command, as soon as it is there."""

    __slots__ = ("error", "event", "payload")

    def __init__(self) -> None:
        self.payload: bytes | None = None
        self.error: ConnectionLost | None = None
        self.event: threading.Event | None = None  # set with either one, if a thread waits

    def wake(self) -> None:
        """Wake the waiting thread."""
        if self.event is not None:
            self.event.set()


class DirectSession:
    """A session with an engine, for any number of threads.  Implements `engine.Session`."""

    version = VERSION
    disconnected = False

    def __init__(self, engine: EmbeddedEngine) -> None:
        self.conn = 0
        self.engine = engine
        self._numbers = itertools.count(1)
        self._waiting: dict[bytes, Answer] = {}
        self._left = False  # set with the engine locked
        engine.join(self)

    def ask(self, command: Struct, patience: float | None = None) -> bytes | None:
        """The reply to a command, or None if none arrives within `patience` seconds.

        Raises PayloadError, ConnectionLost, or StorageError, which is a ConnectionLost.
        """
        spec = spec_of(type(command))
        if spec.route is Route.ROUTER:
            return self.engine.ask_locally(self, command)
        key = _encode(next(self._numbers))
        command.req_id = Raw(key)  # type: ignore[attr-defined]  # every command has it
        payload = encoded(command)
        answer = self._waiting[key] = Answer()
        self.engine.run(self, [payload])
        if answer.payload is None and answer.error is None:
            self._wait(answer, patience)
        if answer.error is not None:
            raise answer.error
        if answer.payload is None and self._left:
            raise closed(command, f"embedded engine {self.engine.path}")
        reply = answer.payload
        return None if reply is None else self.engine.complete(spec.name, reply)

    def _wait(self, answer: Answer, patience: float | None) -> None:
        """Wait for an answer that was not immediate: long work is done in slices."""
        event = threading.Event()
        with self.engine.lock:  # answers arrive while it is held
            if answer.payload is not None or answer.error is not None or self._left:
                return
            answer.event = event
        event.wait(patience)

    def answer(self, key: bytes, payload: bytes, here: AbstractEventLoop | None) -> bool:
        """Receive a reply."""
        answer = self._waiting.pop(key, None)
        if answer is not None:
            answer.payload = payload
            answer.wake()
        return True

    def deliver(self, queue: str, payloads: list[bytes]) -> None:
        """Ignore these: this session does not listen."""

    def fail(self, why: str) -> None:
        """The engine was stopped by an error."""
        waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            answer.error = stopped(self.engine.path, why)
            answer.wake()

    def leave(self) -> None:
        """End the session and its calls in progress.  The last session of a file closes the file."""
        if self.engine.inherited:
            return
        with open_engines.lock:
            if self.engine.leave(self) and open_engines.engines.get(self.engine.path) is self.engine:
                del open_engines.engines[self.engine.path]
        with self.engine.lock:
            self._left = True
            for answer in self._waiting.values():
                answer.wake()


class FileSession:
    """Blocking calls to the engine of a file.  The first call opens the file, and so does a call after an
    error or a fork."""

    def __init__(self, data_path: str | os.PathLike[str] | None) -> None:
        in_memory = data_path is None or data_path == open_engines.MEMORY
        self._path = open_engines.MEMORY if in_memory else str(Path(data_path or "").resolve())
        self._session: DirectSession | None = None

    def call(self, command: Struct) -> bytes:
        """Like `Transport.call`.  Raises FileInUse or StorageError when the file cannot be opened."""
        session = self._session
        if session is None or session.engine.closed or session.engine.inherited:
            session = self._open()
        payload = session.ask(command)
        assert payload is not None  # the wait had no time limit
        return payload

    def _open(self) -> DirectSession:
        with open_engines.lock:
            session = self._session
            if session is None or session.engine.closed or session.engine.inherited:
                session = self._session = DirectSession(open_engines.open_engine(self._path))
            return session

    def close(self) -> None:
        """End the session, if there is one."""
        session, self._session = self._session, None
        if session is not None:
            session.leave()

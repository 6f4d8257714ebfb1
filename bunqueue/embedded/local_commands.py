"""The router's tasks on a server: it answers some commands itself, and adds to answers of the shard."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.msgpack import Decoder, Encoder

from bunqueue.model.scope import Scope
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError
from bunqueue.protocol.commands.workers import RegisterWorker
from bunqueue.server.commands.additions import Additions
from bunqueue.server.commands.router_figures import RouterFigures
from bunqueue.server.commands.server_commands import ServerCommands
from bunqueue.server.commands.workers import Workers
from bunqueue.version import __version__

if TYPE_CHECKING:
    from shardproc.engine.engine import Engine

    from .engine import Session

_encode = Encoder().encode
_decode: Callable[[bytes], dict[str, Any]] = Decoder(dict[str, Any]).decode


class _Connection:
    """A session as `ServerCommands` sees it."""

    def __init__(self, session: Session, engine: Engine) -> None:
        self._session = session
        self._engine = engine
        self.number = session.conn

    def agree(self, version: int) -> None:
        self._session.version = version

    def authenticate(self, token: str) -> bool:
        return False  # like a server without tokens

    @property
    def scope(self) -> None:
        return None  # who has the folder may do everything

    def limit_to(self, scope: Scope) -> None:
        raise CommandError("Unknown command: ActFor", Code.UNKNOWN_COMMAND, field="cmd")

    def unsubscribe(self) -> None:
        self._engine.unsubscribe(self.number)

    def born(self, command: RegisterWorker) -> str | None:
        return None  # a worker of this process


class LocalCommands:
    """Belongs to an engine. Called while the engine is locked."""

    def __init__(self, engine: Engine, now: Callable[[], int], connections: Callable[[], int]) -> None:
        self._engine = engine
        self._connections = connections
        self._started = time.monotonic()
        self.workers = Workers(self._worker_presence)
        self._commands = ServerCommands(self.workers, now)
        self._additions = Additions(self._figures, lambda: self.workers.listing(now()))
        self.completed = self._additions.by_command.keys()
        """The commands whose answers are completed here."""

    def answer(self, session: Session, command: Struct) -> bytes:
        """The reply to a command of `Route.ROUTER`."""
        return _encode(self._commands.answer(_Connection(session, self._engine), command))

    def complete(self, name: str, payload: bytes) -> bytes:
        """The shard's answer to one of the commands `completed`, with the facts that the shard does not
        know."""
        answer = _decode(payload)
        if answer["ok"]:
            self._additions.by_command[name](answer, None)
        return _encode(answer)

    def _worker_presence(self, queue: str) -> None:
        names = self.workers.names_of((queue,))
        self._engine.worker_presence((queue,), present=queue in self.workers.by_queue, names=names)

    def _figures(self) -> RouterFigures:
        return RouterFigures(
            version=__version__,
            uptime_s=time.monotonic() - self._started,
            connections=self._connections(),
            workers=self.workers.stats(self._commands.now()),
            memory_bytes=0,  # its process is also the shard's
            cpu_s=0,
            lag_s=0,
            shards=1,
            shards_up=[0],
        )

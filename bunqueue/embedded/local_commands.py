"""What on a server the router does: the list of workers, and what it adds to a shard's answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec import Struct, to_builtins
from msgspec.msgpack import Decoder, Encoder

from bunqueue import __version__
from bunqueue.protocol.commands import CommandError, ErrorReply, Ok, Reply, events, refused
from bunqueue.protocol.commands import server as say
from bunqueue.protocol.commands import workers as staff

if TYPE_CHECKING:
    from bunqueue.server_commands.prometheus import RouterFigures
    from shardproc.engine.engine import Engine

    from .engine import Session

MAX_LISTED = 100  # workers in an overview

_encode = Encoder().encode
_decode: Callable[[bytes], dict[str, Any]] = Decoder(dict[str, Any]).decode


class LocalCommands:
    """Belongs to an engine, and is called with that locked."""

    def __init__(self, engine: Engine, now: Callable[[], int]) -> None:
        from bunqueue.server_commands.workers import Workers

        self._engine = engine
        self._now = now
        self._started = time.monotonic()
        self.workers = Workers(lambda queue, staffed: engine.staff((queue,), staffed=staffed))

    def answer(self, session: Session, command: Struct) -> bytes:
        """The reply to a command of `Route.ROUTER`."""
        try:
            reply = self._answer(session, command)
        except CommandError as error:
            reply = refused(error)
        return _encode(reply)

    def _answer(self, session: Session, command: Struct) -> Reply:
        match command:
            case say.Hello():
                reply = say.agreement(command, __version__)
                session.version = reply.protocol_version
                return reply
            case say.Ping():
                return say.PingReply(data=say.Pong(pong=True, time=float(self._now())))
            case staff.RegisterWorker():
                return self.workers.register(session.conn, command, self._now())
            case staff.UnregisterWorker():
                return self.workers.unregister(command.worker_id)
            case staff.ListWorkers():
                return staff.ListWorkersReply(data=self.workers.listing(self._now()))
            case staff.Heartbeat():
                return self.workers.beat(command, self._now())
            case events.UnsubscribeEvents():
                self._engine.unsubscribe(session.conn)
                return Ok()
            case _:  # Auth, as where no token was set
                return ErrorReply(error="Invalid token")

    def complete(self, name: str, payload: bytes, connections: int) -> bytes:
        """The shard's answer to a command of ADDITIONS, with what it does not know."""
        answer = _decode(payload)
        if answer["ok"]:
            ADDITIONS[name](self, answer, connections)
        return _encode(answer)

    def _metrics(self, answer: dict[str, Any], connections: int) -> None:
        if "metrics" in answer:  # not there when it was about one queue
            answer["metrics"]["activeConnections"] = connections

    def _prometheus(self, answer: dict[str, Any], connections: int) -> None:
        from bunqueue.server_commands.prometheus import exposition

        answer["data"] = {"metrics": exposition(answer["data"], self._figures(connections))}

    def _figures(self, connections: int) -> RouterFigures:
        from bunqueue.server_commands.prometheus import RouterFigures

        return RouterFigures(
            version=__version__,
            uptime_s=time.monotonic() - self._started,
            connections=connections,
            workers=self.workers.stats(self._now()),
            memory_bytes=0,  # its process is the shard's
            cpu_s=0,
            lag_s=0,
            shards=1,
            shards_up=[0],
        )

    def _overview(self, answer: dict[str, Any], connections: int) -> None:
        data, workers = answer["data"], self.workers.listing(self._now())
        data["collections"]["connections"] = connections
        data["workers"] = {
            "total": workers.stats.total,
            "active": workers.stats.active,
            "list": to_builtins(workers.workers[:MAX_LISTED]),
        }


ADDITIONS: dict[str, Callable[[LocalCommands, dict[str, Any], int], None]] = {
    "Metrics": LocalCommands._metrics,
    "Prometheus": LocalCommands._prometheus,
    "DashboardOverview": LocalCommands._overview,
}

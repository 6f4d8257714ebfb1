"""Mistakes that the real parts might make.  The simulation has to find each of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from replication.simulation.host import Kinds
from replication.simulation.parts import SimulatedLink

from bunqueue.protocol.codec import encode_frame
from bunqueue.server.links import shard_protocol as link
from shardproc.replication.owner import Answer, Done, Records, Uncertain
from shardproc.replication.replicated_server import ReplicatedServer
from shardproc.replication.replicated_shard import ReplicatedShard
from shardproc.storage.careful import CarefulStore
from shardproc.storage.database import Database


class DeafLink(SimulatedLink):
    """A notice is taken for an acknowledgement."""

    def understood(self, answer: Answer) -> Answer:
        return Done() if isinstance(answer, Uncertain) and "WARNING" in answer.why else answer


class BlindLink(SimulatedLink):
    """Nobody looks where the log ends."""

    def understood(self, answer: Answer) -> Answer:
        return replace(answer, end=1 << 60, snapshot=0) if isinstance(answer, Records) else answer


class FileAhead(ReplicatedShard):
    """SQLite commits a batch before the log has its record."""

    def seal(self) -> bytes:
        record = super().seal()
        if record:
            self.store.applied(self.log.position + 1)
        return record


class ForgetfulStore(CarefulStore):
    """The file does not say up to where it holds the log."""

    def applied(self, position: int) -> None:
        self._open()
        self.write_nothing()


class ForgetfulShard(ReplicatedShard):
    def _new_store(self, database: Database) -> CarefulStore:
        store = ForgetfulStore(database, self._retention)
        store.replicated = True
        return store


class EarlyReplies(ReplicatedServer):
    """Replies leave when a batch is sealed."""

    def _seal(self, record: bytes, now: float) -> None:
        out = self._shard.engine.out
        if record:
            replies, out.replies = out.replies, []
            self._control += [link.answer(to, link.REPLIES, encode_frame(reply), 1) for to, reply in replies]
            self._send()
        super()._seal(record, now)


class EarlyLetters(ReplicatedServer):
    """What a shard tells the others leaves when a batch is sealed."""

    def _seal(self, record: bytes, now: float) -> None:
        if record:
            for peer, message in self._shard.peer_messages():
                self._control.append(link.answer(link.CONTROL, link.TO_PEER, bytes((peer,)) + message))
            self._send()
        super()._seal(record, now)


class TrustingServer(ReplicatedServer):
    """Answers that only read need no proof that the shard is still owned."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._log.owner.owns = lambda now: True  # type: ignore[method-assign]


BUGS = {
    "appends are not checked for the epoch": Kinds(checks_epochs=False),
    "a notice is taken for an acknowledgement": Kinds(link=DeafLink),
    "nobody looks where the log ends": Kinds(link=BlindLink),
    "the file is ahead of the log": Kinds(shard=FileAhead),
    "the file does not say what it holds": Kinds(shard=ForgetfulShard),
    "replies leave before the acknowledgement": Kinds(server=EarlyReplies),
    "messages between shards leave before the acknowledgement": Kinds(server=EarlyLetters),
}

"""A shard that misbehaves on request: what the router must survive, and real shards never do.

Takes the place of ``python -m shardproc``.  It answers every command with what it saw of it; the queue
name asks for more: ``hold`` is answered only when the shard is drained, ``big-N`` with N bytes, ``die``
ends the process, ``stop`` makes it stop reading for ever; ``lost``, also among ids, has it say that nobody
can answer.  ``FAKE_START`` and ``FAKE_END`` say how it starts and ends; what it hears beside commands goes to
the file ``FAKE_LOG``, a JSON line each.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time

import msgpack

from bunqueue.protocol.framing import frame
from bunqueue.server.links import shard_protocol as link


def reply(conn: int, payload: dict[str, object], slow: int = 0) -> bytes:
    return link.answer(conn, link.REPLIES, frame(msgpack.packb(payload)), 1, slow)


ENDS = {link.CLOSED: "closed", link.SEVERED: "severed", link.BROKEN: "broken"}


class FakeShard:
    def __init__(self) -> None:
        start = json.load(sys.stdin.buffer)
        self.shard = start["shard"]
        self.held: list[bytes] = []
        self.log = open(os.environ["FAKE_LOG"], "a", buffering=1) if "FAKE_LOG" in os.environ else None
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(start["socket"])
        self.note("start", {"secret": start["secret"], "epoch": start["epoch"], "shards": start["shards"]})
        hello = link.ShardHello(self.shard, os.getpid(), start["secret"])
        self.tell(link.HELLO, link.encode(hello))

    def tell(self, kind: int, body: bytes = b"") -> None:
        self.socket.sendall(link.answer(link.CONTROL, kind, body))

    def note(self, what: str, value: object) -> None:
        if self.log:
            print(json.dumps([self.shard, what, value]), file=self.log)

    def load(self) -> None:
        how = os.environ.get("FAKE_START", "")
        if how == "fail":
            sys.exit(4)
        if how == "slow":
            for step in range(25):
                self.tell(link.PROGRESS, link.encode(link.ShardProgress(step * 40_000, 1_000_000)))
                time.sleep(0.1)  # a start that takes its time
        self.tell(link.READY)

    def run(self) -> None:
        splitter = link.EnvelopeSplitter(link.TO_SHARD)
        while data := self.socket.recv(1 << 20):
            for (conn, kind), body in splitter.feed(data):
                self.take(conn, kind, body)

    def take(self, conn: int, kind: int, body: bytes) -> None:
        if kind in (link.COMMANDS_V2, link.COMMANDS_V3):
            for payload in link.split_frames(body):
                self.execute(conn, kind, msgpack.unpackb(payload), len(payload))
        elif kind == link.PING:
            self.note("ping", None)
            self.tell(link.PONG)
        elif kind == link.DRAIN:
            if os.environ.get("FAKE_END") == "never":
                time.sleep(1000)  # until it is killed
            self.socket.sendall(b"".join(self.held))
            sys.exit(0)
        elif kind == link.LIVE:
            self.note("live", link.unpack_connections(body))
        elif kind in ENDS:
            self.note(ENDS[kind], conn)

    def execute(self, conn: int, kind: int, command: dict[str, object], size: int) -> None:
        queue = str(command.get("queue"))
        answer: dict[str, object] = {
            "ok": True,
            "shard": self.shard,
            "conn": conn,
            "kind": kind,
            "size": size,
        }
        if "reqId" in command:
            answer["reqId"] = command["reqId"]
        if queue.startswith("die"):
            os._exit(9)
        if queue.startswith("stop"):
            time.sleep(1000)  # until it is killed
        if queue.startswith("hold"):
            self.held.append(reply(conn, answer))
            self.note("held", conn)
            return
        if queue.startswith("lost") or "lost" in str(command.get("ids")):
            self.tell(link.LOST, link.pack_connections([conn]))
            return
        if queue.startswith("big-"):
            answer["big"] = b"x" * int(queue.split("-")[1])
        self.socket.sendall(reply(conn, answer))


if __name__ == "__main__":
    shard = FakeShard()
    shard.load()
    shard.run()

"""Ends a shard process, or more, by SIGKILL at a chosen step of what shards do together.

The plan is a file with a list of steps; the first one is due.  Whoever comes to it takes it out of the plan
before it kills, so nobody else does, and the next life of the process does not either.
"""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from bunqueue.server.links import peers as messages
from bunqueue.server.links import shard_protocol as link
from shardproc.engine import peer_calls
from shardproc.resilient import ResilientShard
from shardproc.server import Server
from shardproc.storage.store import Store

PLAN = Path(os.environ["CRASH_PLAN"])


class Crash:
    """What this process knows of the plan."""

    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []
        self.version: tuple[int, int] | None = None  # of the plan
        self.seen: Counter[str] = Counter()  # letters since this version of the plan came
        self.due: dict[str, Any] | None = None  # the step at which this turn of the shard has arrived

    def note(self, role: str, letter: str, shard: int) -> None:
        """This shard sends or receives a letter."""
        self._read()
        if not self.steps or self.due is not None:
            return
        step = self.steps[0]
        if (step["role"], step["message"]) == (role, letter) and step["shard"] in (None, shard):
            self.seen[letter] += 1
            if self.seen[letter] == step["nth"]:
                self.due = step

    def _read(self) -> None:
        try:
            found = PLAN.stat()
            version = found.st_ino, found.st_mtime_ns
            if version != self.version:
                self.steps, self.version = json.loads(PLAN.read_text()), version
                self.seen.clear()
        except FileNotFoundError:
            self.steps, self.version = [], None

    def at(self, moment: str) -> bool:
        """Whether to strike now."""
        return self.due is not None and self.due["moment"] == moment

    def strike(self) -> None:
        step, self.due = self.due, None
        assert step is not None
        try:
            PLAN.rename(f"{PLAN}.{os.getpid()}")
        except FileNotFoundError:  # somebody else has come to the step as well
            return
        if self.steps[1:]:
            fresh = PLAN.with_suffix(".new")
            fresh.write_text(json.dumps(self.steps[1:]))
            fresh.rename(PLAN)
        PLAN.with_suffix(".hits").open("a").write("x")
        kill(step["victim"])


def kill(victim: str) -> None:
    router = os.getppid()
    if victim == "server":
        siblings = Path(f"/proc/{router}/task/{router}/children").read_text().split()
        os.kill(router, signal.SIGKILL)
        for pid in map(int, siblings):
            if pid != os.getpid():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    elif victim == "router":
        os.kill(router, signal.SIGKILL)
        return
    os.kill(os.getpid(), signal.SIGKILL)


def install() -> None:
    """Put a look at the plan around the steps of this shard."""
    crash = Crash()
    send, receive = peer_calls._send, peer_calls.receive
    store, commit, letters, answer = (
        Store.commit,
        ResilientShard.commit,
        ResilientShard.peer_messages,
        Server._commit_and_send,
    )

    def noting_send(state: Any, shard: int, kind: int, number: int, message: Any, turn: int = 0) -> int:
        crash.note("sends", type(message).__name__, state.shard)
        return send(state, shard, kind, number, message, turn)

    def noting_receive(state: Any, source: int, body: bytes) -> None:
        crash.note("receives", type(messages.decode(body).message).__name__, state.shard)
        receive(state, source, body)

    def before_commit(self: Store, out: Any, next_seq: int, live: int) -> None:
        if crash.at("before commit"):
            crash.strike()
        store(self, out, next_seq, live)

    def after_commit(self: ResilientShard) -> Any:
        replies = commit(self)
        if crash.at("after commit"):
            crash.strike()
        return replies

    def some_letters(self: ResilientShard) -> Any:
        """Of the letters of this turn those up to the one in question leave, the others do not."""
        found = letters(self)
        if crash.at("half sent"):
            assert crash.due is not None
            names = [type(messages.decode(letter).message).__name__ for _, letter in found]
            end = names.index(crash.due["message"]) + 1
            for peer, letter in found[:end]:
                servers[-1]._sock.sendall(link.answer(link.CONTROL, link.TO_PEER, bytes((peer,)) + letter))
            crash.strike()
        return found

    def after_sending(self: Server) -> None:
        servers[:] = [self]
        answer(self)
        if crash.at("sent"):
            crash.strike()

    servers: list[Server] = []
    peer_calls._send, peer_calls.receive = noting_send, noting_receive
    Store.commit, ResilientShard.commit = before_commit, after_commit
    ResilientShard.peer_messages, Server._commit_and_send = some_letters, after_sending

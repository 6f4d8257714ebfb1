"""Some shards in one process, the wires between them, and crashes at every step of what they do together.

The world below is a router without sockets: it carries messages in order, loses those to a shard that has
just died, and tells the others when it is back.  A shard may die before it commits, or between its commit
and the moment at which what it says leaves.  A wire may be cut, as one between hosts, while both ends live.
"""

from __future__ import annotations

import random
from collections import deque
from pathlib import Path
from typing import Any

import msgpack
from engine.shard_driver import EPOCH, START, decoded, nothing
from engine.tenancy import check_counts, one_tenant
from support.file_rules import check_shard

from bunqueue.model.ids import slot_of_id, slot_of_queue
from shardproc.core import Shard

Reply = dict[str, Any]
CONN = 7
QUEUES = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta")


class World:
    """Some shards on files, one client, and the wires between them."""

    def __init__(
        self, folder: Path, shards: int, seed: int, crash_rate: float, cut_rate: float = 0.0
    ) -> None:
        self.folder = folder
        self.count = shards
        self.rng = random.Random(seed)
        self.crash_rate, self.cut_rate = crash_rate, cut_rate
        self.now = START
        self.wires: dict[tuple[int, int], deque[bytes | None]] = {}  # None: the sender is back
        self.replies: dict[str, Reply] = {}
        self.crashes = self.cuts = 0
        self.unanswered = 0  # connections whose answer nobody knows
        self.doomed: dict[int, bool] = {}  # shards that die in their next turn: after their commit?
        self._serial = 0
        self.shards = [self._open(number) for number in range(shards)]

    def _open(self, number: int) -> Shard:
        path, place = str(self.folder / f"{number}.db"), {"shard": number, "shards": self.count}
        shard = Shard(path, full_sync=False, prepare=one_tenant, **place)
        shard.recover(self.now, EPOCH, nothing)
        shard.engine.reattach([CONN], self.now)
        return shard

    # -- what a client does

    def send(self, at: int | None = None, **request: Any) -> str:
        """Send a command where a router would, or to that shard; the key of its reply."""
        self._serial += 1
        key = f"r{self._serial}"
        if at is None:
            at = self._shard_of(request)
        payload = msgpack.packb({**request, "reqId": key})
        shard = self.shards[at]
        shard.execute(shard.client(CONN, 3), payload, self.now)
        self.finish(at)
        return key

    def ask(self, **request: Any) -> Reply | None:
        """Send a command and let the world turn until its reply is there; None if it was lost."""
        key = self.send(**request)
        for _ in range(2000):
            if key in self.replies or not self.turn():
                break
        return self.replies.get(key)

    def _shard_of(self, request: Reply) -> int:
        mask = self.count - 1
        if "queue" in request:
            return slot_of_queue(request["queue"]) & mask
        own = request.get("id") or request.get("customId")
        if own:
            return slot_of_id(own) & mask
        return 0

    # -- what happens by itself

    def turn(self) -> bool:
        """Deliver one message, of a random wire; False when there is none."""
        wires = [wire for wire, messages in self.wires.items() if messages]
        if not wires:
            return False
        if self.rng.random() < self.cut_rate:
            self.cut(*self.rng.choice(wires))
        else:
            self.deliver(*self.rng.choice(wires))
        return True

    def deliver(self, source: int, target: int) -> None:
        """Deliver the next message of one shard to another."""
        message = self.wires[source, target].popleft()
        engine = self.shards[target].engine
        if message is None:
            engine.peer_is_up(source, self.now)
        else:
            engine.receive(source, message, self.now)
        self.finish(target)

    def settle(self) -> None:
        """Until nothing is on its way."""
        while self.turn():
            pass

    def finish(self, number: int) -> None:
        """Commit and send, unless the shard dies before or between."""
        shard = self.shards[number]
        while shard.engine.work():
            pass
        fate = self.rng.random()
        dies_after = self.doomed.pop(number, None)
        if fate < self.crash_rate / 2 or dies_after is False:
            self.crash(number)
            return
        replies = shard.commit()
        check_counts(shard.engine.state)
        messages = shard.peer_messages()
        if fate < self.crash_rate or dies_after:
            self.crash(number)
            return
        self.unanswered += len(shard.lost())
        for target, message in messages:
            self.wires.setdefault((number, target), deque()).append(message)
        for conn, reply in replies:
            assert conn == CONN
            answer = decoded(reply)
            self.replies[answer.pop("reqId")] = answer

    def crash(self, number: int) -> None:
        self.crashes += 1
        check_shard(self.shards[number])
        self.shards[number].close()
        for source, target in list(self.wires):
            if target == number:
                self.wires[source, target].clear()
        self.shards[number] = self._open(number)
        for other in range(self.count):
            if other != number:
                self.wires.setdefault((number, other), deque()).append(None)
                self.wires.setdefault((other, number), deque()).append(None)

    def cut(self, source: int, target: int) -> None:
        """The connection between two hosts, one way, breaks and is made again: its messages are lost."""
        self.cuts += 1
        messages = self.wires[source, target]
        messages.clear()
        messages.append(None)
        self.shards[source].engine.peer_is_up(target, self.now)
        self.finish(source)

    def calm(self) -> None:
        """From here on nobody dies, and nothing breaks."""
        self.crash_rate = self.cut_rate = 0.0
        self.settle()

    def close(self) -> None:
        try:
            for shard in self.shards:
                check_shard(shard)
        finally:
            for shard in self.shards:
                shard.close()


class Life:
    """Pushes what it likes, works it off, and keeps books about it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = world.rng
        self.needs: dict[str, list[str]] = {}  # job -> the jobs it depends on
        self.done: dict[str, None] = {}  # jobs in the order in which they completed
        self.runs: dict[str, int] = {}
        self.flows: list[tuple[list[str], bool]] = []  # ids, acknowledged
        self.pushed: dict[str, bool] = {}  # own id -> acknowledged

    def push_flow(self, number: int) -> None:
        children = [f"child-{number}-{n}" for n in range(self.rng.randrange(1, 5))]
        parent = f"parent-{number}"
        jobs = [
            {"id": child, "queue": self.rng.choice(QUEUES), "input": {"data": {}, "parentId": parent}}
            for child in children
        ]
        jobs.append(
            {
                "id": parent,
                "queue": self.rng.choice(QUEUES),
                "input": {"data": {}, "dependsOn": children, "childrenIds": children},
            }
        )
        self.needs[parent] = children
        reply = self.world.ask(cmd="PUSHF", jobs=jobs)
        assert reply is None or reply["ok"], reply
        self.flows.append(([*children, parent], reply is not None))

    def push_dependent(self, number: int) -> None:
        job_id = f"after-{number}"
        known = [own for own, sure in self.pushed.items() if sure]
        deps = self.rng.sample(known, min(len(known), 2))
        self.needs[job_id] = deps
        reply = self.world.ask(
            cmd="PUSH", queue=self.rng.choice(QUEUES), data=number, jobId=job_id, dependsOn=deps
        )
        assert reply is None or reply["ok"], reply
        self.pushed[job_id] = reply is not None

    def race(self, number: int) -> None:
        """Two clients push the same new id to queues of any shards."""
        job_id = f"race-{number}"
        keys = [
            self.world.send(cmd="PUSH", queue=queue, data=number, jobId=job_id)
            for queue in self.rng.choices(QUEUES, k=2)
        ]
        self.world.settle()
        replies = [self.world.replies.get(key) for key in keys]
        assert all(reply is None or reply.get("id") == job_id for reply in replies), replies
        self.pushed[job_id] = any(reply is not None for reply in replies)

    def work(self) -> bool:
        """Pull a job of some queue and complete it; whether there was one."""
        for queue in self.rng.sample(QUEUES, len(QUEUES)):
            reply = self.world.ask(cmd="PULL", queue=queue, owner="w", lockTtl=86_400_000)
            if reply is not None and reply["job"] is not None:
                self._complete(reply["job"]["id"], reply["token"])
                return True
        return False

    def _complete(self, job_id: str, token: str) -> None:
        missing = [dep for dep in self.needs.get(job_id, ()) if dep not in self.done]
        assert not missing, f"{job_id} started before {missing} had completed"
        self.runs[job_id] = self.runs.get(job_id, 0) + 1
        for _ in range(20):
            self.done.setdefault(job_id)  # as soon as it is sent: the reply may be lost
            reply = self.world.ask(cmd="ACK", id=job_id, token=token)
            if reply is not None:
                return
            if self.world.ask(cmd="GetState", id=job_id) in (
                {"ok": True, "id": job_id, "state": "completed"},
            ):
                return

    def lost_pulls_return(self) -> None:
        """Jobs whose pull was lost with its reply come back when their holder is gone."""
        for shard in self.world.shards:
            shard.engine.disconnect(CONN, self.world.now, severed=False)
            shard.commit()
            shard.peer_messages()


def state_of(world: World, job_id: str) -> str:
    reply = world.ask(cmd="GetState", id=job_id)
    assert reply is not None
    return str(reply["state"])

"""Clients of a simulation: they push, work and ask, and enter what they see in the books."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgpack
from replication.simulation.books import Lease, Wrong
from replication.simulation.host import Connection

from bunqueue.model.ids import slot_of_id, slot_of_queue

if TYPE_CHECKING:
    from replication.simulation.world import World

QUEUES = ("alpha", "beta", "gamma", "delta")  # some on each shard
TTL_MS = (3_000, 10_000, 30_000)
NOBODY = ("Shard unavailable", "The store is unavailable")

Reply = dict[str, Any]


class Client:
    """Connects to any host that listens, again and again."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.rng, self.books, self.scheduler = world.rng, world.books, world.scheduler
        self._connection: Connection | None = None
        self._count = 0
        self.task = world.scheduler.spawn(self.run)

    def run(self) -> None:
        while not self.done:
            self.act()
            self.pause(self.rng.choice((0.0, 0.01, 0.1)))

    @property
    def done(self) -> bool:
        return self.world.is_over

    def act(self) -> None:
        raise NotImplementedError

    def pause(self, seconds: float) -> None:
        self.scheduler.wait(lambda: False, seconds)

    # -- asking

    def ask(self, at: int | None = None, **request: Any) -> Reply | None:
        """The reply; None when nobody can say whether the command was carried out."""
        connection = self._connected()
        self.asked = connection.host
        self._count += 1
        key = f"{self.name}.{self._count}"
        shard = self._shard_of(request) if at is None else at
        payload = msgpack.packb({**request, "reqId": key})
        if not connection.host.command(connection, shard, payload):
            self.pause(0.1)
            return {"ok": False, "error": "Shard unavailable"}
        self.scheduler.wait(lambda: key in connection.replies or connection.is_cut)
        reply = connection.replies.pop(key, None)
        if reply is None or is_away(reply) or self.rng.random() < 0.05:
            self._connection = None  # another host may know more
        return reply

    def insist(self, **request: Any) -> Reply | None:
        """As `ask`, again while it is refused because somebody is away."""
        while True:
            reply = self.ask(**request)
            if reply is None or not is_away(reply):
                return reply
            self.pause(0.2)

    def _connected(self) -> Connection:
        while self._connection is None or self._connection.is_cut or not self._connection.host.listens:
            hosts = [host for host in self.world.hosts if host.listens]
            self._connection = self.rng.choice(hosts).connect() if hosts else None
            if self._connection is None:
                self.pause(0.1)
        return self._connection

    def _shard_of(self, request: Reply) -> int:
        mask = len(self.world.logs) - 1
        if "queue" in request:
            return slot_of_queue(request["queue"]) & mask
        return slot_of_id(request["id"]) & mask if "id" in request else 0

    def nonce(self) -> str:
        self._count += 1
        made = f"{self.name}-{self._count}"
        self.books.sent.add(made)
        return made


def named(nonce: str) -> dict[str, str]:
    """A job's data."""
    return {"n": nonce}


def is_away(reply: Reply) -> bool:
    """Whether it says that nothing was changed, and that the same may be asked again."""
    return not reply["ok"] and reply["error"].startswith(NOBODY)


class Pusher(Client):
    """Pushes single jobs and batches, some again until they are answered."""

    @property
    def done(self) -> bool:
        return self.world.is_calm

    def act(self) -> None:
        self.rng.choice((self._one, self._one, self._batch, self._keyed, self._own_id, self._dependent))()

    def _one(self) -> None:
        nonce, fields = self.nonce(), self._options()
        self._answered(
            [nonce], self.ask(cmd="PUSH", queue=self.rng.choice(QUEUES), data=named(nonce), **fields)
        )

    def _options(self) -> dict[str, Any]:
        rng = self.rng
        fields: dict[str, Any] = {}
        if rng.random() < 0.2:
            fields["delay"] = rng.choice((1, 500, 5_000))
        if rng.random() < 0.2:
            fields["priority"] = rng.randrange(5)
        if rng.random() < 0.1:
            fields["maxAttempts"], fields["backoff"] = 2, 100
        return fields

    def _batch(self) -> None:
        nonces = [self.nonce() for _ in range(self.rng.randint(1, 5))]
        jobs = [{"data": named(nonce), **self._options()} for nonce in nonces]
        self._answered(nonces, self.ask(cmd="PUSHB", queue=self.rng.choice(QUEUES), jobs=jobs))

    def _keyed(self) -> None:
        """A push that can be repeated: it is, until it is answered."""
        nonce, queue = self.nonce(), self.rng.choice(QUEUES)
        while (
            reply := self.insist(cmd="PUSH", queue=queue, data=named(nonce), idempotencyKey=f"key-{nonce}")
        ) is None:
            pass
        self._answered([nonce], reply)

    def _own_id(self) -> None:
        """A new id, whose directory may be on the other shard; pushed until it is answered."""
        nonce, queue = self.nonce(), self.rng.choice(QUEUES)
        own = f"own-{nonce}"
        self.books.open.add(own)
        while (reply := self.insist(cmd="PUSH", queue=queue, data=named(nonce), jobId=own)) is None:
            pass
        self.books.open.remove(own)
        self._answered([nonce], reply)
        if reply.get("id") != own:
            raise Wrong(f"{nonce} was pushed with an id of its own, and got {reply}")

    def _dependent(self) -> None:
        known = [own for own in self.books.acknowledged.values() if own.startswith("own-")]
        if not known:
            return
        nonce = self.nonce()
        own, deps = f"after-{nonce}", self.rng.sample(sorted(known), min(2, len(known)))
        self.books.needs[own] = deps
        queue = self.rng.choice(QUEUES)
        self._answered(
            [nonce], self.ask(cmd="PUSH", queue=queue, data=named(nonce), jobId=own, dependsOn=deps)
        )

    def _answered(self, nonces: list[str], reply: Reply | None) -> None:
        if reply is None:
            return
        if not reply["ok"]:
            if not is_away(reply):
                raise Wrong(f"{nonces} were refused: {reply}")
            self.books.refused.update(nonces)
            return
        for nonce, own in zip(nonces, reply.get("ids") or [reply["id"]], strict=True):
            self.books.acknowledged[nonce] = own


class FlowAuthor(Client):
    """Pushes flows whose jobs are on all shards."""

    @property
    def done(self) -> bool:
        return self.world.is_calm

    def act(self) -> None:
        self.pause(self.rng.random())
        parent = f"parent-{self.nonce()}"
        children = [f"child-{n}-{parent}" for n in range(self.rng.randint(1, 3))]
        self.books.sent.update([parent, *children])
        jobs = [
            {
                "id": child,
                "queue": self.rng.choice(QUEUES),
                "input": {"data": named(child), "parentId": parent},
            }
            for child in children
        ]
        last = {"data": named(parent), "dependsOn": children, "childrenIds": children}
        jobs.append({"id": parent, "queue": self.rng.choice(QUEUES), "input": last})
        self.books.needs[parent] = children
        entry = [[*children, parent], False]
        self.books.flows.append(entry)  # type: ignore[arg-type]
        reply = self.ask(cmd="PUSHF", jobs=jobs)
        if reply is None:
            return
        if reply["ok"]:
            entry[1] = True
        elif is_away(reply):
            self.books.refused.update([parent, *children])
        elif "try again" not in reply["error"]:
            raise Wrong(f"a flow was refused: {reply}")


class Worker(Client):
    """Takes jobs and says what became of them, as often as it takes until that is answered."""

    def act(self) -> None:
        ttl = self.rng.choice(TTL_MS)
        pull: dict[str, Any] = {
            "cmd": "PULL",
            "queue": self.rng.choice(QUEUES),
            "owner": self.name,
            "lockTtl": ttl,
        }
        if self.rng.random() < 0.3:
            pull["timeout"] = 300
        if self.rng.random() < 0.5:
            pull["detach"] = True
        reply = self.ask(**pull)
        if reply is None or not reply["ok"]:
            if reply is not None and not is_away(reply):
                raise Wrong(f"a pull was refused: {reply}")
            return
        if reply["job"] is not None:
            self._work(reply["job"], reply["token"], ttl)

    def _work(self, job: Reply, token: str, ttl: int) -> None:
        lease = self.books.delivered(job, token, ttl, self.asked.ahead_ms)
        if job["id"] in self.books.open:
            return
        self.pause(self.rng.choice((0.0, 0.05, 0.5, ttl / 1000 / 2)))
        if not self.world.is_calm and self.rng.random() < 0.05:
            return  # the worker forgets it; its lock runs out
        if self.rng.random() < 0.1 and job["attempts"] == 0 and job.get("maxAttempts") != 1:
            self._fail(job["id"], token, lease)
        else:
            self._complete(job["id"], token)

    def _fail(self, own: str, token: str, lease: Lease) -> None:
        lease.failed = True  # from the moment on at which it is sent
        while self.insist(cmd="FAIL", id=own, token=token, error="no") is None:
            pass

    def _complete(self, own: str, token: str) -> None:
        self._count += 1
        result = f"{self.name}:{self._count}"
        self.books.results[own].append(result)
        self.books.ended.add(own)
        reply, unsure = None, False
        while reply is None:
            reply = self.insist(cmd="ACK", id=own, token=token, result=result)
            unsure |= reply is None
        if reply["ok"]:
            if self.books.completed.get(own, result) != result:
                raise Wrong(f"{own} was completed twice")
            self.books.completed[own] = result


class Auditor(Client):
    """Asks for what was promised before it asks: nobody may answer as if it had not been."""

    def act(self) -> None:
        self.pause(self.rng.random() / 4)
        books = self.books
        if not books.acknowledged:
            return
        own = self.rng.choice(list(books.acknowledged.values()))
        was_completed = own in books.completed
        reply = self.ask(cmd="GetState", id=own)
        if reply is None or is_away(reply):
            return
        state = reply.get("state")
        if state in (None, "unknown") or (was_completed and state != "completed"):
            raise Wrong(
                f"{own} was acknowledged{' and completed' * was_completed}, and is said to be {reply}"
            )

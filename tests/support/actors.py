"""Clients for tests under kills: each behaves as a real one would and enters what it sees in the ledger."""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from .ledger import Lease, Ledger, payload
from .wire import Address, ConnectionEnded, Reply, Wire, answer_of, now_ms

RETRY_S = 0.05  # before trying again what was refused for the moment
UNAVAILABLE = ("Shard unavailable", "The store is unavailable")  # how such refusals begin
CUT = "connection ended"


def error_of(reply: Reply) -> str | None:
    """The error text of a reply, None when it is ok."""
    if reply.get("ok") is True:
        return None
    return str(reply["error"])


class Actor(ABC):
    """A client that connects again whenever its connection is cut."""

    def __init__(self, name: str, address: Address, ledger: Ledger, seed: str) -> None:
        self.name = name
        self.address = address
        self.ledger = ledger
        self.rng = random.Random(f"{seed}/{name}")
        self.stopping = asyncio.Event()

    async def run(self) -> None:
        """Until told to stop."""
        while not self.done:
            try:
                wire = await Wire.open(self.address)
            except (OSError, TimeoutError):
                await asyncio.sleep(RETRY_S)  # between two tries
                continue
            async with wire:
                try:
                    await self.session(wire)
                except ConnectionEnded:
                    self.ledger.events["connections cut"] += 1

    @property
    def done(self) -> bool:
        return self.stopping.is_set()

    @abstractmethod
    async def session(self, wire: Wire) -> None:
        """What to do while connected; returns to connect anew, or when done."""

    async def insist(self, wire: Wire, cmd: str, **fields: Any) -> Reply:
        """A command, again and again while its shard is unavailable."""
        while True:
            reply = await wire.call(cmd, **fields)
            if not (error_of(reply) or "").startswith(UNAVAILABLE):
                return reply
            self.ledger.events["told unavailable"] += 1
            await asyncio.sleep(RETRY_S)  # between two tries


class Pusher(Actor):
    """Pushes single jobs, many in flight, or batches, as long as not too many wait."""

    MAX_BACKLOG = 1500

    def __init__(
        self, name: str, address: Address, ledger: Ledger, seed: str, queues: Sequence[str], *, batch: int
    ) -> None:
        super().__init__(name, address, ledger, seed)
        self.queues = queues
        self.batch = batch  # 0: single pushes
        self._count = 0

    async def session(self, wire: Wire) -> None:
        while not self.done:
            if self.ledger.backlog > self.MAX_BACKLOG:
                await asyncio.sleep(RETRY_S)  # until others have done some of it
                continue
            push = self._push_batch if self.batch else self._push_singles
            if not await push(wire):
                await asyncio.sleep(RETRY_S)  # between two tries

    def _job(self, queue: str) -> tuple[str, dict[str, Any]]:
        """A job with options of all sorts, and its nonce."""
        rng = self.rng
        self._count += 1
        nonce = f"{self.name}.{self._count}"
        self.ledger.pushing(nonce, queue)
        job: dict[str, Any] = {"data": payload(nonce, rng.choice((10, 100, 1000))), "backoff": 20}
        if rng.random() < 0.1:
            job["delay"] = rng.randrange(50, 1500)
        if rng.random() < 0.1:
            job["priority"] = rng.randrange(-5, 6)
        if rng.random() < 0.1:
            job["lifo"] = True
        if rng.random() < 0.1:
            job["uniqueKey"] = nonce
        if rng.random() < 0.02:
            job["durable"] = True
        if rng.random() < 0.05:
            job["maxAttempts"] = 5
        return nonce, job

    async def _push_singles(self, wire: Wire) -> bool:
        """Push some; False when one was refused."""
        jobs = [(queue, *self._job(queue)) for queue in self.rng.choices(self.queues, k=16)]
        replies = wire.send_many({"cmd": "PUSH", "queue": queue, **job} for queue, _, job in jobs)
        taken, ended = True, None
        for (_, nonce, _), reply in zip(jobs, replies, strict=True):
            try:
                taken &= self._answered([nonce], await answer_of(reply, "PUSH"))
            except ConnectionEnded as error:  # later ones may have been answered all the same
                ended = error
        if ended:
            raise ended
        return taken

    async def _push_batch(self, wire: Wire) -> bool:
        queue = self.rng.choice(self.queues)
        jobs = [self._job(queue) for _ in range(self.rng.randrange(1, self.batch))]
        reply = await wire.call("PUSHB", queue=queue, jobs=[job for _, job in jobs])
        return self._answered([nonce for nonce, _ in jobs], reply)

    def _answered(self, nonces: list[str], reply: Reply) -> bool:
        if error := error_of(reply):
            if not error.startswith(UNAVAILABLE):
                self.ledger.broken.append(f"a push was refused: {error}")
            for nonce in nonces:
                self.ledger.push_refused(nonce)
            return False
        ids = reply["ids"] if "ids" in reply else [reply["id"]]
        if len(ids) != len(nonces):
            self.ledger.broken.append(f"{len(nonces)} jobs were pushed, {len(ids)} ids came")
        for nonce, job_id in zip(nonces, ids, strict=False):
            self.ledger.pushed(nonce, job_id)
        return True


class Worker(Actor):
    """Pulls, holds, answers; keeps what it holds when its connection is cut, and answers it later.

    ``owner``: pulls with a lock of ``ttl_ms``.  ``poll_ms``: long polls; without, it has nothing in flight
    while it holds jobs.  ``fails``: how often it fails a job.  ``leaves``: how often it drops its connection
    of its own accord while it holds jobs.  ``dawdles``: how often it holds jobs for longer than their lock.
    ``beats``: holds jobs for longer than their lock and renews it.  ``idle``: queues without jobs that it
    polls while it holds some, so that the end of their shard cuts a connection that matters to the other.
    """

    def __init__(
        self,
        name: str,
        address: Address,
        ledger: Ledger,
        seed: str,
        queues: Sequence[str],
        *,
        owner: bool = True,
        ttl_ms: int = 12_000,
        count: int = 10,
        poll_ms: int = 300,
        hold_s: float = 0.05,
        batch_ack: bool = False,
        fails: float = 0.0,
        leaves: float = 0.0,
        dawdles: float = 0.0,
        beats: bool = False,
        idle: Sequence[str] = (),
    ) -> None:
        super().__init__(name, address, ledger, seed)
        self.queues = queues
        self.owner = owner
        self.ttl_ms = ttl_ms
        self.count = count
        self.poll_ms = poll_ms
        self.hold_s = hold_s
        self.batch_ack = batch_ack
        self.fails = fails
        self.leaves = leaves
        self.dawdles = dawdles
        self.beats = beats
        self.idle = idle
        self.held: list[Lease] = []
        self.careful = False  # the end is near: no more leaving and dawdling
        self._answers = 0

    @property
    def done(self) -> bool:
        return self.stopping.is_set() and not self.held

    async def session(self, wire: Wire) -> None:
        if not self.owner:
            self.held.clear()  # without a lock they went back when the connection ended
        await self._settle(wire)  # what an earlier connection left
        while not self.stopping.is_set():
            await self._pull(wire, self.rng.choice(self.queues))
            if len(self.queues) > 1 and self.rng.random() < 0.5:
                await self._pull(wire, self.rng.choice(self.queues))
            if not self.held:
                await asyncio.sleep(0 if self.poll_ms else RETRY_S)  # between two tries
                continue
            if not self.careful and self.rng.random() < self.leaves:
                self.ledger.events["left holding jobs"] += len(self.held)
                wire.abort()
                self.held.clear()
                return
            await self._work(wire)
            await self._settle(wire)

    async def _pull(self, wire: Wire, queue: str) -> None:
        fields: dict[str, Any] = {"queue": queue, "timeout": self.poll_ms}
        if self.owner:
            fields |= {"owner": self.name, "lockTtl": self.ttl_ms}
        if self.count == 1:
            reply = await wire.call("PULL", **fields)
            jobs = [reply["job"]] if reply.get("job") else []
            tokens = [reply.get("token")]
        else:
            reply = await wire.call("PULLB", count=self.rng.randrange(1, self.count + 1), **fields)
            jobs = reply.get("jobs", [])
            tokens = reply.get("tokens", [])
        if error := error_of(reply):
            if not error.startswith(UNAVAILABLE):
                self.ledger.broken.append(f"a pull was refused: {error}")
            self.ledger.events["told unavailable"] += 1
            await asyncio.sleep(RETRY_S)  # between two tries
            return
        if self.owner and (len(tokens) < len(jobs) or not all(tokens[: len(jobs)])):
            self.ledger.broken.append(f"{len(jobs)} jobs came with {len(tokens)} tokens")
        for index, job in enumerate(jobs):
            token = tokens[index] if self.owner else None
            self.held.append(self.ledger.delivered(job, queue, self.name, token, float(self.ttl_ms), wire))

    async def _work(self, wire: Wire) -> None:
        """Hold the jobs for a while."""
        if self.beats:
            until = now_ms() + self.ttl_ms * 2
            while now_ms() < until and not self.careful:
                await asyncio.sleep(self.ttl_ms / 6000)  # between two renewals
                await self._beat(wire)
        elif not self.careful and self.rng.random() < self.dawdles:
            await asyncio.sleep(self.ttl_ms / 1000 + self.rng.random() * 6)  # longer than the lock
        elif self.idle:
            wait_ms = int(self.hold_s * 2000 * self.rng.random())
            reply = await wire.call("PULL", queue=self.rng.choice(self.idle), timeout=wait_ms)
            if reply.get("job"):
                self.ledger.broken.append(f"a job came out of an empty queue: {reply}")
        else:
            await asyncio.sleep(self.hold_s * 2 * self.rng.random())  # how long the job runs

    async def _beat(self, wire: Wire) -> None:
        sent = now_ms()
        ids = [lease.job_id for lease in self.held]
        reply = await wire.call("JobHeartbeatB", ids=ids, tokens=[lease.token for lease in self.held])
        if error_of(reply):
            return
        if reply["data"]["count"] == len(ids):
            for lease in self.held:
                lease.renewed_at = sent

    async def _settle(self, wire: Wire) -> None:
        """Answer everything that is held; what is answered is no longer held."""
        if self.batch_ack and len(self.held) > 1:
            await self._ack_batch(wire)
        while self.held:
            lease = self.held[-1]
            if lease.failed_at or (not lease.ack_open and self._dislikes(lease)):
                await self._fail(wire, lease)
            else:
                await self._ack(wire, lease)
            self.held.pop()

    def _dislikes(self, lease: Lease) -> bool:
        """Whether to fail a job."""
        return self.rng.random() < self.fails

    def _result(self, lease: Lease) -> dict[str, Any]:
        self._answers += 1
        result = {"by": self.name, "answer": self._answers}
        self.ledger.results_sent[lease.job_id].append(result)
        return result

    async def _ack(self, wire: Wire, lease: Lease) -> None:
        result = self._result(lease)
        fields: dict[str, Any] = {"id": lease.job_id, "result": result}
        if lease.token is not None:
            fields["token"] = lease.token
        answer = self.ledger.answering(lease, wire)
        try:
            error = error_of(await self.insist(wire, "ACK", **fields))
        except ConnectionEnded:
            lease.ack_open = True
            raise
        self.ledger.answered(answer)
        self.ledger.ack_answered(lease, result, error)

    async def _ack_batch(self, wire: Wire) -> None:
        """Acknowledge all at once.  Unless it worked the fate of each is open, and asked for singly."""
        leases = list(self.held)
        results = [self._result(lease) for lease in leases]
        fields: dict[str, Any] = {"ids": [lease.job_id for lease in leases], "results": results}
        if self.owner:
            fields["tokens"] = [lease.token for lease in leases]
        answers = [self.ledger.answering(lease, wire) for lease in leases]
        try:
            error = error_of(await wire.call("ACKB", **fields))
        except ConnectionEnded:
            error = CUT
        if error != CUT:
            for answer in answers:
                self.ledger.answered(answer, decided=error is None)
        if error is None:
            self.held.clear()
            for lease, result in zip(leases, results, strict=True):
                self.ledger.ack_answered(lease, result, None)
            return
        if error != CUT and not error.startswith(UNAVAILABLE):
            self.ledger.batch_refused(leases, error)
        for lease in leases:
            lease.ack_open = True
        if error == CUT:
            raise ConnectionEnded

    async def _fail(self, wire: Wire, lease: Lease) -> None:
        first = not lease.failed_at
        lease.failed_at = lease.failed_at or now_ms()
        fields: dict[str, Any] = {"id": lease.job_id, "error": f"failed by {self.name}"}
        if lease.token is not None:
            fields["token"] = lease.token
        if first:
            self.ledger.fails_sent[lease.job_id] += 1
        answer = self.ledger.answering(lease, wire, repeats=not first)
        error = error_of(await self.insist(wire, "FAIL", **fields))
        self.ledger.answered(answer)
        self.ledger.fail_answered(lease, error, first=first)


class Watcher(Actor):
    """Asks all shards at once, over and over, as a dashboard does."""

    async def session(self, wire: Wire) -> None:
        while not self.done:
            for cmd in ("Stats", "ListQueues", "Ping"):
                reply = await wire.call(cmd)
                error = error_of(reply)
                if error and not error.startswith(UNAVAILABLE):
                    self.ledger.broken.append(f"{cmd} was refused: {error}")
                if stats := reply.get("stats"):
                    self.ledger.backlog = stats["queued"] + stats["delayed"] + stats["processing"]
            await asyncio.sleep(RETRY_S)  # the pace of the load

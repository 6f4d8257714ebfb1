"""Clients whose jobs belong together, for tests under kills; see `actors`."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import Any

from .actors import RETRY_S, UNAVAILABLE, Actor, Worker, error_of
from .flow_ledger import Flow, FlowLedger
from .ledger import Lease, payload
from .wire import Address, ConnectionEnded, Wire, now_ms

POLICIES = (
    "failParentOnFailure",
    "removeDependencyOnFailure",
    "ignoreDependencyOnFailure",
    "continueParentOnFailure",
)
BEAT_S = 0.5
RIVALS = 3  # of the first racer


class Author(Actor):
    """Pushes with ids of its own, and again until it knows what became of that, or gives up."""

    MAX_BACKLOG = 150
    ledger: FlowLedger

    def __init__(
        self, name: str, address: Address, ledger: FlowLedger, seed: str, queues: Sequence[str]
    ) -> None:
        super().__init__(name, address, ledger, seed)
        self.queues = queues
        self.pending: list[str] = []  # ids of what is being pushed
        self.unsure = False  # it was sent, and the answer is lost
        self.count = 0

    @property
    def done(self) -> bool:
        return self.stopping.is_set() and not self.pending

    async def session(self, wire: Wire) -> None:
        await wire.ok("Hello", protocolVersion=3)
        while not self.done:
            if not self.pending:
                if not self.may_begin() or not self.begin():
                    await asyncio.sleep(RETRY_S)  # until others have ended some
                    continue
                self.ledger.opens(self.pending)
            elif self.unsure and self.gives_up():
                self._end(there=False)
                continue
            await self._push(wire)

    async def _push(self, wire: Wire) -> None:
        cmd, fields = self.request()
        try:
            reply = await wire.call(cmd, **fields)
        except ConnectionEnded:
            self.unsure = True
            raise
        error = error_of(reply)
        if error is None or (self.unsure and self.means_done(error)):
            self._end(there=True)
            return
        if error.startswith(UNAVAILABLE):
            self.ledger.events["told unavailable"] += 1
        elif "try again" in error:
            self.ledger.events["told to try again"] += 1
        else:
            self.ledger.broken.append(f"{cmd} of {self.pending} was refused: {error}")
            self._end(there=False)
        await asyncio.sleep(RETRY_S)  # between two tries

    def _end(self, *, there: bool) -> None:
        self.ended(there=there)
        self.ledger.closes(self.pending, there=there)
        self.pending, self.unsure = [], False

    def job(self, own: str, queue: str) -> dict[str, Any]:
        """Data of a job with an id."""
        self.count += 1
        nonce = f"{self.name}.{self.count}"
        self.ledger.names(own, nonce, queue)
        return payload(nonce, self.rng.choice((10, 100)))

    def may_begin(self) -> bool:
        """Whether there is room for more."""
        return self.ledger.backlog <= self.MAX_BACKLOG

    @abstractmethod
    def begin(self) -> bool:
        """Think of something new, and put its ids into `pending`; False when there is nothing now."""

    @abstractmethod
    def request(self) -> tuple[str, dict[str, Any]]:
        """What to send for that."""

    def means_done(self, error: str) -> bool:
        """Whether an error says that an earlier try has worked."""
        return False

    def gives_up(self) -> bool:
        """Whether to leave it at that, not knowing."""
        return False

    def ended(self, *, there: bool) -> None:
        """What is pending is settled."""


class FlowAuthor(Author):
    """Pushes flows of a parent and some children."""

    flow: Flow

    def begin(self) -> bool:
        number, rng, ledger = len(self.ledger.flows), self.rng, self.ledger
        parent = f"{self.name}-{number}-parent"
        children = [f"{self.name}-{number}-child{n}" for n in range(rng.randrange(1, 6))]
        jobs = []
        for own in children:
            queue = rng.choice(self.queues)
            fields: dict[str, Any] = {"data": self.job(own, queue), "parentId": parent}
            if rng.random() < 0.3:
                fields["removeOnComplete"] = True
                ledger.removable.add(own)
            jobs.append({"id": own, "queue": queue, "input": fields})
        queue = rng.choice(self.queues)
        data = {"data": self.job(parent, queue), "dependsOn": children, "childrenIds": children}
        jobs.append({"id": parent, "queue": queue, "input": data})
        self.flow = flow = Flow(parent, children, jobs)
        if rng.random() < 0.4:
            self._doom(flow)
        if flow.fate != "continueParentOnFailure":
            ledger.needs[parent] = children
        ledger.flows.append(flow)
        ledger.flow_of[parent] = flow
        self.pending = flow.ids
        return True

    def _doom(self, flow: Flow) -> None:
        """Its first child is to fail."""
        child, first = flow.jobs[0]["input"], flow.children[0]
        flow.fate = self.rng.choice(POLICIES)
        child |= {flow.fate: True, "maxAttempts": 1}
        self.ledger.doomed.add(first)
        if flow.fate == "failParentOnFailure":
            self.ledger.doomed.add(flow.parent)
        self.ledger.removable.discard(first)
        child.pop("removeOnComplete", None)
        if self.rng.random() < 0.3:
            child["removeOnFail"] = True
            self.ledger.removable.add(first)

    def request(self) -> tuple[str, dict[str, Any]]:
        return "PUSHF", {"jobs": self.flow.jobs}

    def means_done(self, error: str) -> bool:
        return error.endswith("already exists")

    def gives_up(self) -> bool:
        return self.rng.random() < 0.4

    def ended(self, *, there: bool) -> None:
        self.flow.promised = there


class Follower(Author):
    """Pushes jobs that depend on others, which may have completed or not."""

    fields: dict[str, Any]

    def begin(self) -> bool:
        ledger = self.ledger
        known = [own for own in ledger.promised if own not in ledger.removable and own not in ledger.doomed]
        if not known:
            return False
        self.count += 1
        own, queue = f"{self.name}-{self.count}", self.rng.choice(self.queues)
        deps = self.rng.sample(sorted(known)[-40:], min(len(known), self.rng.randrange(1, 4)))
        self.fields = {"queue": queue, "jobId": own, "data": self.job(own, queue), "dependsOn": deps}
        ledger.needs[own] = deps
        self.pending = [own]
        return True

    def request(self) -> tuple[str, dict[str, Any]]:
        return "PUSH", self.fields


class Race:
    """What racers push at the same time: groups of ids, one after the other."""

    def __init__(self) -> None:
        self.groups: list[list[str]] = []
        self.over = False  # there will be no more groups


class Racer(Author):
    """Pushes the same ids as another one, elsewhere and in another order.  The first one, the ``leader``,
    says which."""

    def __init__(
        self,
        name: str,
        address: Address,
        ledger: FlowLedger,
        seed: str,
        queues: Sequence[str],
        race: Race,
        *,
        leader: bool = False,
    ) -> None:
        super().__init__(name, address, ledger, seed, queues)
        self.race = race
        self.leader = leader
        self.next = 0
        self.jobs: list[dict[str, Any]] = []
        self.queue = ""

    @property
    def done(self) -> bool:
        if self.leader:
            self.race.over = super().done
            return self.race.over
        return self.race.over and self.next == len(self.race.groups) and not self.pending

    def may_begin(self) -> bool:
        return not self.leader or super().may_begin()  # workers wait for what the leader has begun

    def begin(self) -> bool:
        if self.leader:
            size = self.rng.choice((1, 1, 3, 5))
            group = [f"race-{self.next}-{n}" for n in range(size)]
            self.race.groups.append(group)
            for _ in range(RIVALS):  # who have to push it yet
                self.ledger.opens(group)
        elif self.next == len(self.race.groups):
            return False
        self.pending = self.rng.sample(self.race.groups[self.next], len(self.race.groups[self.next]))
        self.next += 1
        self.queue = self.rng.choice(self.queues)
        self.jobs = [{"jobId": own, "data": self.job(own, self.queue)} for own in self.pending]
        return True

    def request(self) -> tuple[str, dict[str, Any]]:
        if len(self.jobs) == 1:
            return "PUSH", {"queue": self.queue, **self.jobs[0]}
        return "PUSHB", {"queue": self.queue, "jobs": self.jobs}

    def ended(self, *, there: bool) -> None:
        if not self.leader:
            self.ledger.open -= Counter(self.pending)


class FamilyWorker(Worker):
    """Finishes a job only when nobody pushes it any more, and looks at what became of its children."""

    ledger: FlowLedger

    async def _settle(self, wire: Wire) -> None:
        beat_at = now_ms()
        while any(self.ledger.open[lease.job_id] for lease in self.held):
            await asyncio.sleep(RETRY_S)  # between two looks
            if now_ms() > beat_at + BEAT_S * 1000:
                beat_at = now_ms()
                await self._beat(wire)
        for lease in self.held:
            if lease.job_id in self.ledger.flow_of:
                reply = await self.insist(wire, "GetChildrenValues", id=lease.job_id)
                self.ledger.saw_values(lease.job_id, reply["data"]["values"])
        together, self.batch_ack = self.batch_ack, self.batch_ack and not any(map(self._dislikes, self.held))
        try:
            await super()._settle(wire)
        finally:
            self.batch_ack = together

    def _dislikes(self, lease: Lease) -> bool:
        return lease.job_id in self.ledger.doomed

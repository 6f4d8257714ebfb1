"""What clients have asked, what they were promised, and what is left in the end."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from replication.simulation.scheduler import START_MS


class Wrong(AssertionError):
    """A promise is broken."""


@dataclass
class Lease:
    """A job in the hands of a worker.  Times in ms since the simulation began, without any host's error."""

    token: str
    begun: float
    ttl: int
    failed: bool = False


@dataclass
class Books:
    sent: set[str] = field(default_factory=set)  # nonces; each is the data of one job
    acknowledged: dict[str, str] = field(default_factory=dict)  # nonce -> id
    refused: set[str] = field(default_factory=set)  # nonces: nothing was changed
    open: set[str] = field(default_factory=set)  # ids that may be pushed again: nobody completes these yet
    flows: list[tuple[list[str], bool]] = field(default_factory=list)  # ids, whether it was acknowledged
    needs: dict[str, list[str]] = field(default_factory=dict)  # id -> ids that must have completed before
    ended: set[str] = field(default_factory=set)  # ids whose end was asked for
    completed: dict[str, Any] = field(default_factory=dict)  # id -> result that was acknowledged
    results: defaultdict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    leases: defaultdict[str, list[Lease]] = field(default_factory=lambda: defaultdict(list))

    @property
    def promises(self) -> int:
        return len(self.acknowledged) + len(self.completed)

    def delivered(self, job: dict[str, Any], token: str, ttl: int, ahead_ms: int) -> Lease:
        """A job came from a host whose clock is ahead by so much."""
        own, begun = job["id"], job["startedAt"] - START_MS - ahead_ms
        if own in self.completed:
            raise Wrong(f"{own} was completed, and is given to somebody again")
        if early := [dep for dep in self.needs.get(own, ()) if dep not in self.ended]:
            raise Wrong(f"{own} is given to somebody before {early} have completed")
        for lease in self.leases[own]:
            if lease.token == token:
                raise Wrong(f"{own} was given to two with one token")
            if not lease.failed and begun < lease.begun + lease.ttl - 1:
                raise Wrong(
                    f"{own} was given away at {lease.begun} for {lease.ttl} ms, and once more at {begun}"
                )
        lease = Lease(token, begun, ttl)
        self.leases[own].append(lease)
        return lease

    def check(self, jobs: list[dict[str, Any]]) -> None:
        """``jobs``: all that there are when everything is done."""
        there = {job["id"]: job for job in jobs}
        if len(there) < len(jobs):
            raise Wrong(
                f"ids are there twice: {[own for own, n in Counter(j['id'] for j in jobs).items() if n > 1]}"
            )
        times = Counter(job["data"]["n"] for job in jobs)
        if twice := [nonce for nonce, count in times.items() if count > 1]:
            raise Wrong(f"pushed once, and there twice: {twice}")
        if strange := times.keys() - self.sent:
            raise Wrong(f"nobody has pushed {strange}")
        if kept := times.keys() & self.refused:
            raise Wrong(f"refused, and there all the same: {kept}")
        for nonce, own in self.acknowledged.items():
            if own not in there or there[own]["data"]["n"] != nonce:
                raise Wrong(f"the push {nonce} was acknowledged as {own}, and is lost")
        for own, result in self.completed.items():
            if there[own]["state"] != "completed" or there[own].get("returnvalue") != result:
                raise Wrong(f"{own} was completed with {result}, and is {there[own]}")
        for ids, acknowledged in self.flows:
            found = [own for own in ids if own in there]
            if found not in ([], ids) or (acknowledged and not found):
                raise Wrong(f"of the flow {ids} there is {found}")
        self._check_states(jobs)

    def _check_states(self, jobs: list[dict[str, Any]]) -> None:
        for job in jobs:
            own, state = job["id"], job["state"]
            if state not in ("completed", "failed"):
                raise Wrong(f"{own} is {state} in the end")
            if state == "completed" and job.get("returnvalue") not in self.results[own]:
                raise Wrong(f"{own} is completed with a result that nobody sent")

"""What clients asked, what they were answered, and which of the promises were broken.  Pure.

Everything is entered when it happens, in seconds of one clock, and judged at the end, with what the server
then has and with the log of the store.  An answer is a promise; without one, both outcomes are right.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

GIVES_WAY_S = 10.0  # for which a disk has less room than a shard needs, before completed jobs are removed


@dataclass(eq=False)
class Push:
    """A job that a client adds, again and again with the same key until it is answered."""

    key: str
    queue: str
    ids: list[str] = field(default_factory=list)  # one for each answer
    delayed_from: float = 0.0  # when it was first sent, if it is to wait; else 0
    due: float = 0.0  # it must not run before that
    first_sent: float = 0.0
    last_sent: float = 0.0


@dataclass(eq=False)
class Flow:
    """Jobs that are added together under ids of the client's."""

    ids: list[str]
    added: bool = False  # it was answered


@dataclass(eq=False)
class Delivery:
    """A job in the hands of a worker; nobody else may have it before ``until``."""

    job: str
    data: Any
    queue: str
    worker: str
    token: str
    at: float
    until: float
    late: bool = False  # it may have been given to somebody before, who never heard of it


class Ack(NamedTuple):
    """A completion that was acknowledged."""

    job: str
    token: str
    result: Any


class Final(NamedTuple):
    """A job as the server has it in the end."""

    state: str
    result: Any


class Entry(NamedTuple):
    """A record of a shard's log."""

    shard: int
    seq: int
    epoch: int


@dataclass
class History:
    """One run."""

    pushes: list[Push] = field(default_factory=list)
    flows: list[Flow] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    acks: list[Ack] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)  # answers that no fault explains
    without_room: list[tuple[float, str]] = field(default_factory=list)
    """Refusals because a disk is full, and when they came."""
    full_disks: list[tuple[float, float]] = field(default_factory=list)
    """From when to when that of a host was.  In a long time completed jobs give way: docs/durability.md."""
    wrong_clocks: list[tuple[float, float]] = field(default_factory=list)
    """From when to when a host had another time than the rest."""

    def problems(self, final: Mapping[str, Final], log: Iterable[Entry]) -> list[str]:
        """Every broken promise, as a sentence.  ``final``: the jobs that there are in the end."""
        gone = self._given_way() - final.keys()
        return [
            *self.refused,
            *(text for at, text in self.without_room if not _within(self.full_disks, at, at)),
            *self._lost(final, gone),
            *self._twice(),
            *self._results(final, gone),
            *self._held_twice(),
            *self._order(),
            *self._early(),
            *self._flows(final, gone),
            *log_problems(log),
        ]

    def _given_way(self) -> set[str]:
        """The jobs that a shard may have removed, once they were completed, because a disk was full."""
        last = max((end for begun, end in self.full_disks if end - begun >= GIVES_WAY_S), default=0.0)
        return {delivery.job for delivery in self.deliveries if delivery.at <= last}

    def _lost(self, final: Mapping[str, Final], gone: set[str]) -> list[str]:
        """Each job whose push was answered is there, and has run."""
        return [
            f"the push {push.key} was answered with {job}, which is "
            + (f"{final[job].state} in the end" if job in final else "gone")
            for push in self.pushes
            for job in dict.fromkeys(push.ids)
            if job not in gone and (job not in final or final[job].state != "completed")
        ]

    def _twice(self) -> list[str]:
        """One key is one job, and one job has one key.

        A key that was stored by a host whose clock is two hours behind is two hours old for the next owner.
        """
        out_of_time = {
            push.key for push in self.pushes if _within(self.wrong_clocks, push.first_sent, push.last_sent)
        }
        found = [
            f"the push {push.key} made the jobs {sorted(set(push.ids))}"
            for push in self.pushes
            if len(set(push.ids)) > 1 and push.key not in out_of_time
        ]
        jobs: defaultdict[str, set[str]] = defaultdict(set)
        for delivery in self.deliveries:
            jobs[str(delivery.data)].add(delivery.job)
        return found + [
            f"{data} was delivered as the jobs {sorted(ids)}"
            for data, ids in jobs.items()
            if len(ids) > 1 and data not in out_of_time
        ]

    def _results(self, final: Mapping[str, Final], gone: set[str]) -> list[str]:
        """A job completes once, and keeps the result that was acknowledged."""
        times = Counter(ack.job for ack in self.acks)
        found = [f"{job} was acknowledged {count} times" for job, count in times.items() if count > 1]
        for ack in self.acks:
            end = final.get(ack.job)
            if ack.job not in gone and (end is None or end.result != ack.result):
                found.append(
                    f"{ack.job} was acknowledged with {ack.result!r}, and has {end and end.result!r}"
                )
        return found

    def _held_twice(self) -> list[str]:
        """While the lock of a worker runs, and after it has completed the job, nobody else gets it."""
        found = []
        acked = {ack.job: ack.token for ack in self.acks}
        by_job: defaultdict[str, list[Delivery]] = defaultdict(list)
        for delivery in self.deliveries:
            by_job[delivery.job].append(delivery)
        for job, held in by_job.items():
            for one, other in pairwise(sorted(held, key=lambda delivery: delivery.at)):
                if other.at < one.until or acked.get(job) == one.token:
                    found.append(
                        f"{job} was held by {one.worker} until {one.until:.2f}, and given to {other.worker} "
                        f"at {other.at:.2f}"
                    )
        return found

    def _order(self) -> list[str]:
        """A worker gets the jobs of a queue in the order in which one client has added them.

        Judged by those that were delivered once: any other may have been given to a connection that was cut.
        """
        number = {
            job: place for place, push in enumerate(self.pushes) for job in push.ids if not push.delayed_from
        }
        times = Counter(delivery.job for delivery in self.deliveries)
        lines: defaultdict[tuple[str, str], list[Delivery]] = defaultdict(list)
        for delivery in self.deliveries:
            if times[delivery.job] == 1 and delivery.job in number and not delivery.late:
                lines[delivery.worker, delivery.queue].append(delivery)
        return [
            f"{worker} got {other.job} after {one.job}, which was added later to {queue}"
            for (worker, queue), line in lines.items()
            for one, other in pairwise(line)
            if number[one.job] > number[other.job]
        ]

    def _early(self) -> list[str]:
        """A job with a delay waits for it.

        The shard of a host whose clock is set forward, or is ahead, follows it: then delays end earlier.  No
        other fault makes them.
        """
        first: dict[str, float] = {}
        for delivery in self.deliveries:
            first[delivery.job] = min(delivery.at, first.get(delivery.job, delivery.at))
        return [
            f"{push.key} was delivered {push.due - first[job]:.2f} s before it was due"
            for push in self.pushes
            for job in dict.fromkeys(push.ids)
            if first.get(job, push.due) < push.due
            and not _within(self.wrong_clocks, push.delayed_from, first[job])
        ]

    def _flows(self, final: Mapping[str, Final], gone: set[str]) -> list[str]:
        """All jobs of a flow are there, or none of them."""
        found = []
        for flow in self.flows:
            there = [job for job in flow.ids if job in final or job in gone]
            if there and len(there) < len(flow.ids):
                found.append(f"of the flow {flow.ids} there are only {there}")
            elif flow.added and not there:
                found.append(f"the flow {flow.ids} was acknowledged and is gone")
            elif unfinished := [job for job in there if job in final and final[job].state != "completed"]:
                found.append(f"of the flow {flow.ids} these never ran: {unfinished}")
        return found


def _within(times: Iterable[tuple[float, float]], begun: float, ended: float) -> bool:
    """Whether one of these times has a moment in common with that from ``begun`` to ``ended``."""
    return any(one <= ended and begun <= other for one, other in times)


def log_problems(log: Iterable[Entry]) -> list[str]:
    """The log of each shard has no gap, no position twice, and epochs that ascend."""
    found = []
    shards: defaultdict[int, list[Entry]] = defaultdict(list)
    for entry in log:
        shards[entry.shard].append(entry)
    for shard, entries in shards.items():
        for one, other in pairwise(sorted(entries, key=lambda entry: entry.seq)):
            if other.seq != one.seq + 1:
                found.append(f"the log of shard {shard} goes from {one.seq} to {other.seq}")
            if other.epoch < one.epoch:
                found.append(f"the log of shard {shard} goes back from epoch {one.epoch} to {other.epoch}")
    return found

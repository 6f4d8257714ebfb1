"""The books of a test under kills about jobs that belong together, and whose ids clients choose."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from .ledger import Lease, Ledger
from .wire import Wire


@dataclass(eq=False)
class Flow:
    """One flow, as it is pushed.  ``fate`` of its first child, if that is to fail, is a policy."""

    parent: str
    children: list[str]
    jobs: list[dict[str, Any]]
    fate: str = ""
    promised: bool = False  # the server has said that it is there

    @property
    def ids(self) -> list[str]:
        return [*self.children, self.parent]


@dataclass
class FlowLedger(Ledger):
    """Everything that happened in one run.  Here all ids are chosen by clients."""

    flows: list[Flow] = field(default_factory=list)
    flow_of: dict[str, Flow] = field(default_factory=dict)  # by the id of the parent
    needs: dict[str, list[str]] = field(default_factory=dict)  # id -> what must have completed before
    removable: set[str] = field(default_factory=set)  # ids of jobs that are removed on completion
    open: Counter[str] = field(default_factory=Counter)  # ids that somebody may still push
    promised: set[str] = field(default_factory=set)  # ids that the server has said are there
    holders: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # id -> nonces

    @property
    def progress(self) -> int:
        return len(self.promised) + len(self.acked) + self.fails_acked.total()

    # What happens

    def opens(self, ids: list[str]) -> None:
        """Somebody is about to push jobs with these ids, perhaps several times."""
        self.open.update(ids)

    def closes(self, ids: list[str], *, there: bool) -> None:
        """... and has done so; ``there``: the server has said so, too."""
        self.open -= Counter(ids)
        if there:
            self.promised.update(ids)

    def names(self, job_id: str, nonce: str, queue: str) -> None:
        """A push that may make the job with an id."""
        self.pushing(nonce, queue)
        self.holders[job_id].add(nonce)

    def delivered(
        self, job: dict[str, Any], queue: str, worker: str, token: str | None, ttl: float, wire: Wire
    ) -> Lease:
        job_id = job["id"]
        if job["data"]["n"] not in self.holders[job_id]:
            self.broken.append(f"{job_id} came with data that nobody pushed for it")
        early = [dep for dep in self.needs.get(job_id, ()) if not self._has_ended(dep)]
        if early:
            self.broken.append(f"{job_id} was given to {worker} before {early} had completed")
        return super().delivered(job, queue, worker, token, ttl, wire)

    def _has_ended(self, job_id: str) -> bool:
        """Whether somebody has at least asked for its end."""
        return bool(self.results_sent[job_id] or self.fails_sent[job_id])

    def saw_values(self, parent: str, values: dict[str, Any]) -> None:
        """What a parent was told of its children's results."""
        flow = self.flow_of[parent]
        for job in flow.jobs[:-1]:
            own, key = job["id"], f"{job['queue']}:{job['id']}"
            if own in self.doomed:
                if key in values:
                    self.broken.append(f"{parent} sees {values[key]!r} of {own}, which never completes")
            elif key not in values:
                # The id of a removed child may have been pushed anew: that one has not completed yet.
                if flow.fate != "continueParentOnFailure" and own not in self.removable:
                    self.broken.append(f"{parent} does not see the result of {own}")
            elif values[key] not in self.results_sent[own]:
                self.broken.append(f"{parent} sees {values[key]!r} of {own}, which nobody sent")

    # What is left

    def problems(self, found: list[dict[str, Any]]) -> list[str]:
        out = list(self.broken)
        by_id = {job["id"]: job for job in found}
        out += self._of_ids(found, by_id)
        for flow in self.flows:
            out += self._of_flow(flow, by_id)
        for job in found:
            out += self._of_job(job)
        for job_id in self.acked.keys() - by_id.keys() - self.removable:
            out.append(f"{job_id} was acknowledged as completed and is gone")
        for job_id, leases in self.leases.items():
            out += self._of_leases(job_id, leases)
        return out

    def _of_ids(self, found: list[dict[str, Any]], by_id: dict[str, dict[str, Any]]) -> list[str]:
        times = Counter(job["id"] for job in found)
        out = [f"id {job_id} is there {count} times" for job_id, count in times.items() if count > 1]
        out += [f"nobody pushed {job_id}" for job_id in times if job_id not in self.holders]
        for job_id in self.promised:
            if not self._was_there(job_id, by_id):
                out.append(f"{job_id} was acknowledged and is gone")
            elif job_id in self.removable and job_id in by_id:
                out.append(f"{job_id} is kept, though it was to be removed")
        return out

    def _was_there(self, job_id: str, by_id: dict[str, dict[str, Any]]) -> bool:
        return job_id in by_id or (job_id in self.removable and self._has_ended(job_id))

    def _of_flow(self, flow: Flow, by_id: dict[str, dict[str, Any]]) -> list[str]:
        there = [own for own in flow.ids if self._was_there(own, by_id)]
        if not there:
            return [f"the flow of {flow.parent} is gone"] if flow.promised else []
        if there != flow.ids:
            return [f"of the flow of {flow.parent} there is {there} only"]
        state = by_id[flow.parent]["state"]
        wanted = "failed" if flow.fate == "failParentOnFailure" else "completed"
        why = flow.fate or "all children completed"
        return [] if state == wanted else [f"{flow.parent} is {state}, though {why}"]

    def outcome(self) -> dict[str, int]:
        """In numbers."""
        return {
            "flows": len(self.flows),
            "promised flows": sum(flow.promised for flow in self.flows),
            "promised ids": len(self.promised),
            "acks": len(self.acked),
            "fails": self.fails_acked.total(),
            **self.events,
        }

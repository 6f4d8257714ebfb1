"""A flow with an id, as the server reports it."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from bunqueue.errors import ResultError
from bunqueue.protocol.commands import Reply
from bunqueue.protocol.moments import MaybeMoment, Moment


class _ChildValues(Struct):
    values: dict[str, Any]
    lost: list[str] = []


class ChildValuesReply(Reply, kw_only=True):
    """The results of a job's children."""

    data: _ChildValues

    def values(self, parent: str, *, partial: bool) -> dict[str, Any]:
        """By "queue:id". Raises ResultError unless all results are stored, or `partial`."""
        values, lost = self.data.values, self.data.lost
        if lost and not partial:
            named = ", ".join(lost[:3]) + (f" and {len(lost) - 3} more" if len(lost) > 3 else "")
            raise ResultError(
                f"{len(lost)} children of job {parent} have completed, and their results are not kept any "
                f"more: {named}; have completed jobs kept for longer, or ask for what is left: partial=True",
                field="children",
                value=lost,
                job_id=parent,
            )
        return values


class FlowMember(Struct, rename="camel", kw_only=True, frozen=True):
    """A job of a flow as it is now."""

    name: str
    """Its name in the flow."""
    id: str
    queue: str
    job: str
    """The name of the job, which selects its handler."""
    state: str
    """As for any job, including cancelled."""
    after: list[str] = []
    """The names of the jobs that it depends on."""
    pending: list[str] = []
    """Those of them that it is still waiting for."""
    attempts: int = 0
    """The number of failed attempts."""
    max_attempts: int = 1
    created_at_ms: float = msgspec.field(name="createdAt")
    started_at_ms: float | None = msgspec.field(default=None, name="startedAt")
    finished_at_ms: float | None = msgspec.field(default=None, name="finishedAt")
    error: str | None = None
    gathers: str | None = None
    """complete or success, if it is a job that runs at the end of a batch."""

    created_at = Moment("created_at_ms")
    started_at = MaybeMoment("started_at_ms")
    finished_at = MaybeMoment("finished_at_ms")


class BatchInfo(Struct, kw_only=True, frozen=True):
    """What a batch is waiting for."""

    open: bool
    """Whether it accepts more jobs."""
    jobs: int
    """The number of its jobs, without those that run at its end."""
    completed: int
    failed: int
    """Failed for good, including cancelled jobs."""
    waiting: list[str] = []
    """The jobs at its end that have not ended: on-complete, on-success, or both."""


class FlowInfo(Struct, kw_only=True, frozen=True):
    """A flow as it is now."""

    id: str
    state: str
    """running while a job has not ended; then failed, cancelled or completed."""
    counts: dict[str, int] = {}
    """The number of jobs by state."""
    nodes: list[FlowMember] = []
    """Its jobs, in the order of their addition; jobs added together are sorted by name."""
    more: bool = False
    """There are more than 10,000 jobs, and the rest is left out."""
    batch: BatchInfo | None = None
    """For a batch; None for other flows."""

    def __getitem__(self, name: str) -> FlowMember:
        """A job by its name. Raises KeyError."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise KeyError(name)


class FlowLine(Struct, rename="camel", kw_only=True, frozen=True):
    """A flow in a list."""

    id: str
    state: str | None
    """Like the state of a FlowInfo. None: there are more than 1,000 jobs, and the first of them
    have ended.
    """
    counts: dict[str, int] = {}
    """The number of jobs by state: of all jobs, or with `more` of the first 1,000 or slightly more."""
    created_at_ms: float = msgspec.field(name="createdAt")
    open: bool | None = None
    """Whether it accepts more jobs, if it is a batch."""
    more: bool = False

    created_at = Moment("created_at_ms")


class FlowPage(Struct, kw_only=True, frozen=True):
    """A page of a list of flows."""

    flows: list[FlowLine] = []
    cursor: str | None = None
    """Pass it as `after` to get the next page; None: this is the last page."""


class SomeFlows(Reply, kw_only=True):
    data: FlowPage


class OneFlow(Reply, kw_only=True):
    data: FlowInfo

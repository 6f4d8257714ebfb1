"""A flow with an id as the server has it."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from bunqueue.protocol.commands import Reply
from bunqueue.protocol.moments import MaybeMoment, Moment


class FlowMember(Struct, rename="camel", kw_only=True, frozen=True):
    """A job of a flow as it is now."""

    name: str
    """Its name in the flow."""
    id: str
    queue: str
    job: str
    """The name of the job, which says what runs it."""
    state: str
    """As of any job; cancelled, too."""
    after: list[str] = []
    """The names of the jobs that it is to wait for."""
    pending: list[str] = []
    """Those of them that it waits for still."""
    attempts: int = 0
    """How many have failed."""
    max_attempts: int = 1
    created_at_ms: float = msgspec.field(name="createdAt")
    started_at_ms: float | None = msgspec.field(default=None, name="startedAt")
    finished_at_ms: float | None = msgspec.field(default=None, name="finishedAt")
    error: str | None = None

    created_at = Moment("created_at_ms")
    started_at = MaybeMoment("started_at_ms")
    finished_at = MaybeMoment("finished_at_ms")


class FlowInfo(Struct, kw_only=True, frozen=True):
    """A flow as it is now."""

    id: str
    state: str
    """running while a job has not ended; then failed, cancelled or completed."""
    counts: dict[str, int] = {}
    """How many jobs are in which state."""
    nodes: list[FlowMember] = []
    """Its jobs, those that were added first first; of those added together by name."""
    more: bool = False
    """There are more than 10,000 jobs, and the rest is left out."""

    def __getitem__(self, name: str) -> FlowMember:
        """A job by its name. Raises KeyError."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise KeyError(name)


class OneFlow(Reply, kw_only=True):
    data: FlowInfo

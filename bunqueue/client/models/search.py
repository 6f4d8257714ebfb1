"""What a search gives."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from bunqueue.client.models.jobs import Job
from bunqueue.protocol.commands import Reply
from bunqueue.protocol.commands.find import ChangeReply, Plan, Progress

MAX_EXAMPLES = 20


class FoundJobs(Reply, kw_only=True):
    """The reply of FindJobs."""

    jobs: list[Job]
    cursor: str | None
    plan: Plan
    progress: Progress


class SearchPlan(Struct, frozen=True):
    """How a search finds its jobs."""

    by: list[str]
    """Which fields of the filter tell where they are: name, tag, group, created, finished, queue or state;
    none: all jobs are looked at."""
    jobs: int
    """How many jobs are looked at, at most."""


class FoundPage(Struct):
    """A page of jobs that were found."""

    jobs: list[Job]
    cursor: str | None
    """For the next page; None: there are no more jobs."""
    plan: SearchPlan
    """How they were found; `jobs` counts from the beginning of this page."""
    scanned: int = 0
    """How many jobs were looked at for this page, about."""
    found: int = 0
    """How many jobs this page has."""
    unreadable: int = 0
    """Of these, how many stand in a damaged part of a file, so that nobody knows what they are."""

    def __iter__(self) -> Iterator[Job]:
        return iter(self.jobs)

    def __len__(self) -> int:
        return len(self.jobs)

    def add(self, reply: FoundJobs) -> bool:
        """More jobs; whether there may be others."""
        if not self.jobs and not self.scanned:
            self.plan = SearchPlan(reply.plan.by, reply.plan.jobs)
        self.jobs += reply.jobs
        self.cursor = reply.cursor
        self.scanned += reply.progress.scanned
        self.found += reply.progress.found
        self.unreadable += reply.progress.unreadable
        return reply.cursor is not None


class ChangedJobs(Struct):
    """What was done to jobs that a search has found."""

    changed: int = 0
    """How many jobs were changed; of a dry run, how many would be, at most."""
    skipped: dict[str, int] = {}
    """How many were found and left alone, by reason: active, completed, unique-key, flow and so on."""
    examples: list[str] = []
    """The ids of the first that were changed, at most 20."""
    more: bool = False
    """Whether the limit was reached, so that there may be others."""
    scanned: int = 0
    """How many jobs were looked at, about."""
    plan: SearchPlan = SearchPlan([], 0)
    """How they were found."""

    def add(self, reply: ChangeReply) -> None:
        """More of them."""
        self.changed += reply.data.changed
        for reason, count in reply.data.skipped.items():
            self.skipped[reason] = self.skipped.get(reason, 0) + count
        self.examples = [*self.examples, *reply.data.examples][:MAX_EXAMPLES]
        self.scanned += reply.progress.scanned

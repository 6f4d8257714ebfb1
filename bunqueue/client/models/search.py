"""What a search returns."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from bunqueue.client.models.jobs import Job
from bunqueue.protocol.commands import Reply
from bunqueue.protocol.commands.find import ChangeReply, Plan, Progress

MAX_EXAMPLES = 20


class FoundJobs(Reply, kw_only=True):
    """The reply to FindJobs."""

    jobs: list[Job]
    cursor: str | None
    plan: Plan
    progress: Progress


class SearchPlan(Struct, frozen=True):
    """How a search finds its jobs."""

    by: list[str]
    """The fields of the filter that narrow the search: name, tag, group, created, finished, queue or state;
    empty: all jobs are checked.
    """
    jobs: int
    """The maximum number of jobs to check."""


class FoundPage(Struct):
    """A page of jobs that were found."""

    jobs: list[Job]
    cursor: str | None
    """The cursor of the next page; None: this is the last page."""
    plan: SearchPlan
    """How they were found; `jobs` counts from the beginning of this page."""
    scanned: int = 0
    """The approximate number of jobs checked for this page."""
    found: int = 0
    """The number of jobs on this page."""
    unreadable: int = 0
    """How many of these are in a damaged part of a file, so that their content is unknown."""

    def __iter__(self) -> Iterator[Job]:
        return iter(self.jobs)

    def __len__(self) -> int:
        return len(self.jobs)

    def add(self, reply: FoundJobs) -> bool:
        """Add jobs; returns whether there may be others."""
        if not self.jobs and not self.scanned:
            self.plan = SearchPlan(reply.plan.by, reply.plan.jobs)
        self.jobs += reply.jobs
        self.cursor = reply.cursor
        self.scanned += reply.progress.scanned
        self.found += reply.progress.found
        self.unreadable += reply.progress.unreadable
        return reply.cursor is not None


class ChangedJobs(Struct):
    """What was done to the jobs that a search found."""

    changed: int = 0
    """The number of changed jobs; for a dry run, the maximum that would be changed."""
    skipped: dict[str, int] = {}
    """The number of jobs that were found but left alone, by reason: active, completed, unique-key, flow and
    so on.
    """
    examples: list[str] = []
    """The ids of the first changed jobs, at most 20."""
    more: bool = False
    """Whether the limit was reached, so there may be others."""
    scanned: int = 0
    """The approximate number of jobs checked."""
    plan: SearchPlan = SearchPlan([], 0)
    """How they were found."""

    def add(self, reply: ChangeReply) -> None:
        """Add the counts of another reply."""
        self.changed += reply.data.changed
        for reason, count in reply.data.skipped.items():
            self.skipped[reason] = self.skipped.get(reason, 0) + count
        self.examples = [*self.examples, *reply.data.examples][:MAX_EXAMPLES]
        self.scanned += reply.progress.scanned

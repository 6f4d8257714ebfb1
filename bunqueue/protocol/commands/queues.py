"""Ruling over queues: stopping them, emptying them, deleting them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from bunqueue.protocol.commands.base import Command, QueueName, Reply, Route, command
from bunqueue.protocol.commands.query import CountReply

Age = Annotated[float, Meta(ge=0, le=10**15)]  # ms
CleanLimit = Annotated[int, Meta(ge=0, le=1_000_000)]


class PausedReply(Reply, kw_only=True):
    paused: bool


class CleanReply(Reply, kw_only=True):
    """The jobs that were removed."""

    count: int
    ids: list[str]


class PriorityCountsReply(Reply, kw_only=True):
    """How many jobs wait for their turn or their time, by priority."""

    queue: str
    counts: dict[str, int]


@command(Route.QUEUE, writes=True, repeatable=True)
class Pause(Command, tag="Pause"):
    """Give out no more jobs of a queue until Resume; everything else goes on.  Outlives a restart."""

    queue: QueueName


@command(Route.QUEUE, writes=True, repeatable=True)
class Resume(Command, tag="Resume"):
    """Give out jobs of a paused queue again, to those that wait for some at once."""

    queue: QueueName


@command(Route.QUEUE, PausedReply)
class IsPaused(Command, tag="IsPaused"):
    """Whether a queue is paused."""

    queue: QueueName


@command(Route.QUEUE, CountReply, writes=True, repeatable=True, heavy=True)
class Drain(Command, tag="Drain"):
    """Remove the waiting and delayed jobs of a queue."""

    queue: QueueName


@command(Route.QUEUE, writes=True, repeatable=True, heavy=True)
class Obliterate(Command, tag="Obliterate"):
    """Remove a queue: its jobs in all states, and all that was set for it."""

    queue: QueueName


@command(Route.QUEUE, CleanReply, writes=True, repeatable=True, heavy=True)
class Clean(Command, tag="Clean"):
    """Remove jobs older than ``grace`` ms, oldest first, at most ``limit``.

    Of one state, or without it those that wait for their turn or their time.  These age from their push,
    completed ones from their completion, failed ones from their last attempt.  Active ones are never removed.
    """

    queue: QueueName
    grace: Age = 0
    state: str | None = None
    limit: CleanLimit = 1000


@command(Route.QUEUE, CountReply, writes=True, repeatable=True, heavy=True, since=3)
class PromoteJobs(Command, tag="PromoteJobs"):
    """Let delayed jobs of a queue run now: all of them, or the ``count`` that were pushed first."""

    queue: QueueName
    count: Annotated[int, Meta(ge=0, le=10**15)] | None = None


@command(Route.QUEUE, PriorityCountsReply, heavy=True)
class GetCountsPerPriority(Command, tag="GetCountsPerPriority"):
    """How many jobs of a queue wait for their turn or their time, by priority."""

    queue: QueueName

"""Flows: jobs that depend on each other, and what a parent can read of its children."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Raw, Struct

from bunqueue.protocol.commands.base import Command, JobId, Key, Reply, Route, Token, command
from bunqueue.protocol.commands.core import JobFields


class FlowJob(Struct, kw_only=True, rename="camel", gc=False):
    """One job of a flow; ``input`` has the fields of a push."""

    id: Key
    queue: str
    input: JobFields


class FlowJobs(Struct, gc=False):
    jobs: Raw  # a list of jobs, encoded by protocol.job_view


class FlowReply(Reply, kw_only=True):
    data: FlowJobs


class ChildValues(Struct, gc=False):
    values: dict[str, Raw]  # "queue:id" -> result


class ChildValuesReply(Reply, kw_only=True):
    data: ChildValues


class ChildErrorsReply(Reply, kw_only=True):
    values: dict[str, str]  # "queue:id" -> error


class RemovedReply(Reply, kw_only=True):
    removed: bool


@command(Route.FIRST, FlowReply, writes=True, since=3, grows=True)
class PushFlow(Command, tag="PUSHF"):
    """Push jobs that depend on each other, in any queues: all of them, or none if one is refused."""

    jobs: Annotated[list[FlowJob], Meta(max_length=10_000)]


@command(Route.ID, ChildValuesReply)
class GetChildrenValues(Command, tag="GetChildrenValues"):
    """Get the results of a job's children; those without a result are left out."""

    id: JobId


@command(Route.ID, ChildErrorsReply, since=3)
class GetFailedChildrenValues(Command, tag="GetFailedChildrenValues"):
    """Get the errors of a job's children that failed and let their parent continue."""

    id: JobId


@command(Route.ID, ChildErrorsReply, since=3)
class GetIgnoredChildrenFailures(Command, tag="GetIgnoredChildrenFailures"):
    """Get the errors of a job's children whose failure is ignored."""

    id: JobId


@command(Route.FIRST, writes=True, repeatable=True, since=3)
class UpdateParent(Command, tag="UpdateParent"):
    """Make one job the child of another, which then waits for it."""

    child_id: JobId
    parent_id: JobId


@command(Route.ID, RemovedReply, writes=True, since=3)
class RemoveChildDependency(Command, tag="RemoveChildDependency"):
    """Detach a job from its parent, which then no longer waits for it."""

    id: JobId


class Moved(Struct, gc=False):
    moved: bool


class MovedReply(Reply, kw_only=True):
    data: Moved


@command(Route.ID, MovedReply, writes=True, since=3)
class MoveToWaitingChildren(Command, tag="MoveToWaitingChildren"):
    """Put an active job back until its children have completed."""

    id: JobId
    token: Token | None = None


@command(Route.ID, writes=True, repeatable=True, since=3)
class RemoveUnprocessedChildren(Command, tag="RemoveUnprocessedChildren"):
    """Remove those children of a job that have not started."""

    id: JobId

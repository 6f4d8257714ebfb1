"""Groups: the jobs of a queue that share a ``groupId``, which have limits and a pause of their own."""

from __future__ import annotations

from msgspec import Struct

from bunqueue.protocol.commands.base import Command, QueueName, Reply, Route, command
from bunqueue.protocol.commands.core import GroupId, PositiveInt


class CountOf(Struct, gc=False):
    count: int


class GroupCountReply(Reply, kw_only=True):
    data: CountOf


class GroupRate(Struct, gc=False):
    """At most ``max`` jobs in ``duration`` ms from the first of them on."""

    max: float | int
    duration: float | int


class RateOf(Struct, gc=False):
    limit: GroupRate | None


class GroupRateReply(Reply, kw_only=True):
    data: RateOf


class TtlOf(Struct, gc=False):
    """ms until the window of the group ends; -2 when none runs."""

    ttl: float | int


class GroupTtlReply(Reply, kw_only=True):
    data: TtlOf


class ConcurrencyOf(Struct, gc=False):
    concurrency: float | int | None


class GroupConcurrencyReply(Reply, kw_only=True):
    data: ConcurrencyOf


class RemovedLimits(Struct, gc=False):
    removed: int  # 0 or 1


class RemovedLimitReply(Reply, kw_only=True):
    data: RemovedLimits


class Change(Struct, gc=False):
    changed: bool


class ChangeReply(Reply, kw_only=True):
    data: Change


class Pause(Struct, gc=False):
    paused: bool


class GroupPausedReply(Reply, kw_only=True):
    data: Pause


class OfGroup(Command):
    """What the commands for one group have in common."""

    queue: QueueName
    group_id: GroupId


@command(Route.QUEUE, GroupCountReply)
class GetGroupJobsCount(OfGroup, tag="GetGroupJobsCount"):
    """How many jobs of a group are queued: all but the active ones."""


@command(Route.QUEUE, GroupCountReply)
class GetGroupsJobsCount(Command, tag="GetGroupsJobsCount"):
    """How many jobs of all groups of a queue are queued."""

    queue: QueueName


@command(Route.QUEUE, GroupCountReply)
class GetGroupActiveCount(OfGroup, tag="GetGroupActiveCount"):
    """How many jobs of a group are active."""


@command(Route.QUEUE, writes=True, repeatable=True)
class SetGroupRateLimit(OfGroup, tag="SetGroupRateLimit"):
    """Let at most ``max`` jobs of a group through in ``duration`` ms, whatever a pull says."""

    max: PositiveInt
    duration: PositiveInt


@command(Route.QUEUE, GroupRateReply)
class GetGroupRateLimit(OfGroup, tag="GetGroupRateLimit"):
    """The rate limit that was set for a group."""


@command(Route.QUEUE, RemovedLimitReply, writes=True, repeatable=True)
class RemoveGroupRateLimit(OfGroup, tag="RemoveGroupRateLimit"):
    """Take the rate limit of a group away."""


@command(Route.QUEUE, GroupTtlReply)
class GetGroupRateLimitTtl(OfGroup, tag="GetGroupRateLimitTtl"):
    """How long the present window of a group lasts."""


@command(Route.QUEUE, writes=True, repeatable=True)
class SetGroupConcurrency(OfGroup, tag="SetGroupConcurrency"):
    """Let at most ``concurrency`` jobs of a group be active at a time, whatever a pull says."""

    concurrency: PositiveInt


@command(Route.QUEUE, GroupConcurrencyReply)
class GetGroupConcurrency(OfGroup, tag="GetGroupConcurrency"):
    """The concurrency limit that was set for a group."""


@command(Route.QUEUE, RemovedLimitReply, writes=True, repeatable=True)
class RemoveGroupConcurrency(OfGroup, tag="RemoveGroupConcurrency"):
    """Take the concurrency limit of a group away."""


@command(Route.QUEUE, ChangeReply, writes=True, repeatable=True)
class PauseGroup(OfGroup, tag="PauseGroup"):
    """Deliver no jobs of a group until it is resumed."""


@command(Route.QUEUE, ChangeReply, writes=True, repeatable=True)
class ResumeGroup(OfGroup, tag="ResumeGroup"):
    """Deliver the jobs of a group again."""


@command(Route.QUEUE, GroupPausedReply)
class IsGroupPaused(OfGroup, tag="IsGroupPaused"):
    """Whether a group is paused."""


@command(Route.QUEUE, writes=True, repeatable=True)
class RateLimitGroup(OfGroup, tag="RateLimitGroup"):
    """Deliver no jobs of a group for the next ``duration`` ms."""

    duration: PositiveInt

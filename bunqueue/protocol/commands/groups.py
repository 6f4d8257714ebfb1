"""Groups: jobs of a queue that share a ``groupId``.  A group has its own limits and can be paused."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from bunqueue.model.groups import GroupDefaults, Weight
from bunqueue.protocol.commands.base import (
    Command,
    Number,
    Offset,
    Ok,
    PageSize,
    QueueName,
    R,
    Reply,
    Route,
    Tag,
    command,
    http,
)
from bunqueue.protocol.commands.core import GroupId, PositiveInt
from bunqueue.protocol.commands.query import DataLimit, JobsReply, StateNames


class CountOf(Struct, gc=False):
    count: int


class GroupCountReply(Reply, kw_only=True):
    data: CountOf


class GroupRate(Struct, gc=False):
    """At most ``max`` jobs within ``duration`` ms, counted from the first of them."""

    max: float | int
    duration: float | int


class RateOf(Struct, gc=False):
    limit: GroupRate | None


class GroupRateReply(Reply, kw_only=True):
    data: RateOf


class TtlOf(Struct, gc=False):
    """``ttl`` is the ms until the group's current window ends; -2 without a window."""

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


class OfGroup(Command[R]):
    """The common fields of commands on one group."""

    queue: QueueName
    group_id: GroupId


@http("GET /queues/{queue}/groups/{groupId}/count", Tag.GROUPS)
@command(Route.QUEUE)
class GetGroupJobsCount(OfGroup[GroupCountReply], tag="GetGroupJobsCount"):
    """Count the queued jobs of a group: all but the active ones."""


@http("GET /queues/{queue}/groups/count", Tag.GROUPS)
@command(Route.QUEUE)
class GetGroupsJobsCount(Command[GroupCountReply], tag="GetGroupsJobsCount"):
    """Count the queued jobs of all groups of a queue."""

    queue: QueueName


@http("GET /queues/{queue}/groups/{groupId}/active", Tag.GROUPS)
@command(Route.QUEUE)
class GetGroupActiveCount(OfGroup[GroupCountReply], tag="GetGroupActiveCount"):
    """Count the active jobs of a group."""


@http("PUT /queues/{queue}/groups/{groupId}/rate-limit", Tag.GROUPS)
@command(Route.QUEUE, writes=True, repeatable=True)
class SetGroupRateLimit(OfGroup[Ok], tag="SetGroupRateLimit"):
    """Deliver at most ``max`` jobs of a group per ``duration`` ms; this overrides the limits of pulls."""

    max: PositiveInt
    duration: PositiveInt


@http("GET /queues/{queue}/groups/{groupId}/rate-limit", Tag.GROUPS)
@command(Route.QUEUE)
class GetGroupRateLimit(OfGroup[GroupRateReply], tag="GetGroupRateLimit"):
    """Get the rate limit that was set for a group."""


@http("DELETE /queues/{queue}/groups/{groupId}/rate-limit", Tag.GROUPS)
@command(Route.QUEUE, writes=True, repeatable=True)
class RemoveGroupRateLimit(OfGroup[RemovedLimitReply], tag="RemoveGroupRateLimit"):
    """Remove the rate limit of a group."""


@http("GET /queues/{queue}/groups/{groupId}/rate-limit/ttl", Tag.GROUPS)
@command(Route.QUEUE)
class GetGroupRateLimitTtl(OfGroup[GroupTtlReply], tag="GetGroupRateLimitTtl"):
    """Get the ms until the current rate limit window of a group ends."""


@http("PUT /queues/{queue}/groups/{groupId}/concurrency", Tag.GROUPS)
@command(Route.QUEUE, writes=True, repeatable=True)
class SetGroupConcurrency(OfGroup[Ok], tag="SetGroupConcurrency"):
    """Let at most ``concurrency`` jobs of a group be active at a time; this overrides the limits of pulls."""

    concurrency: PositiveInt


@http("GET /queues/{queue}/groups/{groupId}/concurrency", Tag.GROUPS)
@command(Route.QUEUE)
class GetGroupConcurrency(OfGroup[GroupConcurrencyReply], tag="GetGroupConcurrency"):
    """Get the concurrency limit that was set for a group."""


@http("DELETE /queues/{queue}/groups/{groupId}/concurrency", Tag.GROUPS)
@command(Route.QUEUE, writes=True, repeatable=True)
class RemoveGroupConcurrency(OfGroup[RemovedLimitReply], tag="RemoveGroupConcurrency"):
    """Remove the concurrency limit of a group."""


@http("POST /queues/{queue}/groups/{groupId}/pause", Tag.GROUPS)
@command(Route.QUEUE, writes=True, repeatable=True)
class PauseGroup(OfGroup[ChangeReply], tag="PauseGroup"):
    """Pause a group: its jobs are not delivered until it is resumed."""


@http("POST /queues/{queue}/groups/{groupId}/resume", Tag.GROUPS)
@command(Route.QUEUE, writes=True, repeatable=True)
class ResumeGroup(OfGroup[ChangeReply], tag="ResumeGroup"):
    """Resume a paused group."""


@http("GET /queues/{queue}/groups/{groupId}/paused", Tag.GROUPS)
@command(Route.QUEUE)
class IsGroupPaused(OfGroup[GroupPausedReply], tag="IsGroupPaused"):
    """Whether a group is paused."""


@http("POST /queues/{queue}/groups/{groupId}/hold", Tag.GROUPS)
@command(Route.QUEUE, writes=True, repeatable=True)
class RateLimitGroup(OfGroup[Ok], tag="RateLimitGroup"):
    """Deliver no jobs of a group for the next ``duration`` ms."""

    duration: PositiveInt


class GroupSettings(Struct, rename="camel", omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """The changes to a queue's GroupDefaults.  Numbers may be given as text; null removes a limit."""

    concurrency: Number | UnsetType | None = UNSET
    max: Number | UnsetType | None = UNSET
    duration: Number | UnsetType = UNSET


@http("PUT /queues/{queue}/groups/defaults", Tag.GROUPS)
@command(Route.QUEUE, writes=True, repeatable=True)
class SetGroupDefaults(Command[Ok], tag="SetGroupDefaults"):
    """Change the limits for groups of a queue without limits of their own; absent fields keep their values.

    The limits apply to existing and future groups, and override the limits that a pull names.
    """

    queue: QueueName
    config: GroupSettings


class GroupDefaultsReply(Reply, kw_only=True):
    config: GroupDefaults


@http("GET /queues/{queue}/groups/defaults", Tag.GROUPS)
@command(Route.QUEUE)
class GetGroupDefaults(Command[GroupDefaultsReply], tag="GetGroupDefaults"):
    """Get the limits for groups of a queue without limits of their own."""

    queue: QueueName


@http("PUT /queues/{queue}/groups/{groupId}/weight", Tag.GROUPS)
@command(Route.QUEUE, writes=True, repeatable=True)
class SetGroupWeight(OfGroup[Ok], tag="SetGroupWeight"):
    """Give a group a larger share of the turns in fair pulls: a group with a weight of 3 gets three turns for
    each turn of a group with a weight of 1.
    """

    weight: Weight


class WeightOf(Struct, gc=False):
    weight: int | None


class GroupWeightReply(Reply, kw_only=True):
    data: WeightOf


@http("GET /queues/{queue}/groups/{groupId}/weight", Tag.GROUPS)
@command(Route.QUEUE)
class GetGroupWeight(OfGroup[GroupWeightReply], tag="GetGroupWeight"):
    """Get the weight that was set for a group; null: it has the default, 1."""


@http("DELETE /queues/{queue}/groups/{groupId}/weight", Tag.GROUPS)
@command(Route.QUEUE, writes=True, repeatable=True)
class RemoveGroupWeight(OfGroup[RemovedLimitReply], tag="RemoveGroupWeight"):
    """Remove the weight of a group; it becomes 1."""


@http("GET /queues/{queue}/groups/{groupId}/jobs", Tag.GROUPS)
@command(Route.QUEUE, heavy=True)
class GetGroupJobs(OfGroup[JobsReply], tag="GetGroupJobs"):
    """Get the unfinished jobs of a group, in the order of their arrival.

    ``state`` and ``dataLimit`` are as in GetJobs.
    """

    state: StateNames | None = None
    limit: PageSize = 100
    offset: Offset = 0
    data_limit: DataLimit | None = None

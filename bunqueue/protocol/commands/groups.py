"""Groups: jobs of a queue that share a ``groupId``.  A group has its own limits and can be paused."""

from msgspec import UNSET, Struct, UnsetType

from bunqueue.model.groups import GroupDefaults, Weight
from bunqueue.model.rights import Verb
from bunqueue.protocol.commands.base import (
    Data,
    Number,
    Offset,
    OfQueue,
    Ok,
    PageSize,
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


class GroupRate(Struct, gc=False):
    """At most ``max`` jobs within ``duration`` ms, counted from the first of them."""

    max: float | int
    duration: float | int


class RateOf(Struct, gc=False):
    limit: GroupRate | None


class TtlOf(Struct, gc=False):
    """``ttl`` is the ms until the group's current window ends; -2 without a window."""

    ttl: float | int


class ConcurrencyOf(Struct, gc=False):
    concurrency: float | int | None


class RemovedLimits(Struct, gc=False):
    removed: int  # 0 or 1


class Change(Struct, gc=False):
    changed: bool


class Pause(Struct, gc=False):
    paused: bool


class OfGroup(OfQueue[R]):
    """The common fields of commands on one group."""

    group_id: GroupId


@http("GET /queues/{queue}/groups/{groupId}/count", Tag.GROUPS)
@command(Route.QUEUE, Verb.SEE)
class GetGroupJobsCount(OfGroup[Data[CountOf]], tag="GetGroupJobsCount"):
    """Count the queued jobs of a group: all but the active ones."""


@http("GET /queues/{queue}/groups/count", Tag.GROUPS)
@command(Route.QUEUE, Verb.SEE)
class GetGroupsJobsCount(OfQueue[Data[CountOf]], tag="GetGroupsJobsCount"):
    """Count the queued jobs of all groups of a queue."""


@http("GET /queues/{queue}/groups/{groupId}/active", Tag.GROUPS)
@command(Route.QUEUE, Verb.SEE)
class GetGroupActiveCount(OfGroup[Data[CountOf]], tag="GetGroupActiveCount"):
    """Count the active jobs of a group."""


@http("PUT /queues/{queue}/groups/{groupId}/rate-limit", Tag.GROUPS)
@command(Route.QUEUE, Verb.OPERATE, writes=True, repeatable=True)
class SetGroupRateLimit(OfGroup[Ok], tag="SetGroupRateLimit"):
    """Deliver at most ``max`` jobs of a group per ``duration`` ms; this overrides the limits of pulls."""

    max: PositiveInt
    duration: PositiveInt


@http("GET /queues/{queue}/groups/{groupId}/rate-limit", Tag.GROUPS)
@command(Route.QUEUE, Verb.SEE)
class GetGroupRateLimit(OfGroup[Data[RateOf]], tag="GetGroupRateLimit"):
    """Get the rate limit that was set for a group."""


@http("DELETE /queues/{queue}/groups/{groupId}/rate-limit", Tag.GROUPS)
@command(Route.QUEUE, Verb.OPERATE, writes=True, repeatable=True)
class RemoveGroupRateLimit(OfGroup[Data[RemovedLimits]], tag="RemoveGroupRateLimit"):
    """Remove the rate limit of a group."""


@http("GET /queues/{queue}/groups/{groupId}/rate-limit/ttl", Tag.GROUPS)
@command(Route.QUEUE, Verb.SEE)
class GetGroupRateLimitTtl(OfGroup[Data[TtlOf]], tag="GetGroupRateLimitTtl"):
    """Get the ms until the current rate limit window of a group ends."""


@http("PUT /queues/{queue}/groups/{groupId}/concurrency", Tag.GROUPS)
@command(Route.QUEUE, Verb.OPERATE, writes=True, repeatable=True)
class SetGroupConcurrency(OfGroup[Ok], tag="SetGroupConcurrency"):
    """Let at most ``concurrency`` jobs of a group be active at a time; this overrides the limits of pulls."""

    concurrency: PositiveInt


@http("GET /queues/{queue}/groups/{groupId}/concurrency", Tag.GROUPS)
@command(Route.QUEUE, Verb.SEE)
class GetGroupConcurrency(OfGroup[Data[ConcurrencyOf]], tag="GetGroupConcurrency"):
    """Get the concurrency limit that was set for a group."""


@http("DELETE /queues/{queue}/groups/{groupId}/concurrency", Tag.GROUPS)
@command(Route.QUEUE, Verb.OPERATE, writes=True, repeatable=True)
class RemoveGroupConcurrency(OfGroup[Data[RemovedLimits]], tag="RemoveGroupConcurrency"):
    """Remove the concurrency limit of a group."""


@http("POST /queues/{queue}/groups/{groupId}/pause", Tag.GROUPS)
@command(Route.QUEUE, Verb.OPERATE, writes=True, repeatable=True)
class PauseGroup(OfGroup[Data[Change]], tag="PauseGroup"):
    """Pause a group: its jobs are not delivered until it is resumed."""


@http("POST /queues/{queue}/groups/{groupId}/resume", Tag.GROUPS)
@command(Route.QUEUE, Verb.OPERATE, writes=True, repeatable=True)
class ResumeGroup(OfGroup[Data[Change]], tag="ResumeGroup"):
    """Resume a paused group."""


@http("GET /queues/{queue}/groups/{groupId}/paused", Tag.GROUPS)
@command(Route.QUEUE, Verb.SEE)
class IsGroupPaused(OfGroup[Data[Pause]], tag="IsGroupPaused"):
    """Whether a group is paused."""


@http("POST /queues/{queue}/groups/{groupId}/hold", Tag.GROUPS)
@command(Route.QUEUE, Verb.RUN | Verb.OPERATE, writes=True, repeatable=True)
class RateLimitGroup(OfGroup[Ok], tag="RateLimitGroup"):
    """Deliver no jobs of a group for the next ``duration`` ms."""

    duration: PositiveInt


class GroupSettings(Struct, rename="camel", omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """The changes to a queue's GroupDefaults.  Numbers may be given as text; null removes a limit."""

    concurrency: Number | UnsetType | None = UNSET
    max: Number | UnsetType | None = UNSET
    duration: Number | UnsetType = UNSET


@http("PUT /queues/{queue}/groups/defaults", Tag.GROUPS)
@command(Route.QUEUE, Verb.OPERATE, writes=True, repeatable=True)
class SetGroupDefaults(OfQueue[Ok], tag="SetGroupDefaults"):
    """Change the limits for groups of a queue without limits of their own; absent fields keep their values.

    The limits apply to existing and future groups, and override the limits that a pull names.
    """

    config: GroupSettings


class GroupDefaultsReply(Reply, kw_only=True):
    config: GroupDefaults


@http("GET /queues/{queue}/groups/defaults", Tag.GROUPS)
@command(Route.QUEUE, Verb.SEE)
class GetGroupDefaults(OfQueue[GroupDefaultsReply], tag="GetGroupDefaults"):
    """Get the limits for groups of a queue without limits of their own."""


@http("PUT /queues/{queue}/groups/{groupId}/weight", Tag.GROUPS)
@command(Route.QUEUE, Verb.OPERATE, writes=True, repeatable=True)
class SetGroupWeight(OfGroup[Ok], tag="SetGroupWeight"):
    """Give a group a larger share of the turns in fair pulls: a group with a weight of 3 gets three turns for
    each turn of a group with a weight of 1.
    """

    weight: Weight


class WeightOf(Struct, gc=False):
    weight: int | None


@http("GET /queues/{queue}/groups/{groupId}/weight", Tag.GROUPS)
@command(Route.QUEUE, Verb.SEE)
class GetGroupWeight(OfGroup[Data[WeightOf]], tag="GetGroupWeight"):
    """Get the weight that was set for a group; null: it has the default, 1."""


@http("DELETE /queues/{queue}/groups/{groupId}/weight", Tag.GROUPS)
@command(Route.QUEUE, Verb.OPERATE, writes=True, repeatable=True)
class RemoveGroupWeight(OfGroup[Data[RemovedLimits]], tag="RemoveGroupWeight"):
    """Remove the weight of a group; it becomes 1."""


@http("GET /queues/{queue}/groups/{groupId}/jobs", Tag.GROUPS)
@command(Route.QUEUE, Verb.SEE | Verb.READ, heavy=True)
class GetGroupJobs(OfGroup[JobsReply], tag="GetGroupJobs"):
    """Get the unfinished jobs of a group, in the order of their arrival.

    ``state`` and ``dataLimit`` are as in GetJobs.
    """

    state: StateNames | None = None
    limit: PageSize = 100
    offset: Offset = 0
    data_limit: DataLimit | None = None

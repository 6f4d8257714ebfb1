"""The commands for groups, and the maximum size of a group."""

from __future__ import annotations

from msgspec.json import Decoder

from bunqueue.model.groups import NO_DEFAULTS, GroupDefaults
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError, Ok
from bunqueue.protocol.commands.core import JobFields, Push
from bunqueue.protocol.commands.groups import (
    Change,
    ChangeReply,
    ConcurrencyOf,
    CountOf,
    GetGroupActiveCount,
    GetGroupConcurrency,
    GetGroupDefaults,
    GetGroupJobsCount,
    GetGroupRateLimit,
    GetGroupRateLimitTtl,
    GetGroupsJobsCount,
    GetGroupWeight,
    GroupConcurrencyReply,
    GroupCountReply,
    GroupDefaultsReply,
    GroupPausedReply,
    GroupRate,
    GroupRateReply,
    GroupTtlReply,
    GroupWeightReply,
    IsGroupPaused,
    OfGroup,
    Pause,
    PauseGroup,
    RateLimitGroup,
    RateOf,
    RemovedLimitReply,
    RemovedLimits,
    RemoveGroupConcurrency,
    RemoveGroupRateLimit,
    RemoveGroupWeight,
    ResumeGroup,
    SetGroupConcurrency,
    SetGroupDefaults,
    SetGroupRateLimit,
    SetGroupWeight,
    TtlOf,
    WeightOf,
)
from bunqueue.protocol.configuration import changed
from bunqueue.protocol.numbers import number

from ..lookup import known_queue
from ..ready import queue_limits
from ..ready.group import Group, GroupRecord
from ..ready.groups import Groups
from ..registry import at_queue, at_queue_in, handles, recovers, when_obliterated
from ..state import Client, QueueState, State
from .limits import admit, named_queue

NO_WINDOW = -2  # the reply to GetGroupRateLimitTtl when no window runs

_decode = Decoder(GroupRecord).decode
_decode_defaults = Decoder(GroupDefaults).decode
_UNKNOWN = Group("")


class GroupSpace:
    """Counts the jobs of one push in their groups."""

    __slots__ = ("_groups", "_taken")

    def __init__(self, queue: QueueState) -> None:
        self._groups = _groups(queue)
        self._taken: dict[str, int] = {}

    def take(self, fields: JobFields | Push) -> None:
        """CommandError if the group of a new job already has as many queued jobs as the push allows."""
        group_id, most = fields.group_id, fields.group_max_size
        if group_id is None:
            return
        taken = self._taken.get(group_id, 0)
        if most is not None and _find(self._groups, group_id).queued + taken >= most:
            raise CommandError(
                f"Group {group_id} has reached its maximum size of {most}",
                Code.GROUP_FULL,
                field="groupMaxSize",
                value=group_id,
                bound=most,
            )
        self._taken[group_id] = taken + 1


@handles(GetGroupJobsCount)
def get_group_jobs_count(state: State, client: Client, command: GetGroupJobsCount) -> GroupCountReply:
    return GroupCountReply(data=CountOf(_asked(state, command).queued))


@handles(GetGroupsJobsCount)
def get_groups_jobs_count(state: State, client: Client, command: GetGroupsJobsCount) -> GroupCountReply:
    groups = _groups(known_queue(state, command.queue))
    return GroupCountReply(data=CountOf(0 if groups is None else groups.queued))


@handles(GetGroupActiveCount)
def get_group_active_count(state: State, client: Client, command: GetGroupActiveCount) -> GroupCountReply:
    return GroupCountReply(data=CountOf(_asked(state, command).active))


@handles(SetGroupRateLimit)
def set_group_rate_limit(state: State, client: Client, command: SetGroupRateLimit) -> Ok:
    _change(state, command, max=command.max, duration=command.duration)
    return Ok()


@handles(GetGroupRateLimit)
def get_group_rate_limit(state: State, client: Client, command: GetGroupRateLimit) -> GroupRateReply:
    found = _asked(state, command).record
    limit = None if found.max is None else GroupRate(number(found.max), number(found.duration))
    return GroupRateReply(data=RateOf(limit))


@handles(RemoveGroupRateLimit)
def remove_group_rate_limit(state: State, client: Client, command: RemoveGroupRateLimit) -> RemovedLimitReply:
    removed = _asked(state, command).record.max is not None
    if removed:
        _change(state, command, max=None, duration=0)
    return RemovedLimitReply(data=RemovedLimits(int(removed)))


@handles(GetGroupRateLimitTtl)
def get_group_rate_limit_ttl(state: State, client: Client, command: GetGroupRateLimitTtl) -> GroupTtlReply:
    left = _asked(state, command).window_end() - state.now
    return GroupTtlReply(data=TtlOf(number(left) if left > 0 else NO_WINDOW))


@handles(SetGroupConcurrency)
def set_group_concurrency(state: State, client: Client, command: SetGroupConcurrency) -> Ok:
    _change(state, command, concurrency=command.concurrency)
    return Ok()


@handles(GetGroupConcurrency)
def get_group_concurrency(
    state: State, client: Client, command: GetGroupConcurrency
) -> GroupConcurrencyReply:
    found = _asked(state, command).record.concurrency
    return GroupConcurrencyReply(data=ConcurrencyOf(None if found is None else number(found)))


@handles(RemoveGroupConcurrency)
def remove_group_concurrency(
    state: State, client: Client, command: RemoveGroupConcurrency
) -> RemovedLimitReply:
    removed = _asked(state, command).record.concurrency is not None
    if removed:
        _change(state, command, concurrency=None)
    return RemovedLimitReply(data=RemovedLimits(int(removed)))


@handles(SetGroupDefaults)
def set_group_defaults(state: State, client: Client, command: SetGroupDefaults) -> Ok:
    defaults = changed(queue_limits.group_defaults(known_queue(state, command.queue)), command.config)
    admit(state, queue_limits.DEFAULTS_RECORD, command.queue)
    _store_defaults(state, named_queue(state, command.queue), defaults)
    return Ok()


@handles(GetGroupDefaults)
def get_group_defaults(state: State, client: Client, command: GetGroupDefaults) -> GroupDefaultsReply:
    return GroupDefaultsReply(config=queue_limits.group_defaults(known_queue(state, command.queue)))


def _store_defaults(state: State, queue: QueueState, defaults: GroupDefaults) -> None:
    queue_limits.set_group_defaults(queue, defaults)
    is_usual = defaults == NO_DEFAULTS
    state.out.keep(queue_limits.DEFAULTS_RECORD, queue.name, None if is_usual else defaults)
    if queue.waiters:
        state.woken[queue] = None


@handles(SetGroupWeight)
def set_group_weight(state: State, client: Client, command: SetGroupWeight) -> Ok:
    _change(state, command, weight=command.weight)
    return Ok()


@handles(GetGroupWeight)
def get_group_weight(state: State, client: Client, command: GetGroupWeight) -> GroupWeightReply:
    return GroupWeightReply(data=WeightOf(_asked(state, command).record.weight))


@handles(RemoveGroupWeight)
def remove_group_weight(state: State, client: Client, command: RemoveGroupWeight) -> RemovedLimitReply:
    removed = _asked(state, command).record.weight is not None
    if removed:
        _change(state, command, weight=None)
    return RemovedLimitReply(data=RemovedLimits(int(removed)))


@handles(PauseGroup)
def pause_group(state: State, client: Client, command: PauseGroup) -> ChangeReply:
    return _pause(state, command, paused=True)


@handles(ResumeGroup)
def resume_group(state: State, client: Client, command: ResumeGroup) -> ChangeReply:
    return _pause(state, command, paused=False)


@handles(IsGroupPaused)
def is_group_paused(state: State, client: Client, command: IsGroupPaused) -> GroupPausedReply:
    return GroupPausedReply(data=Pause(_asked(state, command).record.paused))


@handles(RateLimitGroup)
def rate_limit_group(state: State, client: Client, command: RateLimitGroup) -> Ok:
    _change(state, command, held_until=state.now + command.duration, held_from=state.now)
    return Ok()


def _names(key: str) -> tuple[str, str]:
    """The names of the queue and of the group."""
    queue, _, group_id = key.partition("/")  # a queue's name contains no "/"
    return queue, group_id


@recovers(queue_limits.GROUP_RECORD, at_queue_in)
def recover_group(state: State, key: str, value: str) -> None:
    name, group_id = _names(key)
    queue = state.queues.get(name)
    if queue is not None:
        queue_limits.groups_of(queue).recover(group_id, _decode(value))


@recovers(queue_limits.DEFAULTS_RECORD, at_queue)
def recover_defaults(state: State, key: str, value: str) -> None:
    queue = state.queues.get(key)
    if queue is not None:
        queue_limits.set_group_defaults(queue, _decode_defaults(value))


@when_obliterated
def forget_groups(state: State, queue: QueueState) -> None:
    if queue_limits.group_defaults(queue) != NO_DEFAULTS:
        _store_defaults(state, queue, NO_DEFAULTS)
    groups = _groups(queue)
    if groups is not None:
        groups.reset(state.now)
        queue_limits.keep_groups(state, queue, groups)


def _groups(queue: QueueState | None) -> Groups | None:
    return None if queue is None or queue.gate is None else queue.gate.groups


def _find(groups: Groups | None, group_id: str) -> Group:
    """A group to read from; it need not exist."""
    return _UNKNOWN if groups is None else groups.by_id.get(group_id, _UNKNOWN)


def _asked(state: State, command: OfGroup) -> Group:
    return _find(_groups(known_queue(state, command.queue)), command.group_id)


def _pause(state: State, command: OfGroup, *, paused: bool) -> ChangeReply:
    changed = _asked(state, command).record.paused != paused
    if changed:
        _change(state, command, paused=paused)
    return ChangeReply(data=Change(changed))


def _change(state: State, command: OfGroup, **changes: bool | int | None) -> None:
    """Change the limits of a group, and serve the parked pulls that these now allow."""
    key = queue_limits.key_of_group(command.queue, command.group_id)
    state.kept.admit(queue_limits.GROUP_RECORD, key, "groupId", command.group_id)
    queue = named_queue(state, command.queue)
    groups = queue_limits.groups_of(queue)
    group = groups.group(command.group_id)
    for name, value in changes.items():
        setattr(group.record, name, value)
    groups.changed[group.id] = group
    groups.offer(group)
    groups.drop_if_idle(group, state.now)
    queue_limits.keep_groups(state, queue, groups)
    if queue.waiters:
        state.woken[queue] = None

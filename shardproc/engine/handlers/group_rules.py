"""The commands for groups, and the maximum size of a group."""

from __future__ import annotations

from typing import NamedTuple

from msgspec.json import Decoder

from bunqueue.model.groups import NO_DEFAULTS, GroupDefaults
from bunqueue.model.names import parts_of, record_key
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError, Data, Ok
from bunqueue.protocol.commands.core import JobFields, Push
from bunqueue.protocol.commands.groups import (
    Change,
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
    GroupDefaultsReply,
    GroupRate,
    IsGroupPaused,
    OfGroup,
    Pause,
    PauseGroup,
    RateLimitGroup,
    RateOf,
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
def get_group_jobs_count(state: State, client: Client, command: GetGroupJobsCount) -> Data[CountOf]:
    return Data(data=CountOf(_asked(state, command).queued))


@handles(GetGroupsJobsCount)
def get_groups_jobs_count(state: State, client: Client, command: GetGroupsJobsCount) -> Data[CountOf]:
    groups = _groups(known_queue(state, command.queue))
    return Data(data=CountOf(0 if groups is None else groups.queued))


@handles(GetGroupActiveCount)
def get_group_active_count(state: State, client: Client, command: GetGroupActiveCount) -> Data[CountOf]:
    return Data(data=CountOf(_asked(state, command).active))


class _Limit(NamedTuple):
    """A limit of a group: the commands that set and remove it, and its fields as they are without it."""

    setting: type[OfGroup]
    removal: type[OfGroup]
    unset: dict[str, int | None]


_LIMITS = (
    _Limit(SetGroupRateLimit, RemoveGroupRateLimit, {"max": None, "duration": 0}),
    _Limit(SetGroupConcurrency, RemoveGroupConcurrency, {"concurrency": None}),
    _Limit(SetGroupWeight, RemoveGroupWeight, {"weight": None}),
)


def _handle(limit: _Limit) -> None:
    def set_limit(state: State, client: Client, command: OfGroup) -> Ok:
        _change(state, command, **{name: getattr(command, name) for name in limit.unset})
        return Ok()

    def remove_limit(state: State, client: Client, command: OfGroup) -> Data[RemovedLimits]:
        record = _asked(state, command).record
        removed = any(getattr(record, name) != value for name, value in limit.unset.items())
        if removed:
            _change(state, command, **limit.unset)
        return Data(data=RemovedLimits(int(removed)))

    handles(limit.setting)(set_limit)
    handles(limit.removal)(remove_limit)


for _limit in _LIMITS:
    _handle(_limit)


@handles(GetGroupRateLimit)
def get_group_rate_limit(state: State, client: Client, command: GetGroupRateLimit) -> Data[RateOf]:
    found = _asked(state, command).record
    limit = None if found.max is None else GroupRate(number(found.max), number(found.duration))
    return Data(data=RateOf(limit))


@handles(GetGroupRateLimitTtl)
def get_group_rate_limit_ttl(state: State, client: Client, command: GetGroupRateLimitTtl) -> Data[TtlOf]:
    left = _asked(state, command).window_end() - state.now
    return Data(data=TtlOf(number(left) if left > 0 else NO_WINDOW))


@handles(GetGroupConcurrency)
def get_group_concurrency(state: State, client: Client, command: GetGroupConcurrency) -> Data[ConcurrencyOf]:
    found = _asked(state, command).record.concurrency
    return Data(data=ConcurrencyOf(None if found is None else number(found)))


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


@handles(GetGroupWeight)
def get_group_weight(state: State, client: Client, command: GetGroupWeight) -> Data[WeightOf]:
    return Data(data=WeightOf(_asked(state, command).record.weight))


@handles(PauseGroup)
def pause_group(state: State, client: Client, command: PauseGroup) -> Data[Change]:
    return _pause(state, command, paused=True)


@handles(ResumeGroup)
def resume_group(state: State, client: Client, command: ResumeGroup) -> Data[Change]:
    return _pause(state, command, paused=False)


@handles(IsGroupPaused)
def is_group_paused(state: State, client: Client, command: IsGroupPaused) -> Data[Pause]:
    return Data(data=Pause(_asked(state, command).record.paused))


@handles(RateLimitGroup)
def rate_limit_group(state: State, client: Client, command: RateLimitGroup) -> Ok:
    _change(state, command, held_until=state.now + command.duration, held_from=state.now)
    return Ok()


@recovers(queue_limits.GROUP_RECORD, at_queue_in)
def recover_group(state: State, key: str, value: str) -> None:
    name, group_id = parts_of(key)
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
    return None if queue is None or queue.limits is None else queue.limits.groups


def _find(groups: Groups | None, group_id: str) -> Group:
    """A group to read from; it need not exist."""
    return _UNKNOWN if groups is None else groups.by_id.get(group_id, _UNKNOWN)


def _asked(state: State, command: OfGroup) -> Group:
    return _find(_groups(known_queue(state, command.queue)), command.group_id)


def _pause(state: State, command: OfGroup, *, paused: bool) -> Data[Change]:
    changed = _asked(state, command).record.paused != paused
    if changed:
        _change(state, command, paused=paused)
    return Data(data=Change(changed))


def _change(state: State, command: OfGroup, **changes: bool | int | None) -> None:
    """Change the limits of a group, and serve the parked pulls that these now allow."""
    key = record_key(command.queue, command.group_id)
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

"""The settings that an app declares for a queue, as the commands that set them on the server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypedDict

from bunqueue.client.connection.endpoint_options import EndpointOptions
from bunqueue.client.connection.options import Duration, refused, unknown_option
from bunqueue.client.options import checks
from bunqueue.client.options.bounds import bound_settings
from bunqueue.client.options.breaker import Breaker, breaker_of
from bunqueue.client.options.rates import Rate, rate_limit
from bunqueue.model.bounds import WhenFull
from bunqueue.model.functions import POLICIES, InvalidJobs
from bunqueue.protocol.commands import bounds, groups, limits
from bunqueue.protocol.commands.base import Command


class GroupSettings(TypedDict, total=False):
    """The limits of the groups of a queue."""

    group_concurrency: int | None
    """The maximum number of jobs of each group that run at a time."""
    group_rate: Rate | None
    """The rate at which jobs of each group may start: "100/min"."""
    group_weights: Mapping[str, int] | None
    """Larger shares of the turns for single groups: {"acme": 5}. All other groups have weight 1."""


class QueueSettings(GroupSettings, total=False):
    """Settings for all workers of a queue together. A setting that is not given stays as it is on the
    server."""

    rate_limit: Rate | None
    """The rate at which jobs may start: "100/min", or a `RateLimit`."""
    global_concurrency: int | None
    """The maximum number of jobs that run at a time."""
    breaker: Breaker | None
    """When to pause all jobs of the queue because they fail."""

    max_waiting: int | None
    """The maximum number of waiting jobs. Adding more raises QueueFull, see `when_full`."""
    max_waiting_bytes: int | None
    """The maximum size of the data of the waiting jobs, in bytes."""
    when_full: WhenFull | None
    """"refuse", or "drop-oldest": the jobs that have waited longest make room for new ones."""
    keep_age: Duration | None
    """How long completed jobs are kept; 0: whatever their age. By default, the server decides."""
    keep_count: int | None
    """The number of completed jobs to keep; 0: any number. By default, the server decides."""
    invalid_jobs: InvalidJobs | None
    """What the server does with a job that no function of the queue can run, because no app has a function of
    its name or its arguments do not fit: "accept", "warn" (`InvalidJobWarning`), or "refuse". Default:
    "accept"; the job then fails when it runs.
    """


class AppOptions(EndpointOptions, QueueSettings, total=False):
    """The server's address, and the settings of the app's own queue."""


def checked(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The given settings, in normal form. Raises OptionError."""
    for name in settings:
        if name not in _CHECKS:
            raise unknown_option("a queue", name, _CHECKS)
    return {name: _CHECKS[name](value, name) for name, value in settings.items() if value is not None}


def commands(queue: str, settings: Mapping[str, Any]) -> Iterator[Command]:
    """The commands that set the settings. Repeating them changes nothing."""
    if "rate_limit" in settings:
        yield settings["rate_limit"].command(queue)
    if "global_concurrency" in settings:
        yield limits.SetConcurrency(queue=queue, limit=settings["global_concurrency"])
    if "breaker" in settings:
        yield settings["breaker"].command(queue, None)
    if "group_concurrency" in settings or "group_rate" in settings:
        yield groups.SetGroupDefaults(queue=queue, config=_group_defaults(settings))
    limits_of_space = {name: settings[name] for name in _BOUNDS if name in settings}
    if limits_of_space:
        yield bounds.SetBounds(queue=queue, config=bound_settings(**limits_of_space))
    for group, weight in settings.get("group_weights", {}).items():
        yield groups.SetGroupWeight(queue=queue, group_id=group, weight=weight)


def _group_defaults(settings: Mapping[str, Any]) -> groups.GroupSettings:
    changes = groups.GroupSettings()
    if "group_concurrency" in settings:
        changes.concurrency = settings["group_concurrency"]
    if "group_rate" in settings:
        rate = settings["group_rate"]
        changes.max, changes.duration = rate.max, rate.window
    return changes


def _whole(value: int, name: str) -> int:
    return checks.whole(name, value)


def _policy(value: str, name: str) -> str:
    checks.one_of(name, value, POLICIES)
    return value


def _bound(value: Any, name: str) -> Any:
    bound_settings(**{name: value})
    return value


def _weights(value: Mapping[str, int], name: str) -> dict[str, int]:
    if not isinstance(value, Mapping):
        raise refused(name, value, "is not allowed; give a dict of weights by group")
    for group, weight in value.items():
        command = groups.SetGroupWeight(queue="any", group_id=checks.group_id(group), weight=weight)
        checks.checked(command, weight=name)
    return dict(value)


_BOUNDS = ("max_waiting", "max_waiting_bytes", "when_full", "keep_age", "keep_count")
_CHECKS: Mapping[str, Callable[[Any, str], Any]] = {
    "rate_limit": rate_limit,
    "global_concurrency": _whole,
    "breaker": breaker_of,
    "group_concurrency": _whole,
    "group_rate": rate_limit,
    "group_weights": _weights,
    "invalid_jobs": _policy,
    **dict.fromkeys(_BOUNDS, _bound),
}

"""The options of `@app.job`: those of its jobs, some of them computed, those of its queue's groups, and the
meaning of its exceptions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

from bunqueue.app.queue_settings import GroupSettings
from bunqueue.client.connection.options import refused, unknown_option
from bunqueue.client.options.breaker import Breaker
from bunqueue.client.options.errors_named import some_class_names
from bunqueue.client.options.job import CommonJobOptions
from bunqueue.worker.retry_rules import Delay, Predicate, RetryRules


class TaskOptions(CommonJobOptions, GroupSettings, total=False):
    """Options of every job of a type, and of the groups of its queue."""

    retry_if: Predicate | None
    """Called with the job and an exception of the function. Returns whether to make another attempt. Like
    `retry_on` and `never_on` here, it applies to all jobs that the function runs, including those that other
    programs add."""
    retry_delay: Delay | None
    """Called with the job and an exception. Returns how long to wait before the next attempt, or until when;
    None: the job's backoff applies. `bunqueue.retry_after` is one."""
    breaker: Breaker | None
    """When to pause the jobs of this function because they fail. The others of the queue run."""
    group: str | Callable[..., object] | None
    """The group of the job, or a function of its arguments that returns it: `lambda order: order.tenant`.
    None: no group."""


_KNOWN = {"name", "queue", "aliases", "unrecoverable", "run_in", "at_most_once", *TaskOptions.__annotations__}


def check_names(options: TaskOptions) -> None:
    """Raise OptionError for an option that functions do not have."""
    for name in options:
        if name not in _KNOWN:
            raise unknown_option("a job", name, _KNOWN)


def listed(name: str, value: Any, kind: type) -> tuple[Any, ...]:
    """One value of a type, or several. Raises OptionError for anything else."""
    one = isinstance(value, kind) or not isinstance(value, Iterable)
    found = (value,) if one else tuple(value)
    if not all(isinstance(each, kind) for each in found):
        raise refused(name, value, f"is not allowed; give a list of {'texts' if kind is str else 'classes'}")
    return found


def split(options: TaskOptions) -> tuple[GroupSettings, TaskOptions]:
    """Split the options into those of the queue and those of the job."""
    settings: dict[str, Any] = {}
    own: dict[str, Any] = {}
    for name, value in options.items():
        (settings if name in GroupSettings.__annotations__ else own)[name] = value
    return cast(GroupSettings, settings), cast(TaskOptions, own)


def rules_of(options: TaskOptions) -> tuple[RetryRules, TaskOptions]:
    """Split the options into the meaning of the function's exceptions and those of its jobs. Raises
    OptionError."""
    own: dict[str, Any] = {**options}
    rules = RetryRules(
        on=() if (on := own.pop("retry_on", None)) is None else some_class_names(on, "retry_on"),
        never=own.pop("never_on", None) or (),
        when=own.pop("retry_if", None),
        delay=own.pop("retry_delay", None),
    )
    return rules, cast(TaskOptions, own)

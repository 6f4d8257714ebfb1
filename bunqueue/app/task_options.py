"""The options of `@app.job`: those of its jobs, some of them computed, and those of its queue's groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from bunqueue.app.queue_settings import GroupSettings
from bunqueue.client.options.job import CommonJobOptions


class TaskOptions(CommonJobOptions, GroupSettings, total=False):
    """Options of every job of a kind, and of the groups of its queue."""

    group: str | Callable[..., object] | None
    """The group of the job, or a function of its arguments that gives it: `lambda order: order.tenant`. None:
    no group."""


def split(options: TaskOptions) -> tuple[GroupSettings, TaskOptions]:
    """What is said of the queue, and what of the job."""
    settings: dict[str, Any] = {}
    own: dict[str, Any] = {}
    for name, value in options.items():
        (settings if name in GroupSettings.__annotations__ else own)[name] = value
    return cast(GroupSettings, settings), cast(TaskOptions, own)

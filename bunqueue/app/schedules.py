"""The schedules that an app declares, and those that it no longer does."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bunqueue.client.connection.options import Duration, shown
from bunqueue.client.options.cron import SPAWN_OPTIONS, cron_command
from bunqueue.errors import OptionError
from bunqueue.model.schedule import ScheduleError, UnknownZone, next_run
from bunqueue.protocol.commands.cron import Cron, CronView

_BESIDE = frozenset({"priority", "unique_key", "dedup"})
"""job options that a schedule has itself"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A job that is added at every time of an expression, or once per interval in ms. docs/cron.md has the
    rules."""

    name: str
    """Unique on the whole server. It belongs to the app that declares it."""
    queue: str
    job: str
    data: Mapping[str, Any] = field(default_factory=dict)
    expression: str | None = None
    every: Duration | None = None
    tz: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the jobs, as in `JobOptions`."""
    policy: Mapping[str, Any] = field(default_factory=dict)
    """As in `SchedulePolicy`."""

    def __post_init__(self) -> None:
        if (self.expression is None) == (self.every is None):
            raise OptionError(
                f"schedule {self.name!r}: give either a cron expression or every=...", field="every"
            )
        if self.expression is not None:
            self._check_expression(self.expression)
        elif self.tz is not None:
            raise OptionError(
                f"schedule {self.name!r}: tz goes with a cron expression; intervals know none", field="tz"
            )
        for name in self.options.keys() - SPAWN_OPTIONS - _BESIDE:
            raise OptionError(f"schedule {self.name!r}: {name}: not an option of scheduled jobs", field=name)

    def _check_expression(self, expression: str) -> None:
        try:
            next_run(expression, self.tz, time.time_ns() // 1_000_000)
        except ScheduleError as error:
            text = f"schedule {self.name!r}: {shown(expression)}: {error}"
            if isinstance(error, UnknownZone):
                raise OptionError(text, field="tz", value=self.tz) from None
            raise OptionError(text, field="schedule", value=expression) from None

    def command(self, defaults: Mapping[str, Any], app: str) -> Cron:
        """The command that declares the schedule. `defaults` are job options; those that schedules lack are
        left out.

        Raises OptionError.
        """
        options = {**defaults, **self.options}
        said = {
            "schedule": self.expression,
            "every": self.every,
            "timezone": self.tz,
            "job_name": self.job,
            "job_options": {name: options[name] for name in options.keys() & SPAWN_OPTIONS} or None,
            **{name: options[name] for name in options.keys() & _BESIDE},
            **self.policy,
        }
        try:
            return cron_command(self.queue, self.name, self.data, said, app)
        except OptionError as error:
            raise error.within(f"schedule {self.name!r}", "") from None


def stale_of(app: str, declared: Mapping[str, Schedule], found: Iterable[CronView]) -> list[CronView]:
    """The schedules that `app` once declared and declares no longer, or declares only for another queue."""
    current = {(schedule.name, schedule.queue) for schedule in declared.values()}
    return [view for view in found if view.app == app and (view.name, view.queue) not in current]

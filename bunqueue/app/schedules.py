"""What an app declares to be run by the clock."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec import defstruct
from msgspec.structs import fields

from bunqueue.client import checks
from bunqueue.client.connection_options import Duration, milliseconds, shown
from bunqueue.client.job_options import encode_data, wire_fields
from bunqueue.errors import OptionError
from bunqueue.model.schedule import ScheduleError, next_run
from bunqueue.protocol.commands.cron import Cron, SpawnOptions

_OPTIONS = frozenset(SpawnOptions.__struct_fields__)
_DECLARED = defstruct("_Declared", [(field.name, field.type, None) for field in fields(Cron)])
"""What the server is told, under its names in Python."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A job that is added at every time of an expression, or every so many ms. docs/cron.md has the rules."""

    name: str
    """Unique on the whole server."""
    queue: str
    job: str
    data: Mapping[str, Any] = field(default_factory=dict)
    expression: str | None = None
    every: Duration | None = None
    tz: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the jobs, as `JobOptions` has them."""
    policy: Mapping[str, Any] = field(default_factory=dict)
    """immediately, prevent_overlap, skip_if_no_worker, skip_missed_on_restart, max_limit."""

    def __post_init__(self) -> None:
        if (self.expression is None) == (self.every is None):
            raise OptionError(f"schedule {self.name!r}: give either a cron expression or every=...")
        if self.expression is not None:
            self._check_expression(self.expression)
        elif self.tz is not None:
            raise OptionError(f"schedule {self.name!r}: tz goes with a cron expression; intervals know none")

    def _check_expression(self, expression: str) -> None:
        try:
            next_run(expression, self.tz, time.time_ns() // 1_000_000)
        except ScheduleError as error:
            raise OptionError(f"schedule {self.name!r}: {shown(expression)}: {error}") from None

    def command(self, defaults: Mapping[str, Any]) -> Cron:
        """As the server is told; `defaults` are job options as the wire has them. Raises OptionError."""
        every = None if self.every is None else milliseconds(self.every, "every")
        given = wire_fields(self.options, defaults)
        foreign = sorted(self.options.keys() - _OPTIONS - {"priority", "unique_key"})
        if foreign:
            raise OptionError(f"schedule {self.name!r}: {foreign[0]}: not an option of scheduled jobs")
        values = {
            "name": self.name,
            "queue": self.queue,
            "schedule": self.expression,
            "repeat_every": every,
            "timezone": self.tz,
            "job_name": self.job,
            "unique_key": given.get("unique_key"),
            "priority": given.get("priority", 0),
            **self.policy,
        }
        try:
            checks.wire(_DECLARED, values)
        except OptionError as error:
            raise OptionError(f"schedule {self.name!r}: {error}".replace("repeat_every", "every")) from None
        spawn = {name: value for name, value in given.items() if name in _OPTIONS}
        data = encode_data(dict(self.data), f"the data of schedule {self.name!r}")
        return Cron(**values, data=data, job_options=SpawnOptions(**spawn) if spawn else None)

"""How often something may happen: a number of times within a span of time."""

from __future__ import annotations

import re
from dataclasses import dataclass

from bunqueue.client.connection.options import Duration, refused, whole_milliseconds
from bunqueue.client.options import checks
from bunqueue.errors import OptionError
from bunqueue.protocol.commands import limits

_UNITS = {
    **dict.fromkeys(("ms",), 1),
    **dict.fromkeys(("s", "sec", "second"), 1_000),
    **dict.fromkeys(("m", "min", "minute"), 60_000),
    **dict.fromkeys(("h", "hour"), 3_600_000),
    **dict.fromkeys(("d", "day"), 86_400_000),
}
_RATE = re.compile(rf"\s*([0-9]+)\s*/\s*([0-9]*)\s*({'|'.join(_UNITS)})\s*")
_EXAMPLES = "a bunqueue.RateLimit, or a text such as '100/min', '5/s' or '10/30s'"


@dataclass(frozen=True, slots=True)
class RateLimit:
    """`max` jobs in every `per` (ms or a timedelta), over all workers of the queue. It may also be given as
    text, such as "100/min".

    For a queue it is a token bucket (see `Queue.set_rate_limit`): after a pause `max` jobs start at once,
    then one every `per / max`. For groups it is counted in windows: `max` jobs within `per`, from the first
    one on.
    """

    max: int
    per: Duration = 1000

    def __post_init__(self) -> None:
        self.command("any")

    def command(self, queue: str) -> limits.RateLimit:
        """The command that sets it for a queue. Raises OptionError."""
        most, per = checks.whole("rate_limit: max", self.max), whole_milliseconds(self.per, "rate_limit: per")
        return checks.checked(limits.RateLimit(queue=queue, limit=most, duration=per), duration="per")

    @property
    def window(self) -> int:
        """`per` in ms."""
        return whole_milliseconds(self.per, "per")


Rate = RateLimit | str
"""A count per span: a `RateLimit`, or a text such as "100/min", "5/s" or "10/30s"."""


def rate_limit(value: Rate, name: str) -> RateLimit:
    """A rate given in either form. Raises OptionError, beginning with `name`."""
    if isinstance(value, RateLimit):
        return value
    found = _RATE.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise refused(name, value, f"is no rate; give {_EXAMPLES}")
    most, times, unit = found.groups()
    try:
        return RateLimit(int(most), per=int(times or 1) * _UNITS[unit])
    except OptionError as error:
        raise refused(name, value, f"is not allowed ({error}); give {_EXAMPLES}") from None

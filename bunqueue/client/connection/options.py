"""Options of the connection to a server, and conversion of durations."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from numbers import Real

from bunqueue.errors import OptionError
from bunqueue.model.durations import EXAMPLES, span_ms
from bunqueue.model.names import hint

SPANS = "milliseconds, a timedelta, or a text such as '5m'"
MAX_SHOWN = 80  # characters of a wrong value shown in a message
Duration = int | float | timedelta | str
"""A duration: a number of milliseconds, a timedelta, or a text such as "5m" or "1h30m"."""


def shown(value: object) -> str:
    """A wrong value, shortened for a message."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "..."


def unknown_option(what: str, name: str, known: Iterable[str]) -> OptionError:
    """The error for an option that `what` does not have."""
    return OptionError(
        f"{what} has no option {shown(name)}; {hint(name, sorted(known))}", field=name, bound=sorted(known)
    )


def unfit(name: str, why: str) -> OptionError:
    """The error for an option that conflicts with others, or does not apply here."""
    return OptionError(f"{name}: {why}", field=name)


def refused(name: str, value: object, why: str, bound: object = None) -> OptionError:
    """The error for an invalid option value. `bound` is what is allowed, if that is one number or a list."""
    return OptionError(f"{name}: {shown(value)} {why}", field=name, value=value, bound=bound)


def milliseconds(duration: Duration, name: str = "duration") -> int | float:
    """`duration` in ms, whole numbers as int. Raises OptionError, beginning with `name`, if it is not one."""
    given = duration
    if isinstance(duration, str):
        duration = _span_of(duration, name)
    if isinstance(duration, timedelta):
        duration = duration / timedelta(milliseconds=1)
    if isinstance(duration, datetime):
        raise refused(name, given, f"is a moment; give a span: {SPANS}")
    if isinstance(duration, bool) or not isinstance(duration, Real) or duration != duration:
        raise refused(name, given, f"is not a time; give {SPANS}")
    whole = int(duration) if abs(duration) != float("inf") else duration
    return whole if whole == duration else duration


def _span_of(text: str, name: str) -> int | float:
    found = span_ms(text)
    if found is None:
        raise refused(name, text, f"is no span of time; give ms, or {EXAMPLES}")
    return found


def span(duration: Duration, name: str) -> int | float:
    """`duration` in ms, like `milliseconds`. Also raises OptionError for a negative one."""
    value = milliseconds(duration, name)
    if value < 0:
        raise refused(name, duration, "is not allowed; give a time from 0 on")
    return value


def whole_milliseconds(duration: Duration, name: str) -> int:
    """`duration` in whole ms. Also raises OptionError for an infinite one."""
    value = milliseconds(duration, name)
    if abs(value) == float("inf"):
        raise refused(name, duration, "is not allowed; give a time that ends")
    return int(value)


def seconds(duration: Duration, name: str = "duration") -> float:
    """`duration` in seconds, as asyncio and sockets take it."""
    return milliseconds(duration, name) / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """Options of the connections to a server. Durations are numbers of ms, timedeltas, or texts
    such as "5s"."""

    pool_size: int = 4
    """The maximum number of connections. The first is opened at once, others as the load requires."""
    pipelining: bool = True
    """Whether a connection carries a command while others on it wait for their replies."""
    max_in_flight: int = 100
    """The maximum number of commands in flight on one connection. More commands wait in the client."""
    command_timeout: Duration = 30_000
    """How long a command may take, including reconnecting and repeating. A long poll adds its own timeout."""
    connect_timeout: Duration = 10_000
    """How long one attempt to connect, authenticate and agree on a protocol may take."""
    refused_timeout: Duration = 3_000
    """How long commands wait while the address refuses connections because nothing listens there, if no
    connection was ever made. A server that was reached before has `command_timeout` to come back.
    """
    ping_interval: Duration = 30_000
    """Silence after which the connection is checked with a ping; 0: never."""
    max_ping_failures: int = 3
    """Failed pings in a row after which the connection is considered dead."""
    max_command_timeouts: int = 3
    """Timeouts in a row after which the connection is considered dead; 0: never."""
    auto_reconnect: bool = True
    """Whether to replace a lost connection at once, or only when the next command needs one."""
    reconnect_delay: Duration = 100
    """The wait after the first failed attempt to connect. It doubles with each failure, and varies by 30 %.
    """
    max_reconnect_delay: Duration = 30_000
    """The longest wait between two attempts to connect."""
    max_reconnect_attempts: int | None = None
    """Failed attempts in a row after which waiting commands fail; None: they wait for their own timeout."""

    def __post_init__(self) -> None:
        for name, lowest in _COUNTS.items():
            value = getattr(self, name)
            if value is None and name == "max_reconnect_attempts":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
                raise OptionError(
                    f"{name} must be a whole number from {lowest} on, not {shown(value)}",
                    field=name,
                    value=value,
                )
        for name in _SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise OptionError(
                    f"{name} must be True or False, not {shown(getattr(self, name))}",
                    field=name,
                    value=getattr(self, name),
                )
        for name in _TIMES:
            value, least = getattr(self, name), "at least" if name == "ping_interval" else "above"
            number = milliseconds(value, name)
            if not (number > 0 or (number == 0 and least == "at least")):
                raise OptionError(f"{name} must be {least} 0, not {shown(value)}", field=name, value=value)

    @property
    def depth(self) -> int:
        """The maximum number of commands in flight on one connection."""
        return self.max_in_flight if self.pipelining else 1

    def retry_delay(self, failures: int, chance: float) -> float:
        """Seconds to wait after `failures` (1, 2, ...) failed attempts; `chance` is random in [0, 1)."""
        return reconnect_delay(
            failures, chance, seconds(self.reconnect_delay), seconds(self.max_reconnect_delay)
        )


_COUNTS = {
    "pool_size": 1,
    "max_in_flight": 1,
    "max_ping_failures": 1,
    "max_command_timeouts": 0,
    "max_reconnect_attempts": 1,
}
_SWITCHES = ("pipelining", "auto_reconnect")
_TIMES = (
    "command_timeout",
    "connect_timeout",
    "refused_timeout",
    "ping_interval",
    "reconnect_delay",
    "max_reconnect_delay",
)

BASE_DELAY = 0.1  # seconds before the first attempt to reconnect; set by the specification
MAX_DELAY = 30.0  # seconds; set by the specification
JITTER = 0.3  # keeps the clients of a restarted server from all reconnecting at the same moment


def reconnect_delay(
    failures: int, chance: float, base: float = BASE_DELAY, longest: float = MAX_DELAY
) -> float:
    """Seconds to wait after `failures` (1, 2, ...) failed attempts; `chance` is random in [0, 1)."""
    delay = min(base * 2.0 ** min(max(failures, 1) - 1, 32), longest)
    return delay * (1 - JITTER + 2 * JITTER * chance)

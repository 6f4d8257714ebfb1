"""How the client talks to a server, and the units in which users say times."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from numbers import Real

from bunqueue.errors import OptionError
from bunqueue.model.names import hint

MAX_SHOWN = 80  # characters of a wrong value in a message
Duration = int | float | timedelta
"""A span of time: a number of milliseconds, or a timedelta."""


def shown(value: object) -> str:
    """A wrong value, for a message."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "..."


def unknown_option(what: str, name: str, known: Iterable[str]) -> OptionError:
    """For an option that `what` does not have."""
    return OptionError(
        f"{what} has no option {shown(name)}; {hint(name, sorted(known))}", field=name, bound=sorted(known)
    )


def unfit(name: str, why: str) -> OptionError:
    """For an option that does not go with the others, or not with what it is given to."""
    return OptionError(f"{name}: {why}", field=name)


def refused(name: str, value: object, why: str, bound: object = None) -> OptionError:
    """For a value that an option cannot have; `bound` is what it may be, if that is one number, or a list."""
    return OptionError(f"{name}: {shown(value)} {why}", field=name, value=value, bound=bound)


def milliseconds(duration: Duration, name: str = "duration") -> int | float:
    """`duration` in ms, whole numbers as int. OptionError, which begins with `name`, if it is no time."""
    if isinstance(duration, timedelta):
        duration = duration / timedelta(milliseconds=1)
    if isinstance(duration, datetime):
        raise refused(name, duration, "is a moment; give a span: milliseconds or a timedelta")
    if isinstance(duration, bool) or not isinstance(duration, Real) or duration != duration:
        raise refused(name, duration, "is not a time; give milliseconds or a timedelta")
    whole = int(duration) if abs(duration) != float("inf") else duration
    return whole if whole == duration else duration


def span(duration: Duration, name: str) -> int | float:
    """`duration` in ms as `milliseconds` has it; OptionError, too, below 0."""
    value = milliseconds(duration, name)
    if value < 0:
        raise refused(name, duration, "is not allowed; give a time from 0 on")
    return value


def whole_milliseconds(duration: Duration, name: str) -> int:
    """`duration` in whole ms. OptionError, too, for what has no end."""
    value = milliseconds(duration, name)
    if abs(value) == float("inf"):
        raise refused(name, duration, "is not allowed; give a time that ends")
    return int(value)


def seconds(duration: Duration, name: str = "duration") -> float:
    """`duration` as asyncio and sockets want it."""
    return milliseconds(duration, name) / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """Options of the connections to a server. Times are numbers of ms, or timedeltas."""

    pool_size: int = 4
    """Connections at most; the first is opened at once, others when the load asks for them."""
    pipelining: bool = True
    """Whether a connection carries a command while others on it wait for their replies."""
    max_in_flight: int = 100
    """Commands under way on one connection; more wait in the client."""
    command_timeout: Duration = 30_000
    """How long a command may take, reconnecting and repeating included; a long poll its own time more."""
    connect_timeout: Duration = 10_000
    """How long one attempt to connect, authenticate and agree on a protocol may take."""
    refused_timeout: Duration = 3_000
    """How long commands wait while the address refuses connections, as nothing listens there, and none has
    ever be made; a server that was there before may take `command_timeout` to come back."""
    ping_interval: Duration = 30_000
    """Silence after which the connection is checked; 0: never."""
    max_ping_failures: int = 3
    """Failed pings in a row after which the connection is taken for dead."""
    max_command_timeouts: int = 3
    """Timeouts in a row after which the connection is taken for dead; 0: never."""
    auto_reconnect: bool = True
    """Whether a lost connection is replaced at once; else when the next command needs one."""
    reconnect_delay: Duration = 100
    """The wait after the first failed attempt to connect; it doubles with each one, and varies by 30 %."""
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
        """Commands that may be under way on one connection."""
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

BASE_DELAY = 0.1  # seconds before the first attempt to reconnect; the specification's number
MAX_DELAY = 30.0  # seconds; the specification's number
JITTER = 0.3  # so that the clients of a restarted server do not all come at the same moment


def reconnect_delay(
    failures: int, chance: float, base: float = BASE_DELAY, longest: float = MAX_DELAY
) -> float:
    """Seconds to wait after `failures` (1, 2, ...) failed attempts; `chance` is random in [0, 1)."""
    delay = min(base * 2.0 ** min(max(failures, 1) - 1, 32), longest)
    return delay * (1 - JITTER + 2 * JITTER * chance)

"""How the client talks to a server, and the units in which users say times."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import timedelta

Duration = int | float | timedelta
"""A span of time: a number of milliseconds, or a timedelta."""


def milliseconds(duration: Duration) -> int | float:
    """`duration` in ms, whole numbers as int."""
    if isinstance(duration, timedelta):
        duration = duration / timedelta(milliseconds=1)
    whole = int(duration) if duration == duration and abs(duration) != float("inf") else duration
    return whole if whole == duration else duration


def seconds(duration: Duration) -> float:
    """`duration` as asyncio and sockets want it."""
    return milliseconds(duration) / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """Options of the connections to a server. Times are numbers of ms, or timedeltas."""

    pool_size: int = 4
    """Connections at most; the first is opened at once, others when the load asks for them."""
    max_in_flight: int = 100
    """Commands under way on one connection; more wait in the client."""
    command_timeout: Duration = 30_000
    """How long a command may take, reconnecting and repeating included; a long poll its own time more."""
    connect_timeout: Duration = 10_000
    """How long one attempt to connect, authenticate and agree on a protocol may take."""
    ping_interval: Duration = 30_000
    """Silence after which the connection is checked; 0: never."""
    max_ping_failures: int = 3
    """Failed pings in a row after which the connection is taken for dead."""
    max_command_timeouts: int = 3
    """Timeouts in a row after which the connection is taken for dead; 0: never."""

    def __post_init__(self) -> None:
        for name, lowest in (("pool_size", 1), ("max_in_flight", 1), ("max_ping_failures", 1)):
            if getattr(self, name) < lowest:
                raise ValueError(f"{name} must be at least {lowest}, not {getattr(self, name)!r}")
        for option in fields(self):
            value = getattr(self, option.name)
            number = milliseconds(value)
            if number < 0 or number != number or (number == 0 and option.name.endswith("_timeout")):
                raise ValueError(f"{option.name} must be above 0, not {value!r}")


BASE_DELAY = 0.1  # seconds before the first attempt to reconnect; the seeds' number
MAX_DELAY = 30.0  # seconds; the seeds' number
JITTER = 0.3  # so that the clients of a restarted server do not all come at the same moment


def reconnect_delay(failures: int, chance: float) -> float:
    """Seconds to wait after `failures` (1, 2, ...) failed attempts; `chance` is random in [0, 1)."""
    delay = min(BASE_DELAY * 2.0 ** min(max(failures, 1) - 1, 32), MAX_DELAY)
    return delay * (1 - JITTER + 2 * JITTER * chance)

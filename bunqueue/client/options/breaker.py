"""Circuit breakers as users say them and as they are sent."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bunqueue.client.connection.options import Duration, milliseconds
from bunqueue.client.options import checks
from bunqueue.client.options.errors_named import ErrorClass, class_names
from bunqueue.model.breaker import BreakerConfig
from bunqueue.protocol.commands.breakers import BreakerSettings, SetBreaker


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaker:
    """When jobs rest because they fail, all workers together, and for how long.

    After `failures` failed attempts in a row no other job starts for `pause`. Then `trials` jobs are let
    through: if all of them complete, the rest may run, too; if one fails, the pause begins again, twice as
    long each time, and at most `max_pause`.

    With a `rate`, 0.5 being one half, jobs rest when that part of the attempts within `window` has failed,
    and at least `failures` of them, whether in a row or not. With `errors` only these classes of exceptions
    count as failures. Attempts that a job's timeout ended count, those that somebody cancelled do not.
    """

    failures: int = 5
    rate: float | None = None
    window: Duration = 60_000
    pause: Duration = 30_000
    max_pause: Duration = 600_000
    trials: int = 1
    errors: ErrorClass | Iterable[ErrorClass] = ()

    def command(self, queue: str, job: str | None) -> SetBreaker:
        """The command that sets it. OptionError."""
        settings = BreakerSettings(
            failures=self.failures,
            rate=self.rate,
            window=milliseconds(self.window, "window"),
            pause=milliseconds(self.pause, "pause"),
            max_pause=milliseconds(self.max_pause, "max_pause"),
            trials=self.trials,
            errors=class_names(self.errors, "errors"),
        )
        checks.settings(BreakerConfig, settings)
        return SetBreaker(queue=queue, name=job, config=settings)


def breaker_of(value: Breaker, name: str) -> Breaker:
    """A breaker that can be set. OptionError, which begins with `name`."""
    checks.one(name, value, Breaker).command("any", None)
    return value

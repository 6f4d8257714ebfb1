"""Circuit breakers: from the user's options to the wire format."""

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
    """When and for how long to stop starting jobs because they fail, across all workers.

    After `failures` failed attempts in a row no other job starts for `pause`. Then `trials` jobs may start.
    If all of them complete, the rest may run again; if one fails, the pause starts again, twice as long each
    time, up to `max_pause`.

    With a `rate` (0.5 is one half), the breaker opens when that share of the attempts within `window` has
    failed, and at least `failures` of them, consecutive or not. With `errors` only exceptions of these
    classes count as failures. Attempts that exceed the job's timeout count as failures; cancelled attempts do
    not.
    """

    failures: int = 5
    rate: float | None = None
    window: Duration = 60_000
    pause: Duration = 30_000
    max_pause: Duration = 600_000
    trials: int = 1
    errors: ErrorClass | Iterable[ErrorClass] = ()

    def command(self, queue: str, job: str | None) -> SetBreaker:
        """The command that sets it. Raises OptionError."""
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
    """Return a valid breaker. Raises OptionError, beginning with `name`."""
    checks.one(name, value, Breaker).command("any", None)
    return value

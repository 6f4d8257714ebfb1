"""Made by scripts/unasync.py from client/queue/breakers.py; do not edit."""

from __future__ import annotations

from bunqueue.client.connection.caller import Caller
from bunqueue.client.connection.options import Duration, milliseconds
from bunqueue.client.options import checks
from bunqueue.client.options.breaker import Breaker
from bunqueue.protocol.commands import breakers
from bunqueue.protocol.commands.breakers import BreakerView


class Breakers:
    """A part of `Queue`. Breakers and their state survive a restart of the server.

    `job` is the name of the jobs that a breaker applies to; None: the whole queue.
    """

    name: str
    _caller: Caller

    def set_breaker(self, breaker: Breaker | None = None, *, job: str | None = None) -> BreakerView:
        """Set when to stop starting jobs because too many fail, or change that: see `Breaker`. A breaker that
        is already open stays open.
        """
        wanted = checks.one("breaker", Breaker() if breaker is None else breaker, Breaker)
        command = checks.checked(wanted.command(self.name, job), name="job")
        return (self._caller.call(command)).breaker

    def clear_breaker(self, *, job: str | None = None) -> None:
        """Remove a breaker; jobs that it held back run. No error if the breaker does not exist."""
        self._caller.call(checks.checked(breakers.ClearBreaker(queue=self.name, name=job), name="job"))

    def breakers(self) -> list[BreakerView]:
        """The breakers of the queue, and whether they are open."""
        command = breakers.ListBreakers(queue=self.name)
        return (self._caller.call(command)).breakers

    def trip_breaker(
        self, *, job: str | None = None, pause: Duration | None = None, reason: str | None = None
    ) -> BreakerView:
        """Open a breaker: no other job starts for `pause`, or for the breaker's own pause. `reason` is shown
        wherever the cause is asked for. Raises NotFound if the breaker does not exist.
        """
        command = breakers.TripBreaker(
            queue=self.name,
            name=job,
            pause=None if pause is None else milliseconds(pause, "pause"),
            reason=reason,
        )
        return (self._caller.call(checks.checked(command, name="job"))).breaker

    def reset_breaker(self, *, job: str | None = None) -> BreakerView:
        """Close a breaker: jobs run, and the count starts again. Raises NotFound if the breaker does not
        exist.
        """
        command = breakers.ResetBreaker(queue=self.name, name=job)
        return (self._caller.call(checks.checked(command, name="job"))).breaker

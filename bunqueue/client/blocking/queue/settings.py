"""Made by scripts/unasync.py from client/queue/settings.py; do not edit."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from bunqueue.client.connection.caller import Caller
from bunqueue.client.connection.options import Duration
from bunqueue.client.options import checks
from bunqueue.client.options.bounds import bound_settings
from bunqueue.client.options.rates import Rate, rate_limit
from bunqueue.model.bounds import WhenFull
from bunqueue.model.groups import GroupDefaults
from bunqueue.protocol.commands import bounds, groups
from bunqueue.protocol.commands.bounds import BoundsReply


class QueueSettings:
    """A part of `Queue`. Settings survive a restart of the server."""

    name: str
    _caller: Caller

    def set_group_defaults(
        self, *, concurrency: int | UnsetType | None = UNSET, rate: Rate | UnsetType | None = UNSET
    ) -> None:
        """Set the limits of all groups without limits of their own, including future groups. Limits that are
        not given stay the same; None removes a limit.

            queue.set_group_defaults(concurrency=5, rate="100/min")

        At most `concurrency` jobs of each group run at a time, and at most as many start as `rate` says,
        counted from the first of them. These limits take precedence over those of a worker.
        """
        changes = groups.GroupSettings()
        if concurrency is not UNSET:
            changes.concurrency = concurrency
        if rate is None:
            changes.max = None
        elif not isinstance(rate, UnsetType):
            found = rate_limit(rate, "rate")
            changes.max, changes.duration = found.max, found.window
        checks.settings(GroupDefaults, changes)
        self._caller.call(groups.SetGroupDefaults(queue=self.name, config=changes))

    def group_defaults(self) -> GroupDefaults:
        """The limits of all groups without limits of their own."""
        command = groups.GetGroupDefaults(queue=self.name)
        return (self._caller.call(command)).config

    def set_bounds(
        self,
        *,
        max_waiting: int | UnsetType | None = UNSET,
        max_waiting_bytes: int | UnsetType | None = UNSET,
        when_full: WhenFull | UnsetType = UNSET,
        keep_age: Duration | UnsetType | None = UNSET,
        keep_count: int | UnsetType | None = UNSET,
    ) -> None:
        """Set the bounds of the queue. Bounds that are not given stay the same; None removes a bound.

            queue.set_bounds(max_waiting=10_000, keep_age=timedelta(hours=1))

        At most `max_waiting` jobs wait, with at most `max_waiting_bytes` of data. A push without room raises
        QueueFull, or waits for the queue's `wait_if_full`; with `when_full="drop-oldest"` the jobs that have
        waited longest are dropped instead. Completed jobs are kept for `keep_age`, and at most `keep_count`
        of them, whatever the server's own settings are; 0 means no limit.
        """
        changes = bound_settings(max_waiting, max_waiting_bytes, when_full, keep_age, keep_count)
        self._caller.call(bounds.SetBounds(queue=self.name, config=changes))

    def bounds(self) -> BoundsReply:
        """The bounds of the queue (`config`), and how much is waiting in it (`space`)."""
        return self._caller.call(bounds.GetBounds(queue=self.name))

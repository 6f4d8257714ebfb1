"""Made by scripts/unasync.py from client/queue/settings.py; do not edit."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from bunqueue.client.connection.caller import Caller
from bunqueue.client.options import checks
from bunqueue.client.options.rates import Rate, rate_limit
from bunqueue.model.groups import GroupDefaults
from bunqueue.protocol.commands import Ok, groups


class QueueSettings:
    """A part of `Queue`. What is set outlives a restart of the server."""

    name: str
    _caller: Caller

    def set_group_defaults(
        self, *, concurrency: int | UnsetType | None = UNSET, rate: Rate | UnsetType | None = UNSET
    ) -> None:
        """Set the limits of each group that has none of its own, those to come included; what is not given
        stays as it is, None takes a limit away.

            queue.set_group_defaults(concurrency=5, rate="100/min")

        At most `concurrency` jobs of each group run at a time, and at most as many start as `rate` says,
        counted from the first of them on. These limits come before those of a worker.
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
        self._caller.call(groups.SetGroupDefaults(queue=self.name, config=changes), Ok)

    def group_defaults(self) -> GroupDefaults:
        """The limits of each group that has none of its own."""
        command = groups.GetGroupDefaults(queue=self.name)
        return (self._caller.call(command, groups.GroupDefaultsReply)).config

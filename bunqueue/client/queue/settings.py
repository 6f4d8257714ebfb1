"""What is set for a queue, and holds for all of its workers and whoever adds jobs."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from bunqueue.client.connection.caller import AsyncCaller
from bunqueue.client.options import checks
from bunqueue.client.options.rates import Rate, rate_limit
from bunqueue.model.groups import GroupDefaults
from bunqueue.protocol.commands import Ok, groups


class AsyncQueueSettings:
    """A part of `Queue`. What is set outlives a restart of the server."""

    name: str
    _caller: AsyncCaller

    async def set_group_defaults(
        self, *, concurrency: int | UnsetType | None = UNSET, rate: Rate | UnsetType | None = UNSET
    ) -> None:
        """Set the limits of each group that has none of its own, those to come included; what is not given
        stays as it is, None takes a limit away.

            await queue.set_group_defaults(concurrency=5, rate="100/min")

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
        await self._caller.call(groups.SetGroupDefaults(queue=self.name, config=changes), Ok)

    async def group_defaults(self) -> GroupDefaults:
        """The limits of each group that has none of its own."""
        command = groups.GetGroupDefaults(queue=self.name)
        return (await self._caller.call(command, groups.GroupDefaultsReply)).config

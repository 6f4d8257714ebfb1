"""The errors of a queue, in groups of those that are alike."""

from __future__ import annotations

from msgspec import UNSET

from bunqueue.client.connection.caller import AsyncCaller
from bunqueue.client.options import checks
from bunqueue.protocol.commands import error_groups
from bunqueue.protocol.commands.error_groups import ErrorGroupView


class AsyncErrorGroups:
    """A part of `Queue`. Errors of one class are alike if their texts differ only in numbers, ids and quoted
    parts. Groups survive a restart of the server.
    """

    name: str
    _caller: AsyncCaller

    async def error_groups(self, *, limit: int = 100) -> list[ErrorGroupView]:
        """The groups, those with the most dead letters first: how many failures, since when, how fast, with
        which names, workers and versions, and an example with its stack.
        """
        command = checks.checked(error_groups.ListErrors(queue=self.name, limit=limit))
        return (await self._caller.call(command)).data.groups

    async def error_group(self, group: str) -> ErrorGroupView:
        """One group, by its id. Raises NotFound."""
        command = checks.checked(error_groups.GetErrorGroup(queue=self.name, group=group))
        return (await self._caller.call(command)).data

    async def set_error_group(
        self,
        group: str,
        *,
        muted: bool | None = None,
        watched: bool | None = None,
        resolved: bool | None = None,
    ) -> ErrorGroupView:
        """Change a group; what is not given stays. Raises NotFound.

        A `muted` group raises no alert. When a `watched` one comes back, that is an event `error-returned`,
        which webhooks get as `error.returned`: a failure after the group was `resolved`, or after ten minutes
        without failures. `retry_dlq` and `purge_dlq` with `error_group` say that it is resolved.
        """
        command = error_groups.SetErrorGroup(
            queue=self.name,
            group=group,
            muted=UNSET if muted is None else muted,
            watched=UNSET if watched is None else watched,
            resolved=UNSET if resolved is None else resolved,
        )
        return (await self._caller.call(checks.checked(command))).data

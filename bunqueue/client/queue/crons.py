"""Schedules: jobs that are added by the clock. docs/cron.md has the rules."""

from __future__ import annotations

from datetime import datetime
from typing import Unpack

from bunqueue.client import checks
from bunqueue.client.cron_options import CronOptions, cron_command
from bunqueue.client.queue.base import AsyncQueueBase
from bunqueue.errors import NotFound
from bunqueue.protocol.commands import Ok, cron
from bunqueue.protocol.commands.cron import CronView
from bunqueue.protocol.moments import moment


class AsyncCrons(AsyncQueueBase):
    """The part of a queue that is about its schedules. Their names are unique over the whole server."""

    async def upsert_cron(self, name: str, data: object = None, **options: Unpack[CronOptions]) -> CronView:
        """Have jobs with this `data` added by the clock; for the options see `CronOptions`.

            await queue.upsert_cron("nightly", {"full": True}, schedule="0 3 * * *", timezone="Europe/Rome")

        A schedule of this name is replaced; if its rhythm stays the same it goes on undisturbed, so this may
        be called at each start of a program. Raises OptionError, for an expression that is none, too.
        """
        reply = await self._caller.call(cron_command(self.name, name, data, options), cron.CronReply)
        return reply.cron

    async def delete_cron(self, name: str) -> bool:
        """Remove a schedule; False when there is none. The jobs that it has added stay."""
        try:
            await self._caller.call(checks.checked(cron.CronDelete(name=name)), Ok)
        except NotFound:
            return False
        return True

    async def get_cron(self, name: str) -> CronView | None:
        """One schedule, of whatever queue; None when there is none."""
        try:
            reply = await self._caller.call(checks.checked(cron.CronGet(name=name)), cron.CronReply)
        except NotFound:
            return None
        return reply.cron

    async def pause_cron(self, name: str) -> CronView:
        """Have a schedule add no jobs until `resume_cron`; runs meanwhile are left out. Raises NotFound."""
        reply = await self._caller.call(checks.checked(cron.CronPause(name=name)), cron.CronReply)
        return reply.cron

    async def resume_cron(self, name: str) -> CronView:
        """Have a schedule add jobs again, from its next time on. Raises NotFound."""
        reply = await self._caller.call(checks.checked(cron.CronResume(name=name)), cron.CronReply)
        return reply.cron

    async def next_runs(self, name: str, count: int = 10) -> list[datetime]:
        """The next times at which a schedule runs, as datetimes in UTC; at most 100. Raises NotFound."""
        command = checks.checked(cron.CronNext(name=name, count=count))
        reply = await self._caller.call(command, cron.CronRunsReply)
        return [moment(run) for run in reply.data.runs]

    async def list_crons(self, *, all_queues: bool = False) -> list[CronView]:
        """The schedules of this queue, or of all, by name."""
        reply = await self._caller.call(cron.CronList(), cron.CronListReply)
        return [each for each in reply.crons if all_queues or each.queue == self.name]

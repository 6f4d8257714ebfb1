"""Made by scripts/unasync.py from client/queue/crons.py; do not edit."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Unpack

from bunqueue.client.blocking.queue.base import QueueBase
from bunqueue.client.blocking.queue.handle import JobHandle
from bunqueue.client.connection.caller import Caller
from bunqueue.client.deprecation import warn
from bunqueue.client.options import checks
from bunqueue.client.options.cron import CronOptions, cron_command, sent_data
from bunqueue.errors import NotFound
from bunqueue.protocol.commands import Ok, cron
from bunqueue.protocol.commands.cron import CronView
from bunqueue.protocol.moments import moment


class NamedCrons:
    """What can be done with a schedule whose name is known: names are unique over the whole server."""

    _caller: Caller

    def run_cron(self, name: str) -> JobHandle[Any]:
        """Add the job of a schedule now, also of one that is paused; when it runs otherwise stays as it is.

        When its last job is still there and it prevents overlap, the handle is that one's, and its `created`
        is False. Raises NotFound.
        """
        reply = self._caller.call(checks.checked(cron.CronTrigger(name=name)), cron.CronRunReply)
        return JobHandle(self._caller, reply.queue, reply.id, created=not reply.existing)

    def delete_cron(self, name: str, *, app: str | None = None) -> bool:
        """Remove a schedule; False when there is none, or given `app`, none that this app declares. The jobs
        that it has added stay."""
        try:
            self._caller.call(checks.checked(cron.CronDelete(name=name, app=app)), Ok)
        except NotFound:
            return False
        return True

    def get_cron(self, name: str) -> CronView | None:
        """One schedule, of whatever queue, with the data of its jobs; None when there is none."""
        try:
            reply = self._caller.call(checks.checked(cron.CronGet(name=name)), cron.CronReply)
        except NotFound:
            return None
        return reply.cron

    def pause_cron(self, name: str) -> CronView:
        """Have a schedule add no jobs until `resume_cron`; runs meanwhile are left out. Raises NotFound."""
        reply = self._caller.call(checks.checked(cron.CronPause(name=name)), cron.CronReply)
        return reply.cron

    def resume_cron(self, name: str) -> CronView:
        """Have a schedule add jobs again, from its next time on. Raises NotFound."""
        reply = self._caller.call(checks.checked(cron.CronResume(name=name)), cron.CronReply)
        return reply.cron

    def next_runs(self, name: str, count: int = 10) -> list[datetime]:
        """The next times at which a schedule runs, as datetimes in UTC; at most 100. Raises NotFound."""
        command = checks.checked(cron.CronNext(name=name, count=count))
        reply = self._caller.call(command, cron.CronRunsReply)
        return [moment(run) for run in reply.data.runs]

    def _crons(self, queue: str | None) -> list[CronView]:
        """The schedules of one queue, or of all, by name."""
        reply = self._caller.call(cron.CronList(), cron.CronListReply)
        return [each for each in reply.crons if queue is None or each.queue == queue]


class Crons(NamedCrons, QueueBase):
    """The part of a queue that is about its schedules."""

    def upsert_cron(self, name: str, data: object = None, **options: Unpack[CronOptions]) -> CronView:
        """Have jobs with this `data` added by the clock; for the options see `CronOptions`.

            queue.upsert_cron("nightly", {"full": True}, schedule="0 3 * * *", timezone="Europe/Rome")

        A schedule of this name is replaced; if its rhythm stays the same it goes on undisturbed, so this may
        be called at each start of a program. Raises ScheduleConflict when the name belongs to another queue,
        unless `move` is True; OptionError, also for a malformed expression.
        """
        command = cron_command(self.name, name, data, options)
        reply = self._caller.call(command, cron.CronReply)
        reply.cron.data = sent_data(command)
        return reply.cron

    def list_crons(self, *, all_queues: bool = False) -> list[CronView]:
        """The schedules of this queue, by name; without the data of their jobs.

        `all_queues` is deprecated: use `Admin.list_crons()`.
        """
        if all_queues:
            warn("list_crons(all_queues=True)", "Admin.list_crons()", type(self).__name__)
        return self._crons(None if all_queues else self.name)

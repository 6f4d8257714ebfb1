"""Made by scripts/unasync.py from client/queue/crons.py; do not edit."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from bunqueue.client.connection.caller import Caller
from bunqueue.client.options import checks
from bunqueue.client.blocking.queue.handle import JobHandle
from bunqueue.errors import NotFound
from bunqueue.protocol.commands import cron
from bunqueue.protocol.commands.cron import CronView
from bunqueue.protocol.moments import moment


class NamedCrons:
    """Operations on a schedule by its name: names are unique on the whole server."""

    _caller: Caller

    def run_cron(self, name: str) -> JobHandle[Any]:
        """Add the job of a schedule now, even if the schedule is paused; its other runs are not affected.

        If the schedule prevents overlap and its last job still exists, the handle is that job's, and its
        `created` is False. Raises NotFound.
        """
        reply = self._caller.call(checks.checked(cron.CronTrigger(name=name)))
        return JobHandle(self._caller, reply.queue, reply.id, created=not reply.existing)

    def delete_cron(self, name: str, *, app: str | None = None) -> bool:
        """Remove a schedule; False if it does not exist or, with `app`, belongs to another app. The jobs that
        it has added stay.
        """
        try:
            self._caller.call(checks.checked(cron.CronDelete(name=name, app=app)))
        except NotFound:
            return False
        return True

    def get_cron(self, name: str) -> CronView | None:
        """One schedule of any queue, with the data of its jobs; None if it does not exist."""
        try:
            reply = self._caller.call(checks.checked(cron.CronGet(name=name)))
        except NotFound:
            return None
        return reply.cron

    def pause_cron(self, name: str) -> CronView:
        """Stop a schedule from adding jobs until `resume_cron`; runs in that time are skipped. Raises
        NotFound.
        """
        reply = self._caller.call(checks.checked(cron.CronPause(name=name)))
        return reply.cron

    def resume_cron(self, name: str) -> CronView:
        """Let a schedule add jobs again, from its next time on. Raises NotFound."""
        reply = self._caller.call(checks.checked(cron.CronResume(name=name)))
        return reply.cron

    def next_runs(self, name: str, count: int = 10) -> list[datetime]:
        """The next times at which a schedule runs, as datetimes in UTC; at most 100. Raises NotFound."""
        command = checks.checked(cron.CronNext(name=name, count=count))
        reply = self._caller.call(command)
        return [moment(run) for run in reply.data.runs]

    def _crons(self, queue: str | None) -> list[CronView]:
        """The schedules of one queue, or of all, by name."""
        reply = self._caller.call(cron.CronList())
        return [each for each in reply.crons if queue is None or each.queue == queue]

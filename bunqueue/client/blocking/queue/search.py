"""Made by scripts/unasync.py from client/queue/search.py; do not edit."""

from __future__ import annotations

from collections.abc import Iterator, Callable
from typing import Any, Unpack

from bunqueue.client.connection.caller import Caller
from bunqueue.client.connection.options import Duration, milliseconds
from bunqueue.client.conversion.words import storable
from bunqueue.client.models.jobs import Job
from bunqueue.client.models.search import ChangedJobs, FoundJobs, FoundPage, SearchPlan
from bunqueue.client.options import checks
from bunqueue.client.options.search import JobFilter, wanted
from bunqueue.errors import OptionError
from bunqueue.protocol.commands.find import (
    MAX_CHANGED,
    MAX_PAGE,
    Action,
    ChangeJobs,
    FindJobs,
)
from bunqueue.protocol.search.cursor import means_all

PAGE = 500  # jobs per page when reading all jobs
LIMIT = 10_000  # jobs changed by one call, unless given

OnProgress = Callable[[int, int], None]


class Search:
    """Searches for jobs; docs/find.md says which searches are fast."""

    _caller: Caller

    @property
    def _searched(self) -> str | None:
        """The queue to search; None: all queues."""
        return None

    def find(
        self,
        *,
        limit: int = 100,
        cursor: str | None = None,
        oldest_first: bool = False,
        on_progress: OnProgress | None = None,
        **which: Unpack[JobFilter],
    ) -> FoundPage:
        """A page of the jobs that match `JobFilter`, in any state: at most `limit`, newest first.

            page = queue.find(state="failed", tag="vip", where="data.order.total > 100")

        `page.cursor` leads to the next page with the same filter; it is None at the end. During a long search
        `on_progress` is called with the number of jobs checked and the maximum to check. Raises OptionError
        for an invalid filter.
        """
        checks.whole("limit", limit)
        checks.function("on_progress", on_progress)
        page = FoundPage([], cursor, SearchPlan([], 0))
        command = self._search(which, limit=min(limit, MAX_PAGE), cursor=cursor, asc=oldest_first)
        more = True
        while more and len(page.jobs) < limit:
            command.limit, command.cursor = min(limit - len(page.jobs), MAX_PAGE), page.cursor
            more = page.add(self._caller.call(command, FoundJobs))
            if on_progress is not None:
                on_progress(page.scanned, page.plan.jobs)
        return page

    def iter_found(
        self, *, oldest_first: bool = False, page: int = PAGE, **which: Unpack[JobFilter]
    ) -> Iterator[Job]:
        """All jobs that match `JobFilter`, read page by page. A job that exists the whole time is returned
        exactly once.
        """
        cursor = None
        while True:
            found = self.find(limit=page, cursor=cursor, oldest_first=oldest_first, **which)
            for job in found.jobs:
                yield job
            if (cursor := found.cursor) is None:
                return

    def count_found(self, *, on_progress: OnProgress | None = None, **which: Unpack[JobFilter]) -> int:
        """The number of jobs that match `JobFilter`. This checks all candidates; `on_progress` as
        in `find`.
        """
        checks.function("on_progress", on_progress)
        page = FoundPage([], None, SearchPlan([], 0))
        command, more = self._search(which), True
        while more:
            more = page.add(self._caller.call(command, FoundJobs))
            command.cursor = page.cursor
            if on_progress is not None:
                on_progress(page.scanned, page.plan.jobs)
        return page.found

    def explain_find(self, **which: Unpack[JobFilter]) -> SearchPlan:
        """How `find` would search, and the maximum number of jobs it would check; no job is checked."""
        reply = self._caller.call(self._search(which, explain=True), FoundJobs)
        return SearchPlan(reply.plan.by, reply.plan.jobs)

    # -- changing all matches
    # The oldest come first. `limit` bounds how many are changed; `more` in the result says whether there may
    # be others. With `dry_run` nothing is changed, and all matches are counted. Jobs added in the meantime
    # are not touched. If the connection is lost, completed changes stay: call it again.

    def retry_found(
        self,
        *,
        limit: int = LIMIT,
        dry_run: bool = False,
        on_progress: OnProgress | None = None,
        **which: Unpack[JobFilter],
    ) -> ChangedJobs:
        """Run the dead letters that match `JobFilter` again, with all their attempts.

        Cancelled and completed jobs are left alone unless `state` names them.
        """
        return self._change("retry", which, limit, dry_run, on_progress)

    def cancel_found(
        self,
        reason: str | None = None,
        *,
        grace: Duration | None = None,
        limit: int = LIMIT,
        dry_run: bool = False,
        on_progress: OnProgress | None = None,
        **which: Unpack[JobFilter],
    ) -> ChangedJobs:
        """Cancel the jobs that match `JobFilter`, including running ones, like `JobHandle.cancel`."""
        lasting = None if grace is None else milliseconds(grace, "grace")
        return self._change(
            "cancel", which, limit, dry_run, on_progress, reason=storable(reason), grace=lasting
        )

    def remove_found(
        self,
        *,
        limit: int = LIMIT,
        dry_run: bool = False,
        on_progress: OnProgress | None = None,
        **which: Unpack[JobFilter],
    ) -> ChangedJobs:
        """Remove the jobs that match `JobFilter`, with everything they have; running jobs are left alone."""
        return self._change("remove", which, limit, dry_run, on_progress)

    def prioritize_found(
        self,
        priority: int,
        *,
        limit: int = LIMIT,
        dry_run: bool = False,
        on_progress: OnProgress | None = None,
        **which: Unpack[JobFilter],
    ) -> ChangedJobs:
        """Change the priority of the waiting and delayed jobs that match `JobFilter`."""
        return self._change("priority", which, limit, dry_run, on_progress, priority=priority)

    def move_found(
        self,
        to: str,
        *,
        limit: int = LIMIT,
        dry_run: bool = False,
        on_progress: OnProgress | None = None,
        **which: Unpack[JobFilter],
    ) -> ChangedJobs:
        """Move waiting and delayed jobs and dead letters that match `JobFilter` to the queue `to`.

        They keep their ids, so handles and callers that wait for results keep working, and they keep their
        data, options, logs and attempts. Dead letters wait in the new queue, with all their attempts. Jobs of
        flows, and workflows, are left alone.
        """
        return self._change("move", which, limit, dry_run, on_progress, to=checks.queue_name(to))

    def _change(
        self,
        action: Action,
        which: JobFilter,
        limit: int,
        dry_run: bool,
        on_progress: OnProgress | None,
        **more: Any,
    ) -> ChangedJobs:
        checks.whole("limit", limit)
        checks.function("on_progress", on_progress)
        fields = self._wanted(which)
        command = ChangeJobs(queue=self._searched, action=action, dry_run=dry_run, **fields, **more)
        if means_all(command):
            raise OptionError(
                "a search of all queues needs at least one condition; give state=, or where=", field="where"
            )
        checks.checked(command)
        done = ChangedJobs()
        while True:
            command.limit = min(limit - (0 if dry_run else done.changed), MAX_CHANGED)
            reply = self._caller.call(command)
            if not done.scanned:
                done.plan = SearchPlan(reply.plan.by, reply.plan.jobs)
            done.add(reply)
            command.cursor = reply.cursor
            if on_progress is not None:
                on_progress(done.scanned, max(done.scanned, done.plan.jobs))
            done.more = reply.cursor is not None
            if not done.more or (not dry_run and done.changed >= limit):
                return done

    def _wanted(self, which: JobFilter) -> dict[str, Any]:
        return wanted(which, self._caller.endpoint.codec)

    def _search(
        self,
        which: JobFilter,
        *,
        limit: int = 0,
        cursor: str | None = None,
        asc: bool = False,
        explain: bool = False,
    ) -> FindJobs:
        fields = self._wanted(which)
        command = FindJobs(
            queue=self._searched, limit=limit, cursor=cursor, asc=asc, explain=explain, **fields
        )
        return checks.checked(command, asc="oldest_first")

"""Made by scripts/unasync.py from client/queue/search.py; do not edit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Unpack

from bunqueue.client.connection.caller import Caller
from bunqueue.client.models.jobs import Job
from bunqueue.client.models.search import FoundJobs, FoundPage, SearchPlan
from bunqueue.client.options import checks
from bunqueue.client.options.search import JobFilter, wanted
from bunqueue.protocol.commands.find import MAX_PAGE, FindJobs

PAGE = 500  # jobs read at once by who wants all

OnProgress = Callable[[int, int], None]


class Search:
    """What finds jobs; docs/find.md says what is found quickly."""

    _caller: Caller

    @property
    def _searched(self) -> str | None:
        """The queue in which jobs are found; None: all."""
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
        """A page of the jobs that `JobFilter` describes, in any state: at most `limit`, the newest first.

            page = queue.find(state="failed", tag="vip", where="data.order.total > 100")

        `page.cursor` leads to the next page, with the same filter; it is None at the end. While many jobs
        have to be looked at, `on_progress` is called with how many have been, and how many that is at most.
        Raises OptionError for a filter that is not allowed.
        """
        checks.whole("limit", limit)
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
        """All jobs that `JobFilter` describes, read page by page. A job that is there all the time is met
        exactly once."""
        cursor = None
        while True:
            found = self.find(limit=page, cursor=cursor, oldest_first=oldest_first, **which)
            for job in found.jobs:
                yield job
            if (cursor := found.cursor) is None:
                return

    def count_found(self, *, on_progress: OnProgress | None = None, **which: Unpack[JobFilter]) -> int:
        """How many jobs `JobFilter` describes. For that all are looked at that may be; `on_progress` as in
        `find`."""
        page = FoundPage([], None, SearchPlan([], 0))
        command, more = self._search(which), True
        while more:
            more = page.add(self._caller.call(command, FoundJobs))
            command.cursor = page.cursor
            if on_progress is not None:
                on_progress(page.scanned, page.plan.jobs)
        return page.found

    def explain_find(self, **which: Unpack[JobFilter]) -> SearchPlan:
        """How `find` would go about it, and how many jobs it would look at, at most; it looks at none."""
        reply = self._caller.call(self._search(which, explain=True), FoundJobs)
        return SearchPlan(reply.plan.by, reply.plan.jobs)

    def _search(
        self,
        which: JobFilter,
        *,
        limit: int = 0,
        cursor: str | None = None,
        asc: bool = False,
        explain: bool = False,
    ) -> FindJobs:
        fields = wanted(which)
        command = FindJobs(
            queue=self._searched, limit=limit, cursor=cursor, asc=asc, explain=explain, **fields
        )
        return checks.checked(command, asc="oldest_first")

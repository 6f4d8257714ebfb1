"""FindJobs: one page of a search."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from msgspec import UNSET

from bunqueue.model.job import Job
from bunqueue.protocol.commands.find import FindJobs, FindReply, Position, Progress
from bunqueue.protocol.search import cursor as cursors
from bunqueue.protocol.search.cursor import BEGIN, DONE, Cursor

from ...criteria import LIVE
from ...registry import handles
from ...slices import Steps, sliced
from ...state import Client, State
from ..views.query import SLICE, Shown
from .matching import meets
from .plan import Plan, plan
from .walk import Match, walk

MAX_BYTES = 8 << 20  # of jobs per page; the page ends with the job that exceeds it

Slices = Generator[None, None, None]


@handles(FindJobs)
@sliced
def find_jobs(state: State, client: Client, command: FindJobs) -> Steps:
    cursor = cursors.of(command, command.cursor, state.shards, state.now)
    if command.queue is not None:
        cursor.places = [place if n == state.shard else DONE for n, place in enumerate(cursor.places)]
    page = _Page(state, command, cursor)
    found = plan(state, client, command, cursor, asc=command.asc, until=state.next_seq)
    if command.explain:
        return page.reply(found, Shown(state, client))
    yield from page.collect(found)
    answer = Shown(state, client, data_limit=command.data_limit)
    yield from page.load(found, answer)
    return page.reply(found, answer)


class _Page:
    """The jobs of one page, and how far the search has got."""

    def __init__(self, state: State, command: FindJobs, cursor: Cursor) -> None:
        self._state, self._command, self._cursor = state, command, cursor
        self._start = cursor.places[state.shard]
        self._matches: list[Match] = []
        self._seqs: list[int] = []  # numbers of the jobs in the reply
        self._times: list[float] = []
        self._found = self._scanned = self._unreadable = 0

    def collect(self, found: Plan) -> Slices:
        """Find the jobs; the cursor ends behind the last one.

        When the page is full, look for one more job, as far as this command may scan: without one, the page
        is the last.
        """
        command, places, shard = self._command, self._cursor.places, self._state.shard
        before, is_full = self._start, False
        for number, step in enumerate(walk(self._state, found, asc=command.asc)):
            if number:
                yield
            if step is None:
                continue
            self._scanned += step.scanned
            if is_full:
                if step.matches or self._scanned >= command.scan:
                    return
                continue
            low, high = sorted((max(before, 0), step.place))
            self._unreadable += self._state.archive.searches.unreadable(low, high)
            before = places[shard] = step.place
            room = command.limit - len(self._matches)
            if command.limit and len(step.matches) >= room:
                self._matches += step.matches[:room]
                places[shard] = self._matches[-1].seq
                if len(step.matches) > room or self._scanned >= command.scan:
                    return
                is_full = True
                continue
            self._found += len(step.matches)
            self._matches += step.matches if command.limit else ()
            if self._scanned >= command.scan:
                return
        places[shard] = DONE

    def load(self, found: Plan, answer: Shown) -> Slices:
        """Read the jobs that were found.  A job that ends in the meantime is shown if it still matches; jobs
        that do not fit are left for the next page."""
        for start in range(0, len(self._matches), SLICE):
            yield
            for match, job in self._loaded(self._matches[start : start + SLICE]):
                if not meets(found.conditions, match.queue, job):
                    continue
                if answer.size > MAX_BYTES:
                    self._cursor.places[self._state.shard] = self._seqs[-1]
                    return
                if not answer.add(job):
                    self._cursor.places[self._state.shard] = self._seqs[-1]
                    return
                self._seqs.append(match.seq)
                self._times.append(float(job.created_at))

    def _loaded(self, matches: Sequence[Match]) -> list[tuple[Match, Job]]:
        finished = [match.seq for match in matches if match.state != LIVE or match.seq not in _live_of(match)]
        stored = self._state.archive.load(finished)
        found = []
        for match in matches:
            job = stored.get(match.seq) or _live_of(match).get(match.seq)
            if job is not None:
                found.append((match, job))
        return found

    def reply(self, found: Plan, answer: Shown) -> FindReply:
        """Build the reply for the page."""
        count = len(self._seqs) if self._command.limit else self._found
        several = self._state.shards > 1
        return FindReply(
            jobs=answer.reply().jobs,
            cursor=cursors.encoded(self._cursor) if several else cursors.written(self._cursor),
            plan=found.shown,
            progress=Progress(min(self._scanned, found.most), count, self._unreadable),
            position=self._position() if several else UNSET,
        )

    def _position(self) -> Position:
        place = self._cursor.places[self._state.shard]
        created = self._state.archive.searches.created_before(place) if place > BEGIN else 0
        if place == BEGIN and not self._command.asc:
            created = self._state.now
        return Position(
            self._state.shard,
            self._command.limit,
            self._command.asc,
            self._start,
            float(created),
            self._seqs,
            self._times,
        )


def _live_of(match: Match) -> dict[int, Job]:
    """The table of live jobs in its queue that would contain it."""
    queue = match.queue
    return queue.jobs if match.seq in queue.jobs else queue.late

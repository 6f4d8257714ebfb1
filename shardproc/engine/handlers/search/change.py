"""ChangeJobs: cancels, retries, removes, moves or reprioritizes the jobs that a search finds.

Anything may happen to a job between two slices, so each is checked again in the slice that changes it.
Changes already made stay, whatever happens to the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from bunqueue.model.job import Job
from bunqueue.model.names import queue_name_problem
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError
from bunqueue.protocol.commands.find import Changed, ChangeJobs, ChangeReply, Progress
from bunqueue.protocol.search import cursor as cursors
from bunqueue.protocol.search.cursor import DONE, Cursor

from ...criteria import LIVE
from ...registry import handles
from ...slices import Later, Steps, sliced
from ...state import Client, State
from .actions import Actions
from .find import Slices
from .matching import meets
from .plan import Plan, plan
from .walk import Match, walk

PIECE = 20  # jobs changed per slice; about 1 ms
EXAMPLES = 20  # ids in a reply

_OWN = {"priority": ("priority",), "move": ("to",), "cancel": ("reason", "grace")}
"""Fields that belong to a single action."""
_NEEDED = {"priority": "priority", "move": "to"}


@handles(ChangeJobs)
@sliced
def change_jobs(state: State, client: Client, command: ChangeJobs) -> Steps:
    _check(command)
    cursor = cursors.of(command, command.cursor, state.shards, state.now)
    if command.queue is not None:
        cursor.places = [place if n == state.shard else DONE for n, place in enumerate(cursor.places)]
    cursor.until = min(cursor.until or state.next_seq, state.next_seq)  # whatever the cursor says
    found = plan(state, client, command, cursor, asc=True, until=cursor.until)
    work = _Work(state, client, command, cursor, found)
    yield from work.run()
    return Later(work.finish)


def _check(command: ChangeJobs) -> None:
    """CommandError for fields that do not go together."""
    for action, names in _OWN.items():
        for name in names:
            if getattr(command, name) is not None and action != command.action:
                text = f"{name} is only for the action {action}, not for {command.action}"
                raise CommandError(
                    text, Code.INVALID_FIELD, field=name, value=getattr(command, name), bound=action
                )
    needed = _NEEDED.get(command.action)
    if needed is not None and getattr(command, needed) is None:
        text = f"{needed} is required for the action {command.action}"
        raise CommandError(text, Code.INVALID_FIELD, field=needed, value=None)
    if command.to is not None and (problem := queue_name_problem(command.to)):
        raise CommandError(problem, Code.INVALID_QUEUE, field="to", value=command.to)
    if cursors.means_all(command):
        text = "say which jobs: give a queue, or at least one condition"
        raise CommandError(text, Code.INVALID_FIELD, field="where", value=None)


class _Work:
    """The jobs of one command."""

    def __init__(
        self, state: State, client: Client, command: ChangeJobs, cursor: Cursor, found: Plan
    ) -> None:
        self._state, self._command, self._cursor, self._found = state, command, cursor, found
        self._actions = Actions(state, client, command, found.conditions)
        self._changed = self._matched = self._scanned = 0
        self._skipped: Counter[str] = Counter()
        self._examples: list[str] = []

    def run(self) -> Slices:
        """Find jobs and change them; the cursor ends behind the last one."""
        places, shard = self._cursor.places, self._state.shard
        for step in walk(self._state, self._found, asc=True):
            if step is None:
                yield
                continue
            for start in range(0, len(step.matches), PIECE):
                yield
                last = self._piece(step.matches[start : start + PIECE])
                if last is not None:
                    places[shard] = last
                    return
            yield
            places[shard] = step.place
            self._scanned += step.scanned
            if self._scanned >= self._command.scan:
                return
        places[shard], self._cursor.until = DONE, 0

    def finish(self, deliver: Callable[[ChangeReply], None]) -> None:
        """Reply once everything is done."""

        def done(moved: int, refused: Counter[str]) -> None:
            self._changed -= refused.total()
            self._skipped += refused
            deliver(self._reply())

        self._actions.when_moved(done)

    def _reply(self) -> ChangeReply:
        return ChangeReply(
            data=Changed(self._changed, dict(self._skipped), self._examples),
            cursor=cursors.written(self._cursor),
            plan=self._found.shown,
            progress=Progress(min(self._scanned, self._found.most), self._matched),
        )

    def _piece(self, matches: Sequence[Match]) -> int | None:
        """Change some jobs; returns the number of the last one if the limit is reached."""
        dry = self._command.dry_run
        for match, job in self._current(matches):
            problem = self._actions.refusal(match)
            if problem is None and job is not None and not dry:
                problem = self._actions.carry_out(match.queue, job)
            self._count(job, problem)
            if not dry and self._changed >= self._command.limit:
                self._actions.end_piece()
                return match.seq
        self._actions.end_piece()
        return None

    def _current(self, matches: Sequence[Match]) -> Iterator[tuple[Match, Job | None]]:
        """The current versions of the jobs that still match.  A dry run changes nothing, so it does not read
        finished ones."""
        finished = [match.seq for match in matches if match.state != LIVE]
        if self._command.dry_run:
            finished = finished[: EXAMPLES - len(self._examples)]
        stored = self._state.archive.load(finished)
        for match in matches:
            job = stored.get(match.seq)
            if match.state == LIVE:
                job = match.queue.jobs.get(match.seq) or match.queue.late.get(match.seq)
                match = match._replace(job=job)
            if job is None and self._command.dry_run:
                yield match, None
            elif job is not None and meets(self._found.conditions, match.queue, job):
                yield match, job

    def _count(self, job: Job | None, problem: str | None) -> None:
        self._matched += 1
        if problem is not None:
            self._skipped[problem] += 1
            return
        self._changed += 1
        if job is not None and len(self._examples) < EXAMPLES:
            self._examples.append(job.id)

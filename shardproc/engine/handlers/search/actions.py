"""The effect of ChangeJobs on one job, and the reasons for leaving others alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from bunqueue.model.job import ACTIVE, BLOCKED, COMPLETED, FAILED, STATE_NAMES, SUSPENDED, Job
from bunqueue.protocol.commands.find import ChangeJobs
from bunqueue.protocol.commands.jobs import Cancel
from bunqueue.protocol.search.conditions import EQUAL, Condition

from ...criteria import LIVE, STOPPED
from ...lifecycle import events, removal, transitions
from ...lookup import has_its_id
from ...peers import moves
from ...state import Client, QueueState, State
from .. import cancel, dlq
from .walk import Match

# Reasons for leaving a job alone
FINISHED, UNFINISHED, IS_ACTIVE, IS_COMPLETED, CANCELLED = (
    "finished",
    "unfinished",
    "active",
    "completed",
    "cancelled",
)
TAKEN = "unique-key"  # another job holds its key
FLOW = "flow"  # jobs of a flow stay together
WORKFLOW = "workflow"  # its steps cannot be moved
THERE = "there-already"
OWN_ID = "own-id"  # in the namespace that it would move to, nobody could name it

GRACE = 10_000  # ms, the same as for Cancel


class Actions:
    """The action of one command."""

    def __init__(
        self, state: State, client: Client, command: ChangeJobs, conditions: Sequence[Condition]
    ) -> None:
        self._state, self._client, self._command = state, client, command
        named = [each.values for each in conditions if each.field == "state" and each.comparison == EQUAL]
        self._named = frozenset(word for values in named for word in values)
        self._removals: dict[tuple[QueueState, int], list[int]] = {}
        self._removed = 0
        self._transfer = moves.Transfer(state, command.to or "")

    def refusal(self, match: Match) -> str | None:
        """The reason for leaving a job alone, as far as its state shows."""
        refuse: Callable[[Match], str | None] = getattr(self, f"_refuse_{self._command.action}")
        return refuse(match)

    def carry_out(self, queue: QueueState, job: Job) -> str | None:
        """Change a job, or return the reason for leaving it alone."""
        act: Callable[[QueueState, Job], str | None] = getattr(self, f"_{self._command.action}")
        return act(queue, job)

    def end_piece(self) -> None:
        """Finish a piece: purge the jobs to remove and send the ones to move."""
        for (queue, finished), seqs in self._removals.items():
            removal.check(self._state, queue, self._removed)
            removal.purge(self._state, queue, finished, seqs)
            self._removed += len(seqs)
        self._removals.clear()
        self._transfer.send()

    def when_moved(self, done: Callable[[int, Counter[str]], None]) -> None:
        """Call ``done`` once all jobs have been moved, with their number, and the number that came back for
        each reason."""
        self._transfer.when_done(done)

    # -- the actions

    def _refuse_cancel(self, match: Match) -> str | None:
        return None if match.state == LIVE else FINISHED

    def _cancel(self, queue: QueueState, job: Job) -> None:
        grace = GRACE if self._command.grace is None else self._command.grace
        order = Cancel(id=job.id, running=True, reason=self._command.reason, grace=grace)
        cancel.cancel(self._state, self._client, order)

    def _refuse_retry(self, match: Match) -> str | None:
        if match.state == LIVE:
            return UNFINISHED
        return self._refuse_unnamed(match)

    def _refuse_unnamed(self, match: Match) -> str | None:
        """Retry cancelled and completed jobs only if the search names their state."""
        if match.state == STOPPED and CANCELLED not in self._named:
            return CANCELLED
        if match.state == COMPLETED and IS_COMPLETED not in self._named:
            return IS_COMPLETED
        return None

    def _retry(self, queue: QueueState, job: Job) -> str | None:
        return None if dlq.revive(self._state, queue, job) else TAKEN

    def _refuse_remove(self, match: Match) -> str | None:
        return IS_ACTIVE if match.job is not None and match.job.state == ACTIVE else None

    def _remove(self, queue: QueueState, job: Job) -> None:
        if job.state in (COMPLETED, FAILED):
            self._removals.setdefault((queue, job.state), []).append(job.seq)
        else:
            transitions.remove(self._state, queue, job, events.REMOVED)

    def _refuse_priority(self, match: Match) -> str | None:
        if match.state != LIVE or match.job is None:
            return FINISHED
        return _busy(match.job)

    def _priority(self, queue: QueueState, job: Job) -> None:
        assert self._command.priority is not None
        transitions.reorder(self._state, queue, job, self._command.priority, lifo=None)

    def _refuse_move(self, match: Match) -> str | None:
        if match.queue.name == self._command.to:
            return THERE
        if match.state == COMPLETED:
            return IS_COMPLETED
        return self._refuse_unnamed(match) or _busy(match.job)

    def _move(self, queue: QueueState, job: Job) -> str | None:
        if job.run is not None:
            return WORKFLOW
        if moves.is_of_flow(self._state, job):
            return FLOW
        if not has_its_id(self._command.to or "", job.id):
            return OWN_ID
        return self._transfer.add(queue, job)


def _busy(job: Job | None) -> str | None:
    """The state of a live job that is neither waiting nor delayed."""
    if job is not None and job.state in (ACTIVE, BLOCKED, SUSPENDED):
        return STATE_NAMES[job.state]
    return None

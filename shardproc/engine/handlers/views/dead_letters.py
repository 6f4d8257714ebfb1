"""Dead letters as shown to clients: as jobs, and as entries with their attempts."""

from __future__ import annotations

from msgspec import UNSET, Raw
from msgspec.msgpack import Encoder

from bunqueue.model.dead_letters import COMPLETED_OUTCOME, UNKNOWN, AutoRetries, cause_of, reason_of
from bunqueue.model.job import FAILED, Job
from bunqueue.protocol.commands.dlq import DeadLetterView, DlqFilter, DlqReply, PastAttempt
from bunqueue.protocol.job_view import job_list

from ...memory.queue_configs import dlq_config
from ...outbox import Attempt, DeadLetter
from ...state import Client, State
from .query import Shown

_encode = Encoder().encode


class Entries(Shown):
    """Collects dead letters as jobs and as entries."""

    def __init__(self, state: State, client: Client, queue: str) -> None:
        super().__init__(state, client)
        self._archive = state.archive
        self._queue = queue
        self._config = dlq_config(state, queue)
        self._entries: list[bytes] = []
        self._end: DeadLetter | None = None

    def add_dead(self, rows: list[DeadLetter]) -> bool:
        """Add dead letters, except those that have been retried or removed since; whether all of them fit
        into the reply."""
        seqs = [row.seq for row in rows]
        found, unreadable = self._archive.load(seqs), self._archive.unreadable(seqs)
        pasts = self._archive.attempts([seq for seq, job in found.items() if job.state == FAILED])
        for row in rows:
            job = found.get(row.seq)
            fits = True
            if job is not None and job.state == FAILED:
                fits = self.add(job) and self._enter(
                    self._entry(job, self._shown_last, pasts.get(job.seq, []))
                )
            elif row.seq in unreadable:
                lost = unreadable[row.seq]
                fits = self.add_unreadable(self._queue, lost) and self._enter(
                    _unreadable_entry(row, self._shown_last, lost.why)
                )
            if not fits:
                return False
            self._end = row
        return True

    @property
    def _shown_last(self) -> Raw:
        return Raw(self._jobs[-1])

    def _enter(self, entry: DeadLetterView) -> bool:
        """Add an entry if it fits beside its job; otherwise drop the job as well."""
        encoded = _encode(entry)
        if not self._entries or self.fits(len(encoded)):
            self._entries.append(encoded)
            return True
        self._jobs.pop()
        return False

    def _entry(self, job: Job, view: Raw, past: list[Attempt]) -> DeadLetterView:
        died, stored, config = job.finished_at or 0, job.reason or UNKNOWN, self._config
        reason = reason_of(stored)
        kept = None if job.extra is None else job.extra.keep_failed
        kept = config.max_age if kept is None else kept
        retries = (job.extra.auto_retries if job.extra is not None else None) or AutoRetries()
        history = [_past(attempt) for attempt in past if attempt.outcome != COMPLETED_OUTCOME]
        if history and reason != UNKNOWN:
            history[-1].reason = reason  # the result of the last failure
        return DeadLetterView(
            view,
            float(died),
            reason,
            job.error,
            history,
            retries.count,
            _float(retries.last_at),
            _float(retries.next_at),
            None if kept is None else float(died + kept),
            cause_of(stored),
        )

    def dlq_reply(self, chosen: DlqFilter, *, is_last: bool) -> DlqReply:
        """Build the reply with all of them."""
        reply = DlqReply(jobs=self.reply().jobs, entries=job_list(self._entries), more=self.is_full or UNSET)
        if chosen.cursor is not None and not is_last and self._end is not None:
            reply.cursor = f"{self._end.entered_at}-{self._end.seq}"
        return reply


def _unreadable_entry(row: DeadLetter, view: Raw, why: str) -> DeadLetterView:
    """A dead letter whose job cannot be read."""
    again = _float(row.next_retry_at)
    stored = row.reason or UNKNOWN
    entered, reason, cause = float(row.entered_at), reason_of(stored), cause_of(stored)
    return DeadLetterView(view, entered, reason, why, [], 0, None, again, None, cause)


def _past(attempt: Attempt) -> PastAttempt:
    started = attempt.ended_at if attempt.started_at is None else attempt.started_at
    return PastAttempt(
        attempt.number,
        float(started),
        float(attempt.ended_at),
        attempt.outcome,
        attempt.error,
        float(attempt.ended_at - started),
        attempt.error_type,
        _float(attempt.delay),
    )


def _float(ms: int | None) -> float | None:
    return None if ms is None else float(ms)

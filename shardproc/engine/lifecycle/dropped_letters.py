"""Dead letters that nobody removed: their queue had more than it keeps, or they were too old.

Each is an event with its error, and counts for its queue, also after a restart.  Details of the last
MAX_KNOWN of a shard are stored by id, so a client that asks for one of these jobs gets an explanation.
"""

from __future__ import annotations

from collections.abc import Container

from msgspec import json

from bunqueue.model.dead_letters import KEEP_FAILED, MAX_AGE
from bunqueue.model.durations import DAY_MS
from bunqueue.protocol.commands.dlq import Dropped
from bunqueue.server.links import peers as messages

from .. import peer_calls
from ..memory.dropped_letters import LETTER, MAX_KNOWN, decode_letter
from ..memory.pointers import pointer
from ..memory.queue_configs import dlq_config
from ..outbox import OldLetter
from ..registry import answers, at_id, at_queue, recovers, when_obliterated
from ..state import QueueState, State
from . import events, job_waiters

KIND = "dropped"  # the record of a queue: its counts
RECENT_MS = 7 * DAY_MS  # how long a queue stays known after its last dropped dead letter, even if unused

_decode = json.Decoder(Dropped).decode


def drop(state: State, queue: QueueState, letters: list[OldLetter], why: str, own: Container[int]) -> None:
    """Report dead letters that are dropped, with the reason in ``why``: MAX_ENTRIES, MAX_AGE or KEEP_FAILED.
    KEEP_FAILED was set by the client that added the job, so it does not count as a loss.  ``own``: numbers of
    jobs whose ids may point to other shards."""
    for letter in letters:
        events.emit_dropped(state, queue, letter, why)
    if why != KEEP_FAILED:
        _count(state, queue, len(letters), why)
        _keep(state, queue, letters, why, own)


def _count(state: State, queue: QueueState, more: int, why: str) -> None:
    now, place = float(state.now), int(why == MAX_AGE)
    count = queue.dropped = queue.dropped or Dropped(first_at_ms=now)
    count.last_at_ms = now
    if why == MAX_AGE:
        count.too_old += more
    else:
        count.too_many += more
    state.out.keep(KIND, queue.name, count)
    state.totals.dropped[place] += more
    state.dropped.untold.setdefault(queue.name, [0, 0])[place] += more


def _keep(state: State, queue: QueueState, letters: list[OldLetter], why: str, own: Container[int]) -> None:
    """Remember them where clients will ask: on the shard to which the id points."""
    most = dlq_config(state, queue.name).max_entries
    elsewhere: dict[int, messages.DroppedLetters] = {}
    for seq, job_id, reason, error, attempts in letters:
        letter = messages.DroppedLetter(state.now, queue.name, why, most, reason, error, attempts)
        shard = pointer(state, job_id) if seq in own else state.shard
        if shard == state.shard:
            _remember(state, job_id, letter)
        else:
            told = elsewhere.setdefault(shard, messages.DroppedLetters([], []))
            told.ids.append(job_id)
            told.letters.append(letter)
            job_waiters.keep_dropped(state, job_id, letter)
    for shard, told in elsewhere.items():
        peer_calls.notify(state, shard, told)


def _remember(state: State, job_id: str, letter: messages.DroppedLetter) -> None:
    known = state.dropped.known
    known.pop(job_id, None)
    known[job_id] = letter.at, letter.queue
    state.out.keep(LETTER, job_id, letter)
    if len(known) > MAX_KNOWN:
        forget(state, next(iter(known)))


@answers(messages.DroppedLetters)
def remember_dropped(state: State, source: int, message: messages.DroppedLetters) -> None:
    """Remember jobs of another shard whose ids point here."""
    for job_id, letter in zip(message.ids, message.letters, strict=True):
        if state.directory.get(job_id) == source:  # else the id has been used again
            _remember(state, job_id, letter)


def forget(state: State, job_id: str) -> None:
    """Forget a dead letter because its id is used again, or to make room for others."""
    if state.dropped.known.pop(job_id, None) is not None:
        state.out.keep(LETTER, job_id, None)


def purged(state: State, queue: QueueState) -> None:
    """All dead letters of a queue have been removed by a command: reset its counts."""
    state.dropped.untold.pop(queue.name, None)
    if queue.dropped is not None:
        queue.dropped = None
        state.out.keep(KIND, queue.name, None)


@when_obliterated
def obliterate(state: State, queue: QueueState) -> None:
    """Forget everything about the queue's dropped dead letters."""
    purged(state, queue)
    for job_id in [job_id for job_id, (_, name) in state.dropped.known.items() if name == queue.name]:
        forget(state, job_id)


def is_recent(state: State, queue: QueueState) -> bool:
    """Whether users should still see that dead letters of the queue were dropped."""
    return queue.dropped is not None and state.now - (queue.dropped.last_at_ms or 0) < RECENT_MS


@recovers(KIND, at_queue)
def recover(state: State, key: str, value: str) -> None:
    """Restore the count of a queue."""
    queue = state.queues.get(key)
    if queue is None:  # it was dropped as unused
        state.out.keep(KIND, key, None)
    else:
        queue.dropped = _decode(value)


@recovers(LETTER, at_id)
def recover_letter(state: State, key: str, value: str) -> None:
    letter = decode_letter(value)
    state.dropped.known[key] = letter.at, letter.queue


def recovered(state: State) -> None:
    """Sort the restored dead letters by the time when they were dropped."""
    known = state.dropped.known
    state.dropped.known = dict(sorted(known.items(), key=lambda entry: entry[1][0]))

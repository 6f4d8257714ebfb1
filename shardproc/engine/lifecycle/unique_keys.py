"""The holders of unique keys: live jobs, and ended jobs whose keys are not free yet.

The keys of ended jobs are stored as records.  A key with a time limit is freed when that is over; one without
is held as long as its job is kept.  A shard keeps at most MAX_ENDED of them, in addition to those of its live
jobs.  The rules for pushes are in `dedup`.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.json import Decoder

from bunqueue.model.dead_letters import CANCELLED as STOPPED
from bunqueue.model.dead_letters import EXPIRED
from bunqueue.model.ids import seq_of_id
from bunqueue.model.job import COMPLETED, FAILED, REMOVED, Job
from bunqueue.model.names import parts_of, record_key
from bunqueue.model.unique import CANCELLED, holds_key

from ..memory.clock_correction import SetBack
from ..memory.kept import A_KEY_CHARACTER, KEY
from ..registry import at_queue_in, recovers, when_obliterated
from ..state import EndedKey, QueueState, State

KIND = "key"
MAX_ENDED = 1_000_000  # about 300 MB

_decode = Decoder(EndedKey).decode


def release_key(queue: QueueState, job: Job) -> None:
    """Free the unique key for another job."""
    if job.holds_key and job.unique_key is not None:
        job.holds_key = False
        queue.unique.pop(job.unique_key, None)


def release_after_attempt(queue: QueueState, job: Job) -> None:
    """Free the key after a failed attempt, as in the reference, unless its push declared in which states it
    is held."""
    if job.holds_key and (job.extra is None or job.extra.key_states is None):
        release_key(queue, job)


def retake_key(state: State, queue: QueueState, job: Job) -> None:
    """Give a revived job its unique key again, unless another job has it."""
    hand_on(state, queue, job, job)


def hand_on(state: State, queue: QueueState, job: Job, to: Job) -> None:
    """Pass the key of an ended job to a live one, or back to itself, unless a third job has it."""
    key = to.unique_key = job.unique_key
    if key is None:
        return
    to.holds_key = key not in queue.unique and holder_of_ended(state, queue, key) in (None, job.id)
    if to.holds_key:
        drop_ended(state, queue, key)
        queue.unique[key] = to.id


def end_key(state: State, queue: QueueState, job: Job) -> None:
    """Free the key of a job that has ended, or continue to hold it."""
    key, extra = job.unique_key, job.extra
    release_key(queue, job)
    if key is None or extra is None or extra.key_states is None:
        return
    until = extra.key_until
    is_there = until is not None or job.state != REMOVED
    if is_there and not is_over(until, state.now) and holds_key(extra.key_states, _ended_as(job)):
        keep_for_ended(state, queue, key, EndedKey(job.id, until, state.now))


def let_go(state: State, queue: QueueState, job: Job) -> None:
    """Free the key of a job that leaves its queue, live or ended."""
    release_key(queue, job)
    if has_after_its_end(state, queue, job):
        drop_ended(state, queue, job.unique_key or "")


def retake(state: State, queue: QueueState, job: Job) -> None:
    """Give an ended job that is back its key again, unless another job has taken it in the meantime."""
    key, until = job.unique_key, job.extra.key_until if job.extra is not None else None
    is_free = key not in queue.unique and key not in queue.ended_keys
    if key is not None and is_free and not is_over(until, state.now):
        keep_for_ended(state, queue, key, EndedKey(job.id, until, state.now))


def has_after_its_end(state: State, queue: QueueState, job: Job) -> bool:
    """Whether an ended job holds its key."""
    return job.unique_key is not None and holder_of_ended(state, queue, job.unique_key) == job.id


def _ended_as(job: Job) -> int:
    """The state in which a job has ended, as it counts for its key; REMOVED: it was removed before its
    end."""
    if job.state == COMPLETED or (job.state == REMOVED and job.finished_at is not None):
        return COMPLETED
    if job.reason == STOPPED:
        return CANCELLED
    return FAILED if job.reason is not None and job.reason != EXPIRED else REMOVED


# -- keys of jobs that have ended


def is_over(until: int | None, now: int) -> bool:
    """Whether the time of a key is over."""
    return until is not None and until <= now


def holder_of_ended(state: State, queue: QueueState, key: str) -> str | None:
    """The id of the ended job that holds a key, if any."""
    ended = queue.ended_keys.get(key)
    return None if ended is None or is_over(ended.until, state.now) else ended.id


def is_full(state: State) -> bool:
    """Whether there is no room for more keys of ended jobs."""
    return state.ended_keys.count >= MAX_ENDED or state.ended_keys.size >= state.kept.key_room


def keep_for_ended(state: State, queue: QueueState, key: str, ended: EndedKey) -> None:
    """Let an ended job hold a key."""
    state.out.keep(KIND, record_key(queue.name, key), ended)
    _know(state, queue, key, ended)


def _know(state: State, queue: QueueState, key: str, ended: EndedKey) -> None:
    if not queue.ended_keys:
        queue.ended_keys = {}
    queue.ended_keys[key] = ended
    state.ended_keys.count += 1
    state.ended_keys.size += KEY + A_KEY_CHARACTER * len(key)
    if ended.until is not None:
        state.ended_keys.ends.add(ended.until, (queue.name, key))
    else:
        for name in _names(ended.id):
            state.ended_keys.kept.setdefault(name, []).append((queue.name, key))


def drop_ended(state: State, queue: QueueState, key: str) -> None:
    """Free a key of an ended job."""
    ended = queue.ended_keys.pop(key, None)
    if ended is None:
        return
    state.ended_keys.count -= 1
    state.ended_keys.size -= KEY + A_KEY_CHARACTER * len(key)
    state.out.keep(KIND, record_key(queue.name, key), None)
    if ended.until is None:
        for name in _names(ended.id):
            state.ended_keys.kept.pop(name, None)


def _names(job_id: str) -> Iterator[int | str]:
    """The names a purge may use for a job: its number, or its id if that does not contain the number."""
    yield job_id
    if (seq := seq_of_id(job_id)) is not None:
        yield seq


def expire(state: State, most: int) -> int:
    """Forget at most this many keys whose time is over; returns the number of entries checked."""
    ends, looked_at = state.ended_keys.ends, 0
    while looked_at < most and (entry := ends.pop_due(state.now)) is not None:
        looked_at += 1
        until, _, (name, key) = entry
        queue = state.queues.get(name)
        ended = queue.ended_keys.get(key) if queue is not None else None
        if queue is not None and ended is not None and ended.until == until:
            drop_ended(state, queue, key)
    return looked_at


def purged(state: State, seqs: list[int], own: dict[int, str]) -> None:
    """Free the keys of removed jobs that were held as long as those were kept."""
    kept = state.ended_keys.kept
    for seq in seqs:
        for name, key in list(kept.get(own.get(seq, seq), ())):
            queue = state.queues[name]
            ended = queue.ended_keys.get(key)
            # After resharding another job may have had this number before: check the file.
            if ended is not None and state.archive.known(ended.id) is None:
                drop_ended(state, queue, key)


def forget(state: State, queue: QueueState, job: Job) -> None:
    """Free the key of one finished job that is removed."""
    ended = queue.ended_keys.get(job.unique_key) if job.unique_key is not None else None
    if ended is not None and ended.id == job.id and ended.until is None:
        drop_ended(state, queue, job.unique_key or "")


@when_obliterated
def forget_queue(state: State, queue: QueueState) -> None:
    """Free all keys of ended jobs of a queue."""
    for key in list(queue.ended_keys):
        drop_ended(state, queue, key)


@recovers(KIND, at_queue_in)
def recover(state: State, key: str, value: str) -> None:
    name, unique_key = parts_of(key)
    queue, ended = state.queues.get(name), _decode(value)
    if queue is None or is_over(ended.until, state.now):
        state.out.keep(KIND, key, None)
    else:
        _know(state, queue, unique_key, ended)


def set_back(state: State, back: SetBack) -> int:
    """Correct the keys after the clock was ahead; returns how many have a new end."""
    moved = 0
    for queue in state.queues.values():
        for key, ended in queue.ended_keys.items():
            if ended.until is not None and back.is_wrong(ended.since):
                ended.until, ended.since = back.end(ended.until, ended.since), back.moment(ended.since)
                state.ended_keys.ends.add(ended.until, (queue.name, key))
                state.out.keep(KIND, record_key(queue.name, key), ended)
                moved += 1
    return moved

"""Pushes with an idempotency key: repeating a push adds nothing and returns the first reply.

A shard remembers the keys of the last minutes.  They are stored with the pushed ids, in the row with the
events of their batch: a row of their own would add a third to the cost of storing a single job.  When there
are too many, the oldest are forgotten early.  A repeated push that may have been among those is refused,
because its outcome is unknown.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError
from bunqueue.protocol.commands.core import Conflict, PlainPush, PlainPushBatch, Push, PushBatch

from ..memory.clock_correction import SetBack
from ..outbox import Pushed, PushedEntry
from ..state import State

KEPT_MS = 300_000  # a client repeats a push within its command timeout: half a minute by default
MAX_KEPT = 100_000  # single ids, or runs of ids; about 30 MB

AnyPush = PlainPush | PlainPushBatch | Push | PushBatch


class Answer(NamedTuple):
    """The reply to a push: the ids of its jobs, the places of those that are not new, and the outcome for
    those whose unique key was taken."""

    ids: list[str]
    existing: list[int] = []  # noqa: RUF012  # never changed
    conflicts: list[Conflict] = []  # noqa: RUF012


def recover(state: State, batches: Iterable[tuple[int, list[PushedEntry] | None]], now: int) -> None:
    """Restore stored batches with their times, newest first.  A batch is None if it has no pushes with keys;
    an empty list means that all older ones are lost.  Reads no further back than necessary."""
    memory = state.pushed
    for at, pushed in batches:
        if at <= now - KEPT_MS:
            return
        if pushed is None:
            continue
        if not pushed or memory.weight > MAX_KEPT:
            memory.forgotten_at = at
            return
        last = {key: answer for key, answer in pushed if key not in memory.known}
        memory.batches.appendleft((at, list(last)))
        memory.known.update(last)
        memory.weight += sum(map(_weight, last.values()))


def full_key(command: AnyPush) -> str:
    """The key, qualified by its queue: keys of different queues are independent."""
    return f"{command.queue} {command.idempotency_key}"


def answered(state: State, command: AnyPush) -> Answer | None:
    """The reply to an earlier push with that key, if there was one.

    CommandError if that is unknown, or if the key was used to push something else.
    """
    key, memory = full_key(command), state.pushed
    if (answer := memory.known.get(key)) is not None:
        known = answer if isinstance(answer, str) else _checked(answer, command)
        first = Answer([known]) if isinstance(known, str) else _first_answer(known)
        # A repeat with an age has lost the first reply, and gets it; any other learns that no job is new.
        return first if command.idempotency_age else Answer(first.ids, list(range(len(first.ids))))
    if key in memory.underway:
        raise CommandError(
            "Shard unavailable: the push with this idempotencyKey is still under way",
            Code.SHARD_UNAVAILABLE,
            field="idempotencyKey",
        )
    first_sent = state.now - int(command.idempotency_age)
    if command.idempotency_age and first_sent <= max(memory.forgotten_at, state.now - KEPT_MS):
        raise CommandError(
            f"Outcome unknown: a push that was first sent {int(command.idempotency_age)} ms ago may be"
            " forgotten; look whether its jobs are there",
            Code.OUTCOME_UNKNOWN,
            field="idempotencyAge",
            value=command.idempotency_age,
            bound=KEPT_MS,
        )
    return None


def _first_answer(known: Pushed) -> Answer:
    conflicts = [Conflict(action, holder, index) for index, action, holder in known.conflicts or ()]
    return Answer(_ids(known.runs), known.existing, conflicts)


def _checked(answer: Pushed, command: AnyPush) -> Pushed:
    theirs = _hash(command)
    if answer.hash is not None and theirs is not None and answer.hash != theirs:
        raise CommandError(
            f"idempotencyKey {command.idempotency_key!r} was used a moment ago to push something else"
            f" (job {answer.runs[0][0]}); give each push a key of its own, and repeat it with the same name"
            " and data",
            Code.IDEMPOTENCY_CONFLICT,
            field="idempotencyKey",
            value=command.idempotency_key,
        )
    return answer


def _hash(command: AnyPush) -> str | None:
    return command.idempotency_hash if isinstance(command, Push | PushBatch) else None


def begin(state: State, command: AnyPush) -> str:
    """Mark a push that has to ask other shards as under way, so it cannot start again in the meantime.  The
    caller removes the key from ``underway`` at the end."""
    if command.idempotency_key is None:
        return ""
    key = full_key(command)
    state.pushed.underway.add(key)
    return key


def remember(state: State, command: AnyPush, outcome: Answer) -> None:
    """Store the reply of a push that has been carried out."""
    ids = outcome.ids
    if not ids:  # a repeat of an empty batch adds nothing either
        return
    key, memory = full_key(command), state.pushed
    answer: str | Pushed
    given = _hash(command)
    if len(ids) == 1 and not outcome.existing and not outcome.conflicts and given is None:
        answer = ids[0]
    else:
        plain = isinstance(command, PlainPushBatch)  # its ids form one run
        runs = [(ids[0], len(ids))] if plain else _runs(ids)
        answer = Pushed(runs, outcome.existing, given)
        if outcome.conflicts:
            answer.conflicts = [
                (int(each.index or 0), each.action, each.holder) for each in outcome.conflicts
            ]
    memory.known[key] = answer
    memory.weight += _weight(answer)
    if memory.batches and memory.batches[-1][0] == state.now:
        memory.batches[-1][1].append(key)
    else:
        memory.batches.append((state.now, [key]))
    state.out.pushed.append((key, answer))


def forget(state: State) -> None:
    """Forget keys that are too old or too many.  Called on every tick."""
    memory, now = state.pushed, state.now
    batches = memory.batches
    many = memory.weight > MAX_KEPT
    while batches and (batches[0][0] <= now - KEPT_MS or (many and memory.weight > MAX_KEPT * 9 // 10)):
        at, keys = batches.popleft()
        for key in keys:
            memory.weight -= _weight(memory.known.pop(key))
        if at > now - KEPT_MS:
            memory.forgotten_at = at


def set_forward(state: State, ms: int) -> None:
    """Shift the times after the clock was set forward, so all ages stay the same."""
    memory = state.pushed
    memory.batches = deque((min(at + ms, state.now), keys) for at, keys in memory.batches)
    memory.forgotten_at += ms if memory.forgotten_at else 0


def set_back(state: State, back: SetBack) -> None:
    """Correct the times after the clock was ahead."""
    memory = state.pushed
    memory.batches = deque((back.moment(at), keys) for at, keys in memory.batches)
    memory.forgotten_at = back.moment(memory.forgotten_at)


def _weight(answer: str | Pushed) -> int:
    return 1 if isinstance(answer, str) else 1 + len(answer.runs)


def _runs(ids: list[str]) -> list[tuple[str, int]]:
    """Compress ids into runs: most are created one after the other."""
    runs: list[tuple[str, int]] = []
    first, count, following = "", 0, ""
    for job_id in ids:
        if job_id == following:
            count += 1
        else:
            if count:
                runs.append((first, count))
            first, count = job_id, 1
        following = _following(first, count) if len(job_id) == 36 else ""
    if count:
        runs.append((first, count))
    return runs


def _following(first: str, count: int) -> str:
    try:
        return f"{first[:24]}{int(first[24:], 16) + count:012x}"
    except ValueError:  # an id chosen by a client
        return ""


def _ids(runs: list[tuple[str, int]]) -> list[str]:
    ids: list[str] = []
    for first, count in runs:
        ids.append(first)
        ids += [_following(first, place) for place in range(1, count)]
    return ids

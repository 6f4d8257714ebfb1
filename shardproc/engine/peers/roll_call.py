"""A shard that may have lost directory entries asks the others what they have.

After a power cut, or on files from a backup, a job may be stored at its home while the shard to which its id
points knows nothing of it.  So after an unclean shutdown a shard lets all others announce the ids that point
to it, page by page, alongside its other work.  Until a shard has announced everything, it is asked about ids
that are not found here.

Messages between two shards keep their order.  So what a page says about a job arrives before the news that
the job is gone, or that its id is free again.  An entry made from a page is as reliable as any other: a hint,
and its home has the last word.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import json

from bunqueue.protocol.commands import CommandError
from bunqueue.server.links import peers as messages

from .. import peer_calls
from ..memory.pointers import enter, pointer
from ..memory.recovery import GAP, IDS, KIND, Gap
from ..peer_calls import Steps
from ..registry import Apart, answers, recovers
from ..state import State

_decode_gap = json.Decoder(Gap).decode
PAGE = 500  # ids inspected per answer: about 5 ms


@recovers(KIND, Apart.DERIVED)
def recover(state: State, key: str, value: str) -> None:
    if key == IDS:
        state.recovery.unannounced = set(range(state.shards)) - {state.shard}
    elif key == GAP:
        state.recovery.stored_until = _decode_gap(value).since
    else:
        state.recovery.uncertain = True


def begin(state: State) -> None:
    """Let all shards announce what they have, if necessary."""
    for shard in sorted(state.recovery.unannounced):
        peer_calls.start(state, _listen(state, shard))


def _listen(state: State, shard: int) -> Steps:
    after: str | None = ""
    while after is not None:
        (page,) = yield [(shard, messages.Announce(after))]
        _take(state, shard, zip(page.ids, page.live, strict=True))
        after = page.after
    state.recovery.unannounced.discard(shard)
    if not state.recovery.unannounced:
        state.out.keep(KIND, IDS, None)


@answers(messages.Announce)
def announce(state: State, source: int, message: messages.Announce) -> messages.Announced:
    ids, after = state.archive.own_ids_after(message.after, PAGE)
    if not message.after:  # a prepared job may appear between two pages, in the part already sent
        ids += [*state.prepared, *state.moving]
    if after is None:  # and a job of a later page may have become a tombstone
        ids += state.tombstones
    theirs = [job_id for job_id in ids if pointer(state, job_id) == source]
    live = [any(job_id in here for here in (state.jobs, state.prepared, state.moving)) for job_id in theirs]
    return messages.Announced(theirs, live, after)


def _take(state: State, shard: int, found: Iterable[tuple[str, bool]]) -> None:
    """Record the jobs that a shard says it has; ``live`` marks live ones."""
    disputed: dict[int, list[tuple[str, bool]]] = {}
    for job_id, live in found:
        home = state.directory.get(job_id)
        if home == shard or _is_here(state, job_id):
            continue
        if home is not None:
            disputed.setdefault(home, []).append((job_id, live))
        elif live or not _is_archived(state, job_id):
            enter(state, job_id, shard)
    for home, jobs in disputed.items():
        peer_calls.start(state, _resolve(state, shard, home, jobs))


def _is_archived(state: State, job_id: str) -> bool:
    try:
        return state.archive.find(job_id) is not None
    except CommandError:  # it is, in a damaged part of the file
        return True


def _is_here(state: State, job_id: str) -> bool:
    here = state.jobs, state.prepared, state.moving
    return any(job_id in some for some in here) or state.granted[job_id] > 0


def _resolve(state: State, shard: int, home: int, jobs: list[tuple[str, bool]]) -> Steps:
    """Resolve jobs that two shards claim to have: ``shard``, and their ``home``.  The shard with a live one
    is right, otherwise their home, if it has any."""
    (had,) = yield [(home, messages.Have([job_id for job_id, _ in jobs]))]
    for (job_id, live), there in zip(jobs, had.jobs, strict=True):
        stale = there.word == messages.ABSENT or (live and there.word == messages.ENDED)
        if stale and state.directory.get(job_id) == home:
            enter(state, job_id, shard)


def unknown(state: State, ids: Iterable[str]) -> list[str]:
    """The ids that are unknown on this shard."""
    return [job_id for job_id in ids if job_id not in state.directory and not _is_here(state, job_id)]


def find(state: State, ids: Iterable[str]) -> Steps:
    """Look for jobs on the shards that have not announced everything.  Shards that have not started yet are
    left out: nobody can reach their jobs."""
    shards = [shard for shard in sorted(state.recovery.unannounced) if state.incarnations[shard]]
    wanted = unknown(state, ids) if shards else []
    if not wanted:
        return
    found = yield [(shard, messages.Have(wanted)) for shard in shards]
    for shard, had in zip(shards, found, strict=True):
        words = zip(wanted, (holding.word for holding in had.jobs), strict=True)
        _take(
            state,
            shard,
            [(job_id, word >= messages.HIDDEN) for job_id, word in words if word != messages.ABSENT],
        )

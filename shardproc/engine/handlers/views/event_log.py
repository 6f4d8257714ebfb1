"""GetEvents: the event log as it was written, for clients that follow all queues or come back after a while.

Cost: events that do not match are decoded as well, so one command reads SCAN events at most, slice by slice.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any, NamedTuple

from msgspec import Raw
from msgspec.msgpack import Encoder

from bunqueue.model.events import NAMES
from bunqueue.protocol.commands.events import EventsReply, GetEvents, LogPlace

from ...outbox import LogRow
from ...registry import handles
from ...scoped import allows
from ...slices import Steps, sliced
from ...state import Client, State

SCAN = 20_000  # events read per command
EVENTS_A_SLICE = 200
MAX_BYTES = 8 << 20  # per reply

_encode = Encoder().encode
_UNTOLD = ("seqs", "ids")  # fields of a purge: numbers that mean something in this shard only


class Wanted(NamedTuple):
    """The requested events; None: all."""

    queues: frozenset[str] | None
    types: frozenset[str] | None
    job_id: str | None
    client: Client


@handles(GetEvents)
@sliced
def get_events(state: State, client: Client, command: GetEvents) -> Steps:
    oldest, following = state.archive.event_bounds()
    after = _begin(state, command, following)
    missed = max(0, oldest - 1 - after)
    after = min(max(after, oldest - 1), following - 1)
    wanted = Wanted(_set(command.queues), _set(command.types), command.job_id, client)
    found: list[bytes] = []
    if command.limit:
        after = yield from _read(state, after, command.limit, wanted, found)
    place = LogPlace(state.shard, after, max(after, following - 1), missed)
    return EventsReply(events=_list(found), places=[place])


def _begin(state: State, command: GetEvents, following: int) -> int:
    """The number after which to read."""
    places = command.after
    if places is not None and state.shard < len(places):
        place = places[state.shard]
        return following - 1 if place < 0 else place
    if command.since is not None:
        return state.archive.event_since(int(command.since)) - 1
    return 0


def _set(names: list[str] | None) -> frozenset[str] | None:
    return None if names is None else frozenset(names)


def _read(
    state: State, after: int, limit: int, wanted: Wanted, found: list[bytes]
) -> Generator[None, None, int]:
    """Collect the events that match; returns the number up to which the log was read."""
    begin, size = after, 0
    name_of = _names(state)
    while rows := _some(state.archive.event_rows(after), after):
        for row in rows:
            for seq, entry in enumerate(row.entries, row.first):
                if seq <= after:
                    continue
                if len(found) >= limit or size > MAX_BYTES:
                    return after
                after = seq
                event = entry and _event(state.shard, seq, row, entry, wanted, name_of)
                if event:
                    found.append(event)
                    size += len(event)
                if after % EVENTS_A_SLICE == 0:
                    yield
        if after - begin >= SCAN:
            break
    return after


def _some(rows: Iterator[LogRow], after: int) -> list[LogRow]:
    """The first rows, enough for one slice of events after that number, or one row more.  The log is not kept
    open between slices."""
    some: list[LogRow] = []
    for row in rows:
        some.append(row)
        if row.first + len(row.entries) > after + EVENTS_A_SLICE:
            break
    return some


def _event(
    shard: int, seq: int, row: LogRow, entry: list[Any], wanted: Wanted, name_of: Callable[[int], str]
) -> bytes | None:
    """An entry as sent to clients; None if it does not match."""
    number, queue_id, job_id, *more = entry
    if wanted.job_id is not None and job_id != wanted.job_id:
        return None
    kind = NAMES[number] if number < len(NAMES) else "unknown"  # written by a newer version
    if wanted.types is not None and kind not in wanted.types:
        return None
    fields: dict[str, Any] = {name: more[0][name] for name in more[0] if name not in _UNTOLD} if more else {}
    queue = fields.pop("queue", None) or name_of(queue_id)
    if wanted.queues is not None and queue not in wanted.queues:
        return None
    if not allows(wanted.client, queue):
        return None
    head = {"eventType": kind, "queue": queue, "jobId": job_id, "timestamp": float(row.at)}
    return _encode({**head, **fields, "shard": shard, "seq": seq})


def _names(state: State) -> Callable[[int], str]:
    """A function that returns the name of a queue, or "" for a queue that is no longer known."""
    names = state.queue_names

    def name_of(queue_id: int) -> str:
        name = names.get(queue_id)
        if name is None:
            names.update((queue.id, queue.name) for queue in state.queues.values())
            name = names.setdefault(queue_id, "")
        return name

    return name_of


def _list(items: list[bytes]) -> Raw:
    """Join encoded values into one list."""
    return Raw(b"\xdd" + len(items).to_bytes(4, "big") + b"".join(items))

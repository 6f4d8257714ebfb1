"""The event log of a shard, unpacked into columns: each of its rows has up to a thousand events.

Event numbers increase with the commits and are never reused, so a reader has to remember only "after number
N".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from msgpack import Unpacker
from msgspec import Struct
from msgspec.msgpack import Decoder

from bunqueue.model.events import NAMES, OBLITERATED
from bunqueue.model.names import SEPARATOR, namespace_of
from bunqueue.server.folder.shard_file import Row, ShardFile
from bunqueue.server.folder.shard_values import REASON, to_json

from .arrow import array_of, type_of
from .malformed import checked, is_of_a_value
from .tables import NAMESPACE, TABLES

UNKNOWN = "unknown"  # a kind written by a newer version
COLUMNS = {column.name: column for column in TABLES["events"].columns}
STORED = tuple(column.name for column in TABLES["events"].columns if column.sql)
ROWS_AT_ONCE = 32  # of the log

_KINDS = pa.array((*NAMES, UNKNOWN))
_NAMESPACE = f"^(?P<{NAMESPACE}>[^{SEPARATOR}]+){SEPARATOR}"
_NAMED = b"\xa5queue"  # the key of the field with the queue's name, as MessagePack

_ROWS = """
select first_seq, at, payload, count from events
where first_seq >= (select coalesce(max(first_seq), 0) from events where first_seq <= ?) and first_seq <= ?
order by first_seq
"""


class _Failure(Struct, gc=False):
    """The fields of an event that are columns; all others are skipped."""

    error: str | None = None
    terminal: bool | None = None


class _Event(Struct, array_like=True, gc=False):
    """An event, as it is stored."""

    kind: int
    queue: int
    job: str
    fields: _Failure | None = None


class _WholeEvent(Struct, array_like=True, gc=False):
    """The same with all of its fields."""

    kind: int
    queue: int
    job: str
    fields: dict[str, Any] | None = None


_decode: Callable[[bytes], list[Any]] = Decoder(list[_Event | None]).decode  # null: deleted on request
_decode_whole: Callable[[bytes], list[Any]] = Decoder(list[_WholeEvent | None]).decode
_kind, _queue, _job, _fields = map(attrgetter, ("kind", "queue", "job", "fields"))


class Bounds(NamedTuple):
    """The numbers of the oldest event that is kept and of the newest one. For an empty log, 1 and 0."""

    first: int
    last: int


def bounds(file: ShardFile) -> Bounds:
    """The range of event numbers in the log."""
    if file.is_empty:
        return Bounds(1, 0)
    first = file.one("select first_seq from events order by first_seq limit 1")
    last = file.one("select first_seq + count - 1 from events order by first_seq desc limit 1")
    return Bounds(first[0], last[0]) if first and last else Bounds(1, 0)


def oldest(file: ShardFile) -> tuple[int, int] | None:
    """The number and time (epoch ms) of the oldest event that is kept, or None if there are no events."""
    if file.is_empty:
        return None
    found = file.one("select first_seq, at from events order by first_seq limit 1")
    return None if found is None else (found[0], found[1])


def first_since(file: ShardFile, at: int) -> int:
    """The number of the first event at ``at`` (epoch ms) or later. Without such an event, the number of the
    next one."""
    found = None if file.is_empty else file.one("select min(first_seq) from events where at >= ?", at)
    if found is None or found[0] is None:
        return bounds(file).last + 1
    return int(found[0])


def time_of(file: ShardFile, seq: int) -> int:
    """When an event that is kept happened (epoch ms)."""
    found = file.one("select at from events where first_seq <= ? order by first_seq desc limit 1", seq)
    return 0 if found is None else int(found[0])


Arrays = dict[str, pa.Array]


class Wanted(NamedTuple):
    """The events with numbers above ``after``, up to ``until``, as arrays of these ``columns``.  With
    ``kinds``, only events of these kinds: the others cost next to nothing."""

    after: int
    until: int
    columns: Collection[str]
    kinds: Collection[int] | None = None


def events(file: ShardFile, wanted: Wanted) -> Iterator[Arrays]:
    """The wanted events in order.  The column CORRUPT is among the arrays when each value was checked, as one
    could not be decoded."""
    if file.is_empty:
        return
    names = _Names(file)
    for rows in file.chunks(_ROWS, (wanted.after + 1, wanted.until), ROWS_AT_ONCE):
        try:
            found = _whole_columns(rows, wanted, names)
        except Exception as error:
            if not is_of_a_value(error):
                raise
            found = _checked_columns(rows, wanted, names)
        if found is not None:
            yield found


def _whole_columns(rows: Sequence[Row], wanted: Wanted, names: _Names) -> Arrays | None:
    after, until, columns, kinds = wanted
    decode = _decode_whole if "fields" in columns else _decode
    numbers: list[int] = []
    times: list[int] = []
    found: list[Any] = []
    for first, at, payload, count in rows:
        entries = decode(payload)
        if kinds is None and after < first and first + count - 1 <= until and all(entries):
            numbers += range(first, first + len(entries))
            found += entries
            times += [at] * len(entries)
            continue
        for seq, entry in enumerate(entries, first):
            if entry is not None and after < seq <= until and (kinds is None or entry.kind in kinds):
                numbers.append(seq)
                found.append(entry)
                times.append(at)
    if not found:
        return None

    @cache
    def queues() -> pa.Array:
        return pa.array(names.of_all(list(map(_queue, found)), numbers, times), pa.string())

    make: dict[str, Callable[[], pa.Array]] = {
        "seq": lambda: array_of(COLUMNS["seq"], numbers),
        "at": lambda: array_of(COLUMNS["at"], times),
        "kind": lambda: _KINDS.take(pc.min_element_wise(pa.array(map(_kind, found), pa.int64()), len(NAMES))),
        "queue": queues,
        NAMESPACE: lambda: pc.struct_field(pc.extract_regex(queues(), _NAMESPACE), NAMESPACE),
        "job_id": lambda: _nullified(pa.array(map(_job, found), pa.string())),
    }
    arrays = {name: make[name]() for name in columns if name in make}
    return arrays | _of_fields(list(map(_fields, found)), columns)


def _of_fields(fields: Sequence[Any], columns: Collection[str]) -> Arrays:
    """The columns that come from fields, which few events have."""
    of: dict[str, Callable[[Any], Any]] = {
        "error": lambda each: each.get("error") if isinstance(each, dict) else each.error,
        "terminal": lambda each: each.get("terminal") if isinstance(each, dict) else each.terminal,
        "fields": to_json,
    }
    with_some = [(place, each) for place, each in enumerate(fields) if each is not None]
    arrays = {}
    for name in of.keys() & set(columns):
        values = [None] * len(fields)
        for place, each in with_some:
            values[place] = of[name](each)
        arrays[name] = pa.array(values, type_of(COLUMNS[name]))
    return arrays


def _nullified(texts: pa.Array) -> pa.Array:
    return pc.if_else(pc.equal(texts, ""), None, texts)


def _checked_columns(rows: Sequence[Row], wanted: Wanted, names: _Names) -> Arrays | None:
    """The same, with each value checked."""
    after, until, columns, kinds = wanted
    asked = [name for name in STORED if name in columns]
    found = []
    for first, at, payload, count in rows:
        for seq, entry in enumerate(_entries(payload, count), first):
            if entry is None or not after < seq <= until:
                continue
            if kinds is None or not entry or entry[0] in kinds:
                event = _event(seq, at, entry, names)
                found.append([event[name] for name in asked])
    return checked([COLUMNS[name] for name in asked], found) if found else None


def _entries(payload: bytes, count: int) -> list[list[Any] | None]:
    """The events of a row of the log, as far as they can be told apart; an empty list for each other one.

    Texts that are no UTF-8 keep their bytes as surrogates.
    """
    unpacker = Unpacker(strict_map_key=False, unicode_errors="surrogateescape")
    unpacker.feed(payload)
    found: list[list[Any] | None] = []
    with suppress(Exception):
        for _ in range(unpacker.read_array_header()):
            entry = unpacker.unpack()
            found.append(entry if entry is None or isinstance(entry, list) else [])
    return [*found, *([] for _ in range(count - len(found)))]


def _event(seq: int, at: int, entry: list[Any], names: _Names) -> dict[str, Any]:
    """An event with a REASON instead of each part that cannot be decoded."""
    kind, queue_id, job_id, fields = (entry + [None] * 4)[:4]
    given = fields if isinstance(fields, dict) else {}
    queue = names.of(queue_id, seq, at) if _is_number(queue_id) else _not(queue_id, "the queue")
    return {
        "seq": seq,
        "at": at,
        "kind": _KINDS[min(kind, len(NAMES))].as_py() if _is_number(kind) else _not(kind, "the kind"),
        "queue": queue,
        NAMESPACE: namespace_of(queue) or None if isinstance(queue, str) else queue,
        "job_id": _not(job_id, "the job") if job_id is None else job_id or None,
        "error": given.get("error"),
        "terminal": given.get("terminal"),
        "fields": None if fields is None else _json(fields),
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _not(value: Any, what: str) -> bytes:
    return REASON + f"{what} of an event cannot be {value!r}"[:90].encode(errors="replace")


def _json(fields: Any) -> str | bytes:
    try:
        return to_json(fields)
    except (TypeError, ValueError) as error:
        return REASON + f"{type(error).__name__}: {error}".encode(errors="replace")


class _Names:
    """Names of queues, including obliterated ones: the last event of such a queue has the name.

    The number of an obliterated queue may have passed to another queue, which is younger than the event.
    """

    def __init__(self, file: ShardFile) -> None:
        self._file = file
        self._known: dict[int, tuple[str, int]] = {}  # name and creation time, epoch ms
        for rows in file.chunks("select id, name, created_at from queues"):
            self._known.update((queue_id, (name, made)) for queue_id, name, made in rows)
        self._gone: dict[int, list[tuple[int, str]]] | None = None  # number of the event, name

    def of_all(self, queues: Sequence[int], numbers: Sequence[int], times: Sequence[int]) -> list[str | None]:
        """The queues of these events."""
        begin = min(times)
        names = {number: name for number in set(queues) if (name := self._since(number, begin)) is not None}
        try:
            return list(map(names.__getitem__, queues))
        except KeyError:  # one of them is gone, or younger than some event
            return list(map(self.of, queues, numbers, times))

    def _since(self, queue_id: int, at: int) -> str | None:
        """The name of a queue that has had this number since ``at`` or longer."""
        name, made = self._known.get(queue_id, (None, at + 1))
        return name if made <= at else None

    def of(self, queue_id: int, seq: int, at: int) -> str | None:
        """The queue of the event ``seq``, which happened at ``at``."""
        name, made = self._known.get(queue_id, (None, at + 1))
        if made <= at:
            return name
        if self._gone is None:
            self._gone = self._obliterated()
        ends = (name for end, name in self._gone.get(queue_id, ()) if end >= seq)
        return next(ends, name)

    def _obliterated(self) -> dict[int, list[tuple[int, str]]]:
        found: dict[int, list[tuple[int, str]]] = {}
        sql = "select first_seq, payload, count from events order by first_seq"
        for rows in self._file.chunks(sql, size=ROWS_AT_ONCE):
            for first, payload, count in rows:
                if _NAMED not in payload:
                    continue
                for seq, entry in enumerate(_entries(payload, count), first):
                    if entry and entry[0] == OBLITERATED:
                        found.setdefault(entry[1], []).append((seq, entry[3]["queue"]))
        return found

"""Which encryption keys stored payloads need. Encoded payloads contain the names of their keys, as text for
people and as a field; see docs/codecs.md. Encrypted content itself is not inspected."""

from __future__ import annotations

import base64
import binascii
import json
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from msgspec.msgpack import Decoder, Encoder

from bunqueue.model.names import parts_of
from bunqueue.protocol.commands.keys import What
from bunqueue.protocol.encoded import MARK
from shardproc.engine.stored_keys import StoredKey

_MARK = MARK.encode()
_decode = Decoder().decode
_encode = Encoder().encode
_IN_WORDS = re.compile(rb"encrypted with key ([A-Za-z0-9._-]{1,64}) \(AES-GCM\)")
_AS_FIELD = re.compile(rb"\xa3key(?:[\xa1-\xbf]|\xd9[\x01-\x40])([A-Za-z0-9._-]{1,64})\xa5nonce")
MAX_SLICE = 4 << 20  # bytes of data and results that are read in one step, which may end with one more job
_NEXT = """
select jobs.seq, length(jobs.data) + coalesce(length(completed.result), length(large_outcomes.result), 0)
from jobs left join completed on completed.queue_id = jobs.queue_id and completed.seq = jobs.seq
left join large_outcomes on large_outcomes.seq = jobs.seq
where jobs.seq > ? order by jobs.seq limit ?
"""
_OF_JOBS: dict[str, What] = {
    "jobs.data": "data",
    "jobs.extra": "on-dead",
    "jobs.run": "workflow",
    "jobs.error": "error",
    "completed.result": "result",
    "completed.progress_message": "log",
    "locks.progress_message": "log",
    "large_outcomes.result": "result",
    "dead_letters.error": "error",
    "attempts.error": "error",
    "attempts.stack": "error",
    "job_logs.message": "log",
    "steps.result": "step",
    "steps.cursor": "step",
    "steps.input": "step",
    "steps.error": "step",
    "signals.data": "signal",
}
"""Columns with content from clients, and its kind."""
_JOIN = {"completed": "completed.queue_id = jobs.queue_id and completed.seq = jobs.seq"}


def _query(column: str) -> str:
    table = column.partition(".")[0]
    join = "" if table == "jobs" else f"join {table} on {_JOIN.get(table, f'{table}.seq = jobs.seq')}"
    return f"""select jobs.queue_id, jobs.id, cast({column} as blob) from jobs {join}
    where jobs.seq > ? and jobs.seq <= ? and instr(cast({column} as blob), ?)"""


_QUERIES = [(column.partition(".")[0], what, _query(column)) for column, what in _OF_JOBS.items()]


class KeyReads:
    """The keys needed by one file."""

    def __init__(
        self,
        db: sqlite3.Connection,
        see: Callable[[], None],
        guard: Callable[[str], AbstractContextManager[None]],
    ) -> None:
        """``see`` writes what the batch has collected so far; ``guard`` is around reads of a table."""
        self._db, self._see, self._guard = db, see, guard

    def of_jobs(self, after: int, limit: int) -> tuple[list[StoredKey], int | None]:
        """See `StoredKeys`."""
        self._see()
        last, size = None, 0
        with self._guard("jobs"):
            for last, length in self._db.execute(_NEXT, (after, limit)):  # noqa: B007  # is used behind it
                size += length
                if size > MAX_SLICE:
                    break
        if last is None:
            return [], None
        found = []
        for table, what, query in _QUERIES:
            with self._guard(table):
                for queue, job_id, value in self._db.execute(query, (after, last, _MARK)):
                    values = [(what, value)] if what != "on-dead" else _in_extra(value)
                    found += [
                        StoredKey(key, kind, job_id, queue) for kind, each in values for key in keys_in(each)
                    ]
        return found, last

    def of_others(self) -> list[StoredKey]:
        """Keys of what belongs to no job: schedules, broadcasts, messages between shards."""
        self._see()
        found = []
        with self._guard("broadcasts"):
            query = "select name, data from broadcasts where instr(data, ?)"
            for name, data in self._db.execute(query, (_MARK,)):
                found += [StoredKey(key, "broadcast", name) for key in keys_in(data)]
        with self._guard("records"):
            for kind, name, value in self._db.execute("select kind, key, value from records"):
                record = json.loads(value)
                if kind == "cron":
                    found += [StoredKey(key, "schedule", name, record["queue"]) for key in _keys_in(record)]
                elif kind == "error-group":
                    example = (record.get("example") or {}).get("job_id", "")
                    queue = parts_of(name)[0]
                    found += [StoredKey(key, "error", example, queue) for key in _keys_in(record)]
                else:
                    found += [StoredKey(key, "other", name) for key in _keys_in(record)]
        return found


def _in_extra(value: bytes) -> list[tuple[What, bytes]]:
    """Content among the rarer fields of a job: the job that follows its failure, and a traceback."""
    extra = _decode(value)
    on_dead: bytes = extra.pop("onDead", None) or b""
    return [("on-dead", on_dead), ("error", _encode(extra))]


def keys_in(value: bytes) -> set[str]:
    """The names of the keys needed to decode a payload, or a text."""
    if _MARK not in value:
        return set()
    return {name.decode() for pattern in (_IN_WORDS, _AS_FIELD) for name in pattern.findall(value)}


def _keys_in(record: Any) -> set[str]:
    """The same for a record in JSON, where bytes are Base64."""
    found: set[str] = set()
    for text in _texts(record):
        found |= keys_in(text.encode())
        try:
            found |= keys_in(base64.b64decode(text, validate=True))
        except (binascii.Error, ValueError):
            continue
    return found


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)

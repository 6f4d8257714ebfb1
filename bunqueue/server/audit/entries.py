"""Entries of the trail, and the chain that shows whether one was changed or cut out.

Pure. Each line is a JSON object whose last field is a hash over that of the line before and the line itself.
Whoever can write the folder can also make a new chain: ship the lines elsewhere if that matters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import fields

from bunqueue.model.addresses import without_secrets

HIDDEN = frozenset({"cmd", "reqId", "data", "secret", "token", "tokens", "where", "cursor"})
"""Fields that no entry shows: payloads, secrets, and what says nothing to people."""
MAX_TEXT = 200  # characters of a shown value
MAX_FIELDS = 16
START = "0" * 32  # the hash before the first line
CONTINUES = "TrailContinues"
"""The first line of each file but the first, and a line whenever old files are removed.  ``after`` is the
hash of the line before, and ``removed`` the number of the newest file that was removed, by age or size."""
LOST = "EntriesLost"
"""So many entries could not be written before this one."""


class Entry(Struct, omit_defaults=True, rename="camel", kw_only=True):
    """Who did what. ``at`` is in epoch ms."""

    at: int
    who: str = ""  # the identity; "" on a server without identities
    namespace: str = ""  # what the identity lives in: the names in ``on`` are those of this namespace
    address: str = ""
    over: str = ""  # tcp, http or ws
    what: str  # the command
    on: dict[str, Any] = {}
    count: int | UnsetType = UNSET  # jobs, or attempts
    outcome: str  # "ok", or the code of the refusal
    request: str = ""  # the id of the request, as its client gave it; over HTTP else a made one


def fields_of(command: Struct) -> dict[str, Any]:
    """The fields of a command by their names on the wire, those with values."""
    return {field.encode_name: getattr(command, field.name) for field in fields(command)}


def shown(given: Mapping[str, Any]) -> dict[str, Any]:
    """What an entry shows of a command's fields."""
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name in HIDDEN or value is None or value is UNSET or isinstance(value, Raw | bytes):
            continue
        if isinstance(value, str):
            found[name] = (without_secrets(value) if name == "url" else value)[:MAX_TEXT]
        elif isinstance(value, bool | int | float):
            found[name] = value
        elif isinstance(value, list | tuple):
            found[name] = f"{len(value)} entries"
        elif len(text := msgspec.json.encode(value, enc_hook=str).decode()) <= MAX_TEXT:
            found[name] = msgspec.json.decode(text)
        if len(found) == MAX_FIELDS:
            break
    return found


class _Counts(Struct, rename="camel"):
    count: int | None = None
    changed: int | None = None


class Answer(Struct, rename="camel"):
    """What an entry needs of a reply."""

    ok: bool = False
    req_id: Raw | UnsetType = UNSET
    code: str = ""
    count: int | None = None
    data: Raw = Raw()


decode_answer = msgspec.msgpack.Decoder(Answer).decode
_decode_counts = msgspec.msgpack.Decoder(_Counts).decode


def count_in(answer: Answer) -> int | UnsetType:
    """How many jobs a command changed, if its reply says so."""
    if answer.count is not None:
        return answer.count
    try:
        counts = _decode_counts(answer.data)
    except (msgspec.MsgspecError, ValueError):
        return UNSET
    found = counts.count if counts.count is not None else counts.changed
    return UNSET if found is None else found


def line_of(entry: Entry, before: str) -> tuple[bytes, str]:
    """The line of an entry after the one with this hash, and its own hash."""
    body = msgspec.json.encode(entry)
    own = _hash(before, body)
    return body[:-1] + b',"hash":"' + own.encode() + b'"}\n', own


def _hash(before: str, body: bytes) -> str:
    return blake2b(before.encode() + body, digest_size=16).hexdigest()


def hash_in(line: bytes) -> str:
    """The hash of a line."""
    return line.rpartition(b',"hash":"')[2][:-3].decode("ascii", "replace")


def first_broken(lines: Iterable[bytes], before: str) -> tuple[int | None, str]:
    """The number (from 1) of the first line that does not follow from the one before it, None if all do; and
    the hash of the last one. ``before``: that of the line before the first one."""
    last = before
    for number, line in enumerate(lines, 1):
        body, own = line.rpartition(b',"hash":"')[0], hash_in(line)
        if not line.endswith(b'"}\n') or not body or _hash(last, body + b"}") != own:
            return number, last
        last = own
    return None, last

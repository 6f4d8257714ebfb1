"""Where a search goes on: the opaque text between one page and the next.

It belongs to one search on one server, and says so: with another search, or after the number of shards has
changed, it is refused.  Anybody can make one, so its numbers are not to be trusted.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from typing import Annotated, Any

from msgspec import UNSET, Meta, MsgspecError, Struct
from msgspec.msgpack import Decoder, Encoder
from msgspec.structs import fields

from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands.base import MAX_SAFE, CommandError
from bunqueue.protocol.commands.find import Wanted

VERSION = 1
BEGIN = -1  # a shard that has not been looked at
DONE = -2  # one with nothing more to be found

_NO_PART = frozenset({"cursor", "limit", "scan", "explain", "data_limit", "dry_run", "req_id"})
_MOVING = frozenset({"created_after", "created_before", "finished_after", "finished_before"})
"""Times that a client may count from the moment of each page."""


class Cursor(Struct, array_like=True):
    """``places``: for each shard the number of the last job looked at, BEGIN or DONE.  ``until``: larger
    numbers are not meant, on the shard whose turn it is; 0: that is not known yet."""

    version: int
    digest: int  # of the search
    at: Annotated[int, Meta(ge=0, le=MAX_SAFE)]  # when it began, epoch ms: what "2h ago" counts from
    places: list[int]
    until: Annotated[int, Meta(ge=0, le=MAX_SAFE)] = 0

    @property
    def turn(self) -> int | None:
        """The first shard that is not done."""
        return next((shard for shard, place in enumerate(self.places) if place != DONE), None)


_encode = Encoder(order="sorted").encode
_decode = Decoder(Cursor).decode


def begin(wanted: Wanted, shards: int, now: int) -> Cursor:
    """The cursor before the first page."""
    return Cursor(VERSION, digest_of(wanted), now, [BEGIN] * shards)


def of(wanted: Wanted, given: str | None, shards: int, now: int) -> Cursor:
    """The cursor that a command came with, or the first.  CommandError if it belongs to another search."""
    if given is None:
        return begin(wanted, shards, now)
    cursor = read(given)
    if cursor.digest != digest_of(wanted):
        raise _refused("belongs to another search: leave it out to begin from the start")
    if len(cursor.places) != shards:
        raise _refused("is from before the number of shards changed: leave it out to begin from the start")
    return cursor


def read(text: str) -> Cursor:
    """A cursor; CommandError for any other text."""
    try:
        found = _decode(base64.urlsafe_b64decode(text.encode() + b"=" * (-len(text) % 4)))
    except (MsgspecError, binascii.Error, ValueError):
        raise _refused("was not given by a search") from None
    if found.version != VERSION or not found.places:
        raise _refused("is of another version of the server: leave it out to begin from the start")
    if min(found.places) < DONE or max(found.places) > MAX_SAFE:
        raise _refused("was not given by a search")
    return found


def written(cursor: Cursor) -> str | None:
    """The text of a cursor; None at the end."""
    return None if cursor.turn is None else encoded(cursor)


def encoded(cursor: Cursor) -> str:
    """The text of a cursor, also at the end."""
    return base64.urlsafe_b64encode(_encode(cursor)).decode().rstrip("=")


def means_all(wanted: Wanted) -> bool:
    """Whether it names neither a queue nor any condition."""
    given = [getattr(wanted, field.name) for field in fields(Wanted) if field.name != "req_id"]
    return all(value in (None, [], {}) or (isinstance(value, str) and not value.strip()) for value in given)


def digest_of(wanted: Wanted) -> int:
    """What tells a search from another one."""
    meant: dict[str, Any] = {}
    for field in fields(wanted):
        value = getattr(wanted, field.name)
        if field.name not in _NO_PART | _MOVING and value is not None and value is not UNSET:
            meant[field.name] = value
    return zlib.crc32(_encode(meant))


def _refused(problem: str) -> CommandError:
    return CommandError(f"cursor {problem}", Code.INVALID_FIELD, field="cursor")

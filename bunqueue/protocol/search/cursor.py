"""The cursor of a search: the opaque text that leads from one page to the next.

A cursor belongs to one search on one server and contains a check for that: it is refused with another search,
or after the number of shards has changed.  Any client can make one, so its numbers cannot be trusted.
"""

import base64
import binascii
import zlib
from typing import Annotated, Any

from msgspec import UNSET, Meta, MsgspecError, Struct
from msgspec.msgpack import Encoder
from msgspec.structs import fields

from bunqueue.model.decoders import decoder
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands.base import MAX_SAFE, CommandError
from bunqueue.protocol.commands.find import Wanted

VERSION = 1
BEGIN = -1  # a shard that has not been searched yet
DONE = -2  # a shard without further results

_NO_PART = frozenset({"cursor", "limit", "scan", "explain", "data_limit", "dry_run", "req_id"})
_MOVING = frozenset({"created_after", "created_before", "finished_after", "finished_before"})
"""Times that a client may compute anew for each page, relative to the present."""


class Cursor(Struct, array_like=True):
    """``places``: for each shard the number of the last job examined, or BEGIN, or DONE.  ``until``: on the
    current shard, jobs with larger numbers are excluded; 0: not known yet."""

    version: int
    digest: int  # of the search
    at: Annotated[int, Meta(ge=0, le=MAX_SAFE)]  # when the search began, epoch ms: the base of "2h ago"
    places: list[int]
    until: Annotated[int, Meta(ge=0, le=MAX_SAFE)] = 0

    @property
    def turn(self) -> int | None:
        """The first shard that is not done."""
        return next((shard for shard, place in enumerate(self.places) if place != DONE), None)


_encode = Encoder(order="sorted").encode
_decode = decoder(Cursor).decode


def begin(wanted: Wanted, shards: int, now: int) -> Cursor:
    """The cursor before the first page."""
    return Cursor(VERSION, digest_of(wanted), now, [BEGIN] * shards)


def of(wanted: Wanted, given: str | None, shards: int, now: int) -> Cursor:
    """The cursor in a command, or the first one.  CommandError if it belongs to another search."""
    if given is None:
        return begin(wanted, shards, now)
    cursor = read(given)
    if cursor.digest != digest_of(wanted):
        raise _refused("belongs to another search: leave it out to begin from the start")
    if len(cursor.places) != shards:
        raise _refused("is from before the number of shards changed: leave it out to begin from the start")
    return cursor


def read(text: str) -> Cursor:
    """Parse a cursor; CommandError for any other text."""
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
    """The text of a cursor, even at the end."""
    return base64.urlsafe_b64encode(_encode(cursor)).decode().rstrip("=")


def means_all(wanted: Wanted) -> bool:
    """Whether the search has neither a queue nor any condition."""
    given = [getattr(wanted, field.name) for field in fields(Wanted) if field.name != "req_id"]
    return all(value in (None, [], {}) or (isinstance(value, str) and not value.strip()) for value in given)


def digest_of(wanted: Wanted) -> int:
    """A number that distinguishes a search from others."""
    meant: dict[str, Any] = {}
    for field in fields(wanted):
        value = getattr(wanted, field.name)
        if field.name not in _NO_PART | _MOVING and value is not None and value is not UNSET:
            meant[field.name] = value
    return zlib.crc32(_encode(meant))


def _refused(problem: str) -> CommandError:
    return CommandError(f"cursor {problem}", Code.INVALID_FIELD, field="cursor")

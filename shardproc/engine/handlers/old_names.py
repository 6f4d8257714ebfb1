"""Names of jobs as older clients of version 3 push them: inside the data."""

from __future__ import annotations

from msgspec import Raw
from msgspec.msgpack import Decoder, Encoder

from bunqueue.protocol.commands.base import JobName
from bunqueue.protocol.commands.core import JobFields, PlainFields, PlainPush, Push
from bunqueue.protocol.heads import parts
from bunqueue.protocol.lenient import DECODE_ERRORS

_decode_map, _decode_name = Decoder(dict[str, Raw]).decode, Decoder(JobName).decode
_encode = Encoder().encode
_NAME = _encode("name")
MAX_FIELDS = 10_000  # larger data is not searched for a name: it is a table, not a job of an old client


def lift_name(fields: JobFields | PlainFields | PlainPush | Push, data: bytes) -> bytes:
    """`without_name` for a push: sets the name and returns the rest of the data."""
    if fields.name is not None or _NAME not in data:
        return data
    fields.name, data = without_name(data)
    fields.data = Raw(data)
    return data


def without_name(data: bytes) -> tuple[str | None, bytes]:
    """Take the name of a job out of its data; returns the name and the rest of the data."""
    if _NAME not in data or parts(data) > 2 * MAX_FIELDS:
        return None, data
    try:
        fields = _decode_map(data)
        name = _decode_name(fields.pop("name"))
    except (KeyError, *DECODE_ERRORS):  # no map, no name, an invalid one, or data nested too deeply
        return None, data
    return name, _encode(fields)

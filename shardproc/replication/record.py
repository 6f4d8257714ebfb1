"""A record of the log: the statements of one batch, as numbers and parameters.

On the wire an array of MessagePack: ``[format, schema, at, [[number, [parameters, ...]], ...]]``.
"""

from __future__ import annotations

from typing import Any

from msgspec import DecodeError, Struct, ValidationError
from msgspec.msgpack import Decoder, Encoder

FORMAT = 1

Parameters = Any  # of one row: a list, or a map of names for statements that name theirs
Change = tuple[int, list[Parameters]]  # a statement's number, and the rows that it was carried out for


class RecordTooNew(Exception):
    """The record was written by a newer version: upgrade this one first."""


class RecordDamaged(Exception):
    """What was read is no record."""


class Record(Struct, array_like=True, frozen=True):
    """``schema`` is that of the file when the batch was written: a reader whose file is older migrates it
    first.  ``at`` is the time of the batch, epoch ms, for people only."""

    format: int
    schema: int
    at: int
    changes: list[Change]


class _Version(Struct, array_like=True):
    format: int


encode = Encoder().encode
_decode = Decoder(Record).decode
_version = Decoder(_Version).decode


def decode(body: bytes, schema: int) -> Record:
    """Read a record with a program that knows schemas up to ``schema``."""
    try:
        written = _version(body).format
        if written > FORMAT:
            raise RecordTooNew(
                f"the log holds a record of format {written}, this version reads up to {FORMAT}: upgrade it"
            )
        record = _decode(body)
    except (DecodeError, ValidationError) as error:
        raise RecordDamaged(f"a record of the log cannot be read: {error}") from error
    if record.schema > schema:
        raise RecordTooNew(
            f"the log has a record for schema {record.schema}, this version knows up to {schema}: upgrade it"
        )
    return record

"""A record of the log: the statements of one batch, as numbers and parameters.

In the log it is an array of MessagePack: ``[format, schema, at, changes]``. The changes are ``[[number,
[parameters, ...]], ...]``: in format 1 as they are, in format 2 as bytes of that, compressed with zstd. Short
ones stay in format 1. Compression costs the shard less than half a microsecond a job. It saves several times
that at each node of the store, which writes a large value in pieces of 2 kB, each with an entry in an index.
"""

from __future__ import annotations

from typing import Any

from msgspec import DecodeError, Raw, Struct, ValidationError
from msgspec.msgpack import Decoder, Encoder
from zstandard import ZstdCompressor, ZstdDecompressor, ZstdError, frame_content_size

PLAIN, COMPRESSED = 1, 2
FORMAT = COMPRESSED  # the newest that this version reads
COMPRESSED_FROM = 1_000  # bytes of changes: shorter ones gain nothing
MAX_CHANGES = 1 << 30  # bytes: PostgreSQL stores no larger value, so a larger size means damage

Parameters = Any  # of one row: a list, or a map of names for statements with named parameters
Change = tuple[int, list[Parameters]]  # a statement's number, and the rows that it was carried out for


class RecordTooNew(Exception):
    """The record was written by a newer version: upgrade this one first."""


class RecordDamaged(Exception):
    """The bytes are not a valid record."""


class Record(Struct, array_like=True, frozen=True):
    """``schema`` is that of the file when the batch was written: a reader whose file is older migrates it
    first. ``at`` is the time of the batch, epoch ms, for people only."""

    format: int
    schema: int
    at: int
    changes: list[Change]


class _Written(Struct, array_like=True, frozen=True):
    """A record as it is in the log; ``changes`` depends on the format."""

    format: int
    schema: int
    at: int
    changes: Raw


class _Version(Struct, array_like=True):
    format: int


_encode = Encoder().encode
_version = Decoder(_Version).decode
_written = Decoder(_Written).decode
_changes = Decoder(list[Change]).decode
_bytes = Decoder(bytes).decode
_compress = ZstdCompressor(level=1, write_checksum=True).compress
_decompress = ZstdDecompressor().decompress


def encode(schema: int, at: int, changes: list[Change]) -> bytes:
    """The record of a batch; see `Record`."""
    body = _encode(changes)
    if len(body) < COMPRESSED_FROM:
        return _encode((PLAIN, schema, at, Raw(body)))
    return _encode((COMPRESSED, schema, at, _compress(body)))


def decode(body: bytes, schema: int) -> Record:
    """Read a record with a program that knows schemas up to ``schema``."""
    try:
        if (version := _version(body).format) > FORMAT:
            raise RecordTooNew(
                f"the log holds a record of format {version}, this version reads up to {FORMAT}: upgrade it"
            )
        written = _written(body)
        if written.schema > schema:
            raise RecordTooNew(
                f"the log has a record for schema {written.schema}, this version knows up to {schema}: "
                "upgrade it"
            )
        changes = bytes(written.changes) if version == PLAIN else _decompressed(_bytes(written.changes))
        return Record(version, written.schema, written.at, _changes(changes))
    except (DecodeError, ValidationError, ZstdError) as error:
        raise RecordDamaged(f"a record of the log cannot be read: {error}") from error


def _decompressed(packed: bytes) -> bytes:
    if not 0 <= (size := frame_content_size(packed)) <= MAX_CHANGES:
        raise ZstdError(f"its changes say that they are {size} bytes, the bound is {MAX_CHANGES}")
    return _decompress(packed)

"""Encodes a handler's result. The handler has run, so no error here makes it run again."""

from __future__ import annotations

from typing import Any

from msgspec import Raw
from msgspec.msgpack import Decoder

from bunqueue.client.conversion.encoding import STORABLE, encode
from bunqueue.client.conversion.unencodable import why
from bunqueue.errors import ResultError
from bunqueue.protocol.framing import MAX_FRAME
from bunqueue.protocol.lenient import DECODE_ERRORS

_decode = Decoder().decode


def encode_result(value: object, what: str = "the result of the handler") -> Raw:
    """A result as MessagePack. Raises ResultError, beginning with `what`: the job fails for good at once."""
    try:
        encoded = encode(value)
    except BaseException as error:  # conversions of foreign types may raise anything
        wrong = why(value, error)
        raise ResultError(
            f"{what} cannot be encoded: {wrong}. The handler has run, so the job is not tried again; "
            f"return {STORABLE}",
            field=f"result{wrong.path}",
            value=wrong.kind,
            bound=STORABLE,
        ) from error
    if len(encoded) > MAX_FRAME:
        raise ResultError(
            f"{what} has {len(encoded)} bytes, at most {MAX_FRAME} can be sent. The handler has run, so the "
            f"job is not tried again; keep large data elsewhere, and return its place",
            field="result",
            value=len(encoded),
            bound=MAX_FRAME,
        )
    return Raw(encoded)


def decode_result(encoded: Raw) -> Any:
    """Decode a result that `encode_result` made elsewhere. Raises ResultError."""
    try:
        return _decode(encoded)
    except (*DECODE_ERRORS, TypeError) as error:  # for example a map whose keys are lists
        raise ResultError(
            f"the result of the handler cannot be read back ({error}). The handler has run, so the job is "
            f"not tried again",
            field="result",
        ) from None

"""What a handler gave back, as it is sent. The handler has run, so no mistake in here makes it run again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Raw
from msgspec.msgpack import Decoder

from bunqueue.client.conversion.encoding import STORABLE, encode
from bunqueue.client.conversion.raised import text_of
from bunqueue.errors import ResultError
from bunqueue.protocol.framing import MAX_FRAME
from bunqueue.protocol.lenient import DECODE_ERRORS

MAX_STEPS = 100  # of the way to a wrong value: an object that contains itself has no end

_decode = Decoder().decode


def encode_result(value: object, what: str = "the result of the handler") -> Raw:
    """A result as MessagePack. Raises ResultError, which begins with `what`: the job dies at once."""
    try:
        encoded = encode(value)
    except BaseException as error:  # conversions of foreign types may raise anything
        path, wrong = _found(value)
        where = f" at {path}" if path else ""
        raise ResultError(
            f"{what} cannot be encoded: {type(wrong).__name__}{where} ({text_of(error)}). The "
            f"handler has run, so the job is not tried again; return dicts, lists, text, numbers, bytes, "
            f"dates, dataclasses, attrs classes, Pydantic models or msgspec structs",
            field=f"result{path}",
            value=type(wrong).__name__,
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
    """The value of a result that `encode_result` made elsewhere. Raises ResultError."""
    try:
        return _decode(encoded)
    except (*DECODE_ERRORS, TypeError) as error:  # a map whose keys are lists, say
        raise ResultError(
            f"the result of the handler cannot be read back ({error}). The handler has run, so the job is "
            f"not tried again",
            field="result",
        ) from None


def _found(value: object) -> tuple[str, object]:
    try:
        return _find(value)
    except BaseException:  # looking runs code of foreign types as well
        return "", value


def _find(value: object) -> tuple[str, object]:
    """The innermost value that cannot be encoded, and the way to it: "['order'].lines[0]"."""
    path = ""
    for _ in range(MAX_STEPS):
        for step, part in _parts(value):
            if not _is_encodable(part):
                path, value = path + step, part
                break
        else:
            break
    return path, value


def _is_encodable(value: object) -> bool:
    try:
        encode(value)
    except BaseException:
        return False
    return True


def _parts(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield f"[key {key!r:.50}]", key
            yield f"[{key!r:.50}]", each
    elif isinstance(value, list | tuple | set | frozenset):
        for index, each in enumerate(value):
            yield f"[{index}]", each
    else:
        kind = type(value)
        names = getattr(kind, "__struct_fields__", ()) or getattr(kind, "__dataclass_fields__", ())
        for name in names:
            yield f".{name}", getattr(value, name, None)

"""Fingerprints of a step's arguments, and its stored result."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NoReturn, get_type_hints

from msgspec import Raw
from msgspec.msgpack import Decoder, Encoder

from bunqueue.client.codecs.envelope import MARK_BYTES, check_opened
from bunqueue.client.connection.options import shown
from bunqueue.client.conversion.converter import Converter
from bunqueue.client.conversion.encoding import STORABLE, encode, to_plain
from bunqueue.client.conversion.mismatch import WRONG
from bunqueue.client.conversion.schema import schema_of
from bunqueue.client.options.plain_data import not_plain
from bunqueue.errors import ResultError, StepChanged
from bunqueue.model.workflow import MAX_BYTES, MAX_STATE_BYTES

NIL = Raw(b"\xc0")
NOTHING = "0"  # the fingerprint of a call without arguments
_PLAIN = (type(None), bool, int, float, str)
_decode = Decoder().decode


def _named(value: object) -> Any:
    """For values that cannot be sent, such as connections and functions, only the class counts."""
    try:
        return to_plain(value)
    except Exception:  # conversions of foreign types may raise anything
        return f"{type(value).__module__}.{type(value).__qualname__}"


_encode_in_order = Encoder(enc_hook=_named, order="deterministic").encode


def fingerprint(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """A text that is equal for equal arguments, in every process."""
    if not args and not kwargs:
        return NOTHING
    try:
        encoded = _encode_in_order([args, dict(kwargs)])
    except Exception:  # for example keys that MessagePack does not have
        encoded = _encode_in_order([[_named(each) for each in args], sorted(kwargs)])
    return blake2b(encoded, digest_size=8).hexdigest()


# -- results


@lru_cache(maxsize=1024)
def _converter(function: Callable[..., Any]) -> Converter | None:
    try:
        kind = get_type_hints(inspect.unwrap(function), include_extras=True).get("return", Any)
    except (NameError, TypeError, AttributeError):  # names defined later, or no annotations
        return None
    if kind in (Any, object, None, type(None), NoReturn):
        return None
    return converter_of(kind, f"the result of {shown(function)}")


@lru_cache(maxsize=1024)
def converter_of(kind: Any, where: str) -> Converter | None:
    """The converter to that type; None: no conversion is needed."""
    return None if kind in (Any, object) else Converter(kind, where)


def converter(function: Callable[..., Any]) -> Converter | None:
    """The converter from a stored result to the annotated type. Raises TypeError for a type that cannot be
    stored.
    """
    target = getattr(function, "func", function)  # of a partial
    try:
        return _converter(target)
    except TypeError as error:
        if "unhashable" in str(error):
            return None
        raise


def stored(value: object, what: str, most: int = MAX_BYTES, field: str = "result") -> Raw:
    """A value in its stored form. Raises ResultError about that field."""
    if value is None:
        return NIL
    try:
        encoded = encode(value)
    except Exception as error:  # conversions of foreign types may raise anything
        raise ResultError(
            f"{what} cannot be stored ({type(error).__name__}: {error}); use {STORABLE}",
            field=field,
            value=type(value).__name__,
            bound=STORABLE,
        ) from error
    if len(encoded) > most:
        raise ResultError(
            f"{what} has {len(encoded)} bytes, at most {most} can be stored; keep large data elsewhere, and "
            f"store its place",
            field=field,
            value=len(encoded),
            bound=most,
        )
    return Raw(encoded)


def check_kept(value: object, converting: Converter | None, what: str) -> None:
    """Raise ResultError, beginning with `what`, for a value that would come back as another type because no
    annotation declares its type. It has already been encoded.
    """
    if converting is None and (problem := not_plain(value)) is not None:
        text, kind = problem
        fix = "or annotate the function with what it gives"
        raise ResultError(f"{what} has {text}; {fix}", field="result", value=kind)


def stored_state(value: object) -> Raw:
    """The encoded visible state of a workflow. Raises ResultError."""
    return stored(value, "flow.state", MAX_STATE_BYTES, "state")


ANYTHING = Raw(b"\x80")  # the JSON Schema that accepts everything


def schema_for(converting: Converter | None) -> Raw:
    """The schema of a signal's data, for programs that send the signal."""
    return ANYTHING if converting is None else schema_of(converting) or ANYTHING


def misfit_of(raw: Raw, converting: Converter | None, signal: str) -> str | None:
    """Why a signal's data does not fit what the workflow waits for, in words; None if it fits. Raises
    CodecError for data that is still encoded.
    """
    if MARK_BYTES in bytes(raw):
        check_opened(_decode(raw), f"the data of signal {signal!r}")
    if converting is None:
        return None
    try:
        converting.decode(raw)
    except WRONG as error:
        kind = converting.hint
        return f"the data of signal {signal!r} is not of the type {kind!r} that is waited for: {error}"
    return None


def value_of(
    raw: Raw,
    converting: Converter | None,
    step: str,
) -> Any:
    """A stored value as its function's annotated type. Raises StepChanged.

    The result is the same in the run that stored it and in each later one, so callers need not care which it
    is. Raises CodecError for a value that is still encoded.
    """
    if MARK_BYTES in bytes(raw):
        check_opened(_decode(raw), f"the stored result of step {step!r}")
    try:
        return _decode(raw) if converting is None else converting.decode(raw)
    except WRONG as error:
        kind = converting.hint if converting is not None else Any
        raise StepChanged(
            f"the stored result of step {step!r} is not of the type {kind!r} that its function promises now: "
            f"{error}; retry the workflow from this step, or give the step another name",
            step=step,
        ) from None


def same_value(value: object, raw: Raw, converting: Converter | None, step: str) -> Any:
    """The result of a step that has just been stored."""
    if converting is None and type(value) in _PLAIN:
        return value
    return value_of(raw, converting, step)

"""Values of a shard, decoded to forms that tables and people can read.

Payloads may have any content.  Bytes become base64, NaN and the infinities null, keys text, times ISO 8601,
and extension types null.  A payload that cannot be decoded is null, with a reason; it never fails a query.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import orjson
from msgspec import DecodeError
from msgspec.msgpack import Decoder, Ext
from msgspec.structs import asdict

from bunqueue.model.job import Extra, JobOptions

_decode = Decoder().decode
_decode_options = lru_cache(maxsize=1024)(Decoder(JobOptions).decode)  # many jobs have the same ones
_decode_extra = Decoder(Extra).decode

_DEFAULT_OPTIONS = JobOptions()
_NO_EXTRA = Extra()

Scalar = str | bytes | int | float | None


def payload_json(raw: bytes | None) -> str | None:
    """A payload as JSON, or None if it is missing or cannot be decoded."""
    return None if raw is None else _converted(raw)[0]


def payload_error(raw: bytes | None) -> str | None:
    """Why `payload_json` returns None for a payload."""
    return None if raw is None else _converted(raw)[1]


def _converted(raw: bytes) -> tuple[str | None, str | None]:
    try:
        return to_json(_decode(raw)), None
    except (DecodeError, ValueError, TypeError, RecursionError) as error:
        return None, f"{type(error).__name__}: {error}"


def to_json(value: Any) -> str:
    """A decoded MessagePack value as JSON.  Raises TypeError when it is nested too deeply."""
    try:  # most values are plain
        return orjson.dumps(value).decode()
    except TypeError:
        return orjson.dumps(_plain(value)).decode()


def _plain(value: Any) -> Any:
    """A value with JSON types only."""
    if isinstance(value, dict):
        return {_key(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, bytes):
        return b64encode(value).decode()
    return None if isinstance(value, Ext) else value


def _key(key: Any) -> str:
    return key if isinstance(key, str) else to_json(key).strip('"')


def job_option(name: str, stored: bytes | None) -> Any:
    """One of a job's options."""
    return _listed(getattr(_DEFAULT_OPTIONS if stored is None else _decode_options(stored), name))


def job_options(stored: bytes | None) -> str:
    """All options of a job as JSON."""
    return to_json(asdict(_DEFAULT_OPTIONS if stored is None else _decode_options(stored)))


def job_extra(name: str, stored: bytes | None) -> Any:
    """One of the fields that few jobs have."""
    return _listed(getattr(_NO_EXTRA if stored is None else _decode_extra(stored), name))


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def blocked(stored: bytes) -> str | None:
    """The state of a job that waits for others; None if it does not."""
    return "waiting-children" if _decode_extra(stored).waits_for_jobs else None


def exact(number: float) -> str:
    """A number as text that gives the same number again; SQLite itself writes 15 digits."""
    return repr(number)


def json_extract(encoded: str | None, path: str) -> Scalar:
    """As SQLite's own: the value at a path such as $.lastRun.at."""
    if encoded is None:
        return None
    value = orjson.loads(encoded)
    for key in path.removeprefix("$.").split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return to_json(value) if isinstance(value, list | dict) else value


def _tolerant(function: Callable[..., Scalar]) -> Callable[..., Scalar]:
    """The function, which gives the reason where it cannot decode a value, and does not fail the query."""

    def called(*arguments: Any) -> Scalar:
        try:
            return function(*arguments)
        except Exception as error:
            return REASON + f"{type(error).__name__}: {error}".encode(errors="replace")

    return called


REASON = b"\0malformed "
"""A blob that begins with it stands for a value that cannot be decoded.  No column has a blob unless it is
decoded here, so it is noticed."""

FUNCTIONS: Mapping[str, Callable[..., Scalar]] = {"blocked": _tolerant(blocked), "exact": exact}
"""SQL functions that columns use, all deterministic, and seldom called."""

TOLERANT: Mapping[str, Callable[..., Scalar]] = {"json_extract": _tolerant(json_extract)}
"""Functions of SQLite that fail the query when a value is malformed, so that they do not."""

"""MessagePack values of a shard, decoded to forms that SQL and people can read.

Payloads may have any content.  Bytes become base64, NaN and the infinities null, keys text, times ISO 8601,
and extension types null.  A payload that cannot be decoded is null, with a reason; it never fails a query.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import orjson
from msgspec import DecodeError, to_builtins
from msgspec.msgpack import Decoder, Ext

from bunqueue.model.job import Extra, JobOptions

_decode = Decoder().decode
_decode_options = lru_cache(maxsize=1024)(Decoder(JobOptions).decode)  # many jobs have the same ones
_decode_extra = lru_cache(maxsize=4)(Decoder(Extra).decode)  # for each column of a row

Scalar = str | int | float | None


def payload_json(raw: bytes | None) -> str | None:
    """A payload as JSON, or None if it is missing or cannot be decoded."""
    return None if raw is None else _converted(raw)[0]


def payload_error(raw: bytes | None) -> str | None:
    """Why `payload_json` returns None for a payload."""
    return None if raw is None else _converted(raw)[1]


@lru_cache(maxsize=4)  # the text and the error of a payload are requested one after the other
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


def job_option(stored: bytes, name: str) -> Scalar:
    """One of a job's options."""
    return _scalar(getattr(_decode_options(stored), name))


def job_options(stored: bytes | None) -> str:
    """All options of a job as JSON."""
    return to_json(to_builtins(JobOptions() if stored is None else _decode_options(stored)))


def job_extra(stored: bytes, name: str) -> Scalar:
    """One of the fields that few jobs have."""
    return _scalar(getattr(_decode_extra(stored), name))


def _scalar(value: Any) -> Scalar:
    return to_json(value) if isinstance(value, list | tuple) else value


def is_blocked(stored: bytes) -> bool:
    """Whether a job waits for others."""
    extra = _decode_extra(stored)
    return extra.waits_for_jobs


FUNCTIONS: Mapping[str, Callable[..., Scalar]] = {
    function.__name__: function
    for function in (payload_json, payload_error, job_option, job_options, job_extra, is_blocked)
}
"""SQL functions used by `tables`.  All are deterministic."""

"""Delays that exceptions ask for, as servers do with the header Retry-After."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from math import isnan
from typing import Any, Protocol

from msgspec import Raw, Struct

from bunqueue.client.conversion.raised import asked
from bunqueue.client.options.moments import now_ms
from bunqueue.model.decoders import decoder
from bunqueue.model.durations import DAY_MS
from bunqueue.worker.active_job import ActiveJob


class _Backoff(Struct, rename="camel"):
    retry_after: bool = False
    max_delay: float | None = None


class RetrySettings(Struct, rename="camel"):
    """A job's own retry settings, as far as workers need them."""

    retry_on: list[str] = []
    never_on: list[str] = []
    backoff_config: _Backoff | None = None


_decode_settings = decoder(RetrySettings).decode


class _HasRaw(Protocol):
    @property
    def raw(self) -> Raw: ...


def settings_of(job: _HasRaw) -> RetrySettings:
    """The retry settings of a job."""
    return _decode_settings(job.raw)


def retry_after(job: ActiveJob[Any], error: BaseException) -> float | None:
    """The ms that an exception says to wait: by its `retry_after`, or by the Retry-After header of its HTTP
    response, as in exceptions of httpx, requests, aiohttp and urllib. None if it says nothing. At most a day.
    """
    return _asked(error)


def _asked(error: BaseException) -> float | None:
    found = asked(error, "retry_after")
    try:  # its value is a user's object as well
        if found is None:
            found = _header(asked(error, "response")) or _header(error)
        seconds = _seconds(found)
    except BaseException:
        return None
    return None if seconds is None or isnan(seconds) else min(max(0.0, seconds * 1000), DAY_MS)


def _header(source: object) -> object:
    headers = getattr(source, "headers", None)
    get = getattr(headers, "get", None)
    return get("Retry-After") if callable(get) else None


def _seconds(value: Any) -> float | None:
    """The seconds in a number, a timedelta, a moment, or the text of a header."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, str):
        text = value.strip()
        if text.isascii() and text.replace(".", "", 1).isdigit():
            return float(text)
        try:
            value = parsedate_to_datetime(text)
        except ValueError:
            return None
    if isinstance(value, datetime):
        moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return moment.timestamp() - now_ms() / 1000
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def asked_delay(job: _HasRaw, error: BaseException) -> float | None:
    """The ms until the next attempt that an exception asks for, if the job's backoff respects that; at most
    the backoff's longest wait.
    """
    backoff = settings_of(job).backoff_config
    if backoff is None or not backoff.retry_after:
        return None
    asked = _asked(error)
    if asked is None:
        return None
    return asked if backoff.max_delay is None else min(asked, backoff.max_delay)

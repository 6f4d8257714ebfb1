"""Moments in Spark's columns: epoch ms as whole numbers, and their buckets.

The buckets are the same as in `bunqueue.analytics.buckets`, whatever the time zone of the session.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

_MS = {"minute": 60_000, "hour": 3_600_000, "day": 86_400_000}


def ms_of(column: Column) -> Column:
    """A timestamp as epoch ms."""
    return F.unix_millis(column)


def time_of(ms: Column) -> Column:
    """Epoch ms as a timestamp."""
    return F.timestamp_millis(ms)


def _local(ms: Column, zone: str) -> Column:
    """Local wall-clock time, as if it were UTC; ms."""
    if zone == "UTC":  # the most common case, which costs nothing
        return ms
    return F.unix_millis(F.from_utc_timestamp(F.timestamp_millis(ms), zone))


def _midnight(day: Column, zone: str) -> Column:
    """The first moment of a local day, given by its number; ms."""
    return F.unix_millis(F.to_utc_timestamp(F.timestamp_millis(day * F.lit(_MS["day"])), zone))


def _day(ms: Column, zone: str) -> Column:
    return F.floor(_local(ms, zone) / F.lit(_MS["day"]))


def bucket_of(ms: Column, unit: str, zone: str) -> Column:
    """The start of the bucket that contains a moment; ms."""
    if unit == "day":
        return _midnight(_day(ms, zone), zone)
    return ms - F.pmod(_local(ms, zone), F.lit(_MS[unit]))


def end_of(bucket: Column, unit: str, zone: str) -> Column:
    """The end of the bucket that starts at a moment; ms."""
    if unit == "day":
        noon = bucket + F.lit(_MS["day"] // 2)
        return _midnight(_day(noon, zone) + F.lit(1), zone)
    return bucket + F.lit(_MS[unit])


def buckets_of(since: Column, until: Column, unit: str, zone: str) -> Column:
    """An array with the starts of all buckets between two moments; ms."""
    if unit == "day":
        days = F.sequence(_day(since, zone), _day(until, zone))
        return F.transform(days, lambda day: _midnight(day, zone))
    first, last = bucket_of(since, unit, zone), bucket_of(until, unit, zone)
    return F.sequence(first, last, F.lit(_MS[unit]))

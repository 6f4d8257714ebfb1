"""Stable codes of refusals.  The text of a refusal is for people and may change; its code does not."""

from __future__ import annotations

import enum


class Code(enum.StrEnum):
    """What stands in the field ``code`` of an error reply."""

    STORAGE_FULL = "STORAGE_FULL"  # the disk has no room, or soon none: see docs/durability.md
    WAL_LIMIT = "WAL_LIMIT"  # a reader keeps the log of a shard from being reset: see docs/durability.md
    STORAGE_FAILED = "STORAGE_FAILED"  # the disk fails to write or to read
    STORAGE_DAMAGED = "STORAGE_DAMAGED"  # what is asked for lies in a damaged part of a shard's file
    SHARD_UNAVAILABLE = "SHARD_UNAVAILABLE"  # nothing was changed: ask again in a moment
    FORBIDDEN = "FORBIDDEN"  # the token may only read: give one of --auth-token
    INVALID_DATA = "INVALID_DATA"  # no reader could show the value: text that is not UTF-8, say
    UNKNOWN_FIELD = "UNKNOWN_FIELD"  # over HTTP only: there is no field of this name; the text suggests one
    SCHEDULE_CONFLICT = "SCHEDULE_CONFLICT"  # the name belongs to a schedule of another queue or app
    MEMORY_LIMIT = "MEMORY_LIMIT"  # the shard is near its memory limit and takes no more jobs

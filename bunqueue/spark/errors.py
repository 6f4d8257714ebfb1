"""Errors of reading. Each text is one line that says what to do."""

from __future__ import annotations


class BadOption(ValueError):
    """An option of the source is unknown, or its value is not allowed."""


class NotReadable(Exception):
    """A folder or a shard cannot be read."""


class NoRoom(NotReadable):
    """The disk has too little free space for a copy."""


class UnreadableShard(NotReadable):
    """One shard of a folder cannot be read."""


class EventsLost(Exception):
    """A stream cannot continue without skipping events."""

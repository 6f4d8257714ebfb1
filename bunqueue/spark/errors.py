"""What can be wrong with what is to be read; each text is one line that says what to do."""

from __future__ import annotations


class BadOption(ValueError):
    """An option of the source that is unknown, or has a value that is not allowed."""


class NotReadable(Exception):
    """A folder or a shard that cannot be read."""


class NoRoom(NotReadable):
    """The disk has no room for a copy."""


class UnreadableShard(NotReadable):
    """One shard of a folder."""


class EventsLost(Exception):
    """A stream cannot go on without leaving events out."""

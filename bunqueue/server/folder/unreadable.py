"""Why a folder or a shard's file cannot be read. Each text is one line that says what to do."""

from __future__ import annotations


class NotReadable(Exception):
    """A folder or a shard cannot be read."""


class NoRoom(NotReadable):
    """The disk has too little free space for a copy."""


class UnreadableShard(NotReadable):
    """One shard of a folder cannot be read."""

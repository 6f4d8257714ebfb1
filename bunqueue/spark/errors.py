"""Errors of reading. Each text is one line that says what to do."""

from __future__ import annotations

from bunqueue.server.folder.unreadable import NoRoom as NoRoom
from bunqueue.server.folder.unreadable import NotReadable as NotReadable
from bunqueue.server.folder.unreadable import UnreadableShard as UnreadableShard


class BadOption(ValueError):
    """An option of the source is unknown, or its value is not allowed."""


class EventsLost(Exception):
    """A stream cannot continue without skipping events."""

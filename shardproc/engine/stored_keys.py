"""Encryption keys that stored payloads need, as found by the archive."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from bunqueue.protocol.commands.keys import What


class StoredKey(NamedTuple):
    """One value that needs a key; ``owner`` is the id of its job, or the name of another owner.  ``queue`` is
    an id, or a name."""

    key: str
    what: What
    owner: str
    queue: int | str | None = None


class StoredKeys(Protocol):
    """Reads of the archive, including the rows of live jobs."""

    def of_jobs(self, after: int, limit: int) -> tuple[list[StoredKey], int | None]:
        """The keys used by the next ``limit`` jobs after number ``after``; and the last number inspected,
        None at the end."""

    def of_others(self) -> list[StoredKey]:
        """The keys used by values that belong to no job."""

"""Keys of encryption that stored payloads need, as the archive finds them."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from bunqueue.protocol.commands.keys import What


class StoredKey(NamedTuple):
    """One value that needs a key; ``owner`` is the id of its job, or the name of what is none.  ``queue`` is
    an id, or a name."""

    key: str
    what: What
    owner: str
    queue: int | str | None = None


class StoredKeys(Protocol):
    """Reads of the archive, also of the rows of live jobs."""

    def of_jobs(self, after: int, limit: int) -> tuple[list[StoredKey], int | None]:
        """Of the next jobs after number ``after``, at most so many; and the last number looked at, None at
        the end."""

    def of_others(self) -> list[StoredKey]:
        """Of what belongs to no job."""

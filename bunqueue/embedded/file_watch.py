"""Notices when the file of an embedded queue is deleted or replaced while it is open.

What is committed to a file without a name is gone with the process.  A deleted file is written anew, and the
engine opens it again.  Where that is not possible, whatever adds jobs is refused until the file is back.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardproc.storage.database import Database
    from shardproc.storage.presence import Absence

LOOK_S = 1.0  # between two looks; what is added between the deletion and the look is saved, too
logger = logging.getLogger("bunqueue.embedded")


class FileWritten(Exception):
    """The file was deleted and has been rewritten; it must be opened again."""


class FileWatch:
    """Looks after one open file."""

    def __init__(self, database: Database) -> None:
        self.refusal: str | None = None
        """Why nothing may be added; None: it may."""
        self._database = database
        self._absence: Absence | None = None
        self._next_look = 0.0

    @property
    def pause_ms(self) -> float:
        """How long nobody has to look; without bound for a queue in memory."""
        return float("inf") if self._database.presence is None else LOOK_S * 1000

    def look(self) -> None:
        """Four system calls a second at most.  FileWritten when the file was deleted, and is there again with
        all that was acknowledged."""
        now = time.monotonic()
        presence = self._database.presence
        if presence is None or now < self._next_look or self._database.connection.in_transaction:
            return
        self._next_look = now + LOOK_S
        absence = presence.absence()
        if absence is not None:
            self._save(absence)
        elif self._absence is not None:
            logger.info("%s is at its place again", self._database.path)
            self._absence = self.refusal = None

    def _save(self, absence: Absence) -> None:
        from shardproc.storage.repair.rescue import RescueError, rescue, rescued

        path = Path(self._database.path)
        if absence is not self._absence:
            logger.error("%s %s while it is open", path, absence.value)
        self._absence = absence
        try:
            if rescue(self._database.connection, path, absence, lambda: None):
                raise FileWritten(
                    f"{path} {absence.value}, and was written anew with all that was acknowledged"
                )
            cure = (
                f"what this process holds was copied to {rescued(path)}; end the process and decide which of "
                f"the two is to be {path.name}"
            )
        except RescueError as error:
            cure = f"it cannot be written anew ({error}); put it back, or make {path.parent} writable"
        refusal = f"Storage fails: {path} {absence.value} while it is open: {cure}"
        if refusal != self.refusal:
            logger.error("adding jobs is refused, as they would be lost: %s", refusal)
        self.refusal = refusal

"""Notices when the file of an embedded queue is deleted or replaced while it is open.

Data that is committed to a deleted file is lost when the process ends.  So a deleted file is written again,
and the engine reopens it.  Where that is not possible, commands that add jobs are refused until the file is
back.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardproc.storage.database import Database
    from shardproc.storage.deleted_files import Absence

CHECK_S = 1.0  # between two checks; jobs that are added between the deletion and the check are also saved
logger = logging.getLogger("bunqueue.embedded")


class FileWritten(Exception):
    """The file was deleted and has been rewritten.  It must be reopened."""


class FileWatch:
    """Watches one open file."""

    def __init__(self, database: Database) -> None:
        self.refusal: str | None = None
        """Why nothing may be added.  None: jobs may be added."""
        self._database = database
        self._absence: Absence | None = None
        self._next_check = 0.0

    @property
    def pause_ms(self) -> float:
        """The time until the next check is due.  Unbounded for an in-memory queue."""
        return float("inf") if self._database.presence is None else CHECK_S * 1000

    def check(self) -> None:
        """Check the file, with at most four system calls per second.  Raises FileWritten when the file was
        deleted, and has been rewritten with everything that was acknowledged."""
        now = time.monotonic()
        presence = self._database.presence
        if presence is None or now < self._next_check or self._database.connection.in_transaction:
            return
        self._next_check = now + CHECK_S
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
            fix = (
                f"what this process holds was copied to {rescued(path)}; end the process and decide which of "
                f"the two is to be {path.name}"
            )
        except RescueError as error:
            fix = f"it cannot be written again ({error}); put it back, or make {path.parent} writable"
        refusal = f"Storage fails: {path} {absence.value} while it is open: {fix}"
        if refusal != self.refusal:
            logger.error("adding jobs is refused, as they would be lost: %s", refusal)
        self.refusal = refusal

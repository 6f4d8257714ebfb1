"""Notices that the files of a running shard were deleted or replaced.

Everything that the shard commits after that would be gone with its process. A deleted file is written anew,
and the process ends; its successor uses the new file. Where that is not possible, pushes must be refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from bunqueue.logs import get_logger
from shardproc.storage.deleted_files import Absence

from .core import StorageFailed
from .storage.database import Database
from .storage.repair.rescue import RescueError, rescue, rescued

CHECK_S = 1.0  # between two checks: a salvage also covers what is pushed between the deletion and the check
_log = get_logger("shard")


class FileWatch:
    """While all is well it costs a clock reading per batch, and four calls a second."""

    def __init__(self) -> None:
        self.goes_on: Callable[[], None] = lambda: None
        """Called from time to time while a salvage takes long."""
        self.next_check = 0.0  # by the monotonic clock
        self._absence: Absence | None = None

    @property
    def missing(self) -> bool:
        """Whether a file was missing at the last check."""
        return self._absence is not None

    def check(self, database: Database) -> str | None:
        """Why pushes must be refused; None when the files are in place.

        Raises StorageFailed, which ends the process, when a missing file was written anew.
        """
        self.next_check = time.monotonic() + CHECK_S
        if database.presence is None or database.connection.in_transaction:
            return None
        absence, path = database.presence.absence(), Path(database.path)
        if absence is not None and absence is not self._absence:
            _log.error("a data file of the running server is gone", file=str(path), what=absence.value)
        elif absence is None and self._absence is not None:
            _log.info("the data file is at its place again", file=database.path)
        self._absence = absence
        return None if absence is None else self._rescue(absence, path, database)

    def _rescue(self, absence: Absence, path: Path, database: Database) -> str:
        try:
            done = rescue(database.connection, path, absence, self.goes_on)
        except RescueError as error:
            fix = f"it cannot be written again ({error}); put it back, or make {path.parent} writable"
        else:
            if done:
                _log.warning("it was written again, with all that was acknowledged", file=str(path))
                raise StorageFailed(f"{path} {absence.value}, and was written anew")
            fix = (
                f"what this server holds was copied to {rescued(path)}; stop the server and decide which of "
                f"the two is to be {path.name}"
            )
        return f"Storage fails: {path} {absence.value} while the server runs: {fix}"

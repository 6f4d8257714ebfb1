"""Whether the open files still have their names: other programs may delete or replace them at any time.

Data written to a file without a name is gone with the process.
"""

from __future__ import annotations

import enum
import os


class Absence(enum.Enum):
    """What happened; the texts follow the name of the file."""

    DELETED = "was deleted"
    REPLACED = "was replaced by another file"
    LOG_DELETED = "has lost its -wal, which was deleted or replaced"


class Presence:
    """The file and its log, as they were opened."""

    def __init__(self, path: str, descriptor: int) -> None:
        """``descriptor`` is one of the file, kept open by the caller."""
        self._path, self._descriptor = path, descriptor
        self.log = os.open(f"{path}-wal", os.O_RDONLY | os.O_CLOEXEC)

    def absence(self) -> Absence | None:
        """What is wrong; None: nothing. It takes two system calls."""
        try:
            if not os.path.samestat(os.stat(self._path), os.fstat(self._descriptor)):
                return Absence.REPLACED
        except FileNotFoundError:
            return Absence.DELETED
        try:
            if not os.path.samestat(os.stat(f"{self._path}-wal"), os.fstat(self.log)):
                return Absence.LOG_DELETED
        except FileNotFoundError:
            return Absence.LOG_DELETED
        return None

    def close(self) -> None:
        os.close(self.log)

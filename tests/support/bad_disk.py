"""A disk that fails when a test says so, under servers that really run."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")


class BadDisk:
    """Calls of a server fail within `failing`."""

    def __init__(self, folder: Path) -> None:
        """``folder`` is empty, and not that of the data."""
        library = folder / "bad_disk.so"
        command = ["gcc", "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"]
        subprocess.run(command, check=True)
        self._folder = folder
        self.environ = {"LD_PRELOAD": str(library), "BAD_DISK": str(folder)}
        """Of the server."""

    @contextmanager
    def failing(self, call: str, number: int, ending: str) -> Iterator[None]:
        """``call`` is read, write or sync, ``number`` the errno, ``ending`` that of the files' names.

        * means all files of shards.
        """
        rule, new = self._folder / call, self._folder / "new"
        new.write_text(f"{number} {ending}")
        new.rename(rule)
        try:
            yield
        finally:
            rule.unlink()

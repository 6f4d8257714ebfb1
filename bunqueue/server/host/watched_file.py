"""Detects changes to a file's contents between two checks."""

from __future__ import annotations

from pathlib import Path


class WatchedFile:
    """Compares the file's contents: replacing it with a copy of the same bytes is not a change."""

    def __init__(self, path: str) -> None:
        """``path``: "" for no file, which never changes."""
        self._path = path
        self._content = self._read()

    def changed(self) -> bool:
        """Whether the contents have changed since the last call, or since this object was made."""
        before, self._content = self._content, self._read()
        return self._content != before

    def _read(self) -> bytes:
        try:
            return Path(self._path).read_bytes() if self._path else b""
        except OSError:  # the code that uses the file reports the error
            return b""

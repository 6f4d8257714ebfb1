"""A file of which one has to know whether it has changed since it was last looked at."""

from __future__ import annotations

from pathlib import Path


class WatchedFile:
    """Compares the file's content: a copy of the same bytes is no change."""

    def __init__(self, path: str) -> None:
        """``path``: "" for none, which never changes."""
        self._path = path
        self._content = self._read()

    def changed(self) -> bool:
        """Whether it is another one than at the last call, or when this object was made."""
        before, self._content = self._content, self._read()
        return self._content != before

    def _read(self) -> bytes:
        try:
            return Path(self._path).read_bytes() if self._path else b""
        except OSError:  # whoever uses it says so
            return b""

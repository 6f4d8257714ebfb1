"""The private folder with the sockets of the server's own processes."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

MAX_SOCKET_PATH = 100  # bytes; the kernel takes 108 on Linux, 104 on macOS


class RuntimeFolder:
    """A folder that only this user can enter, for as long as the server runs."""

    def __init__(self) -> None:
        # systemd makes one for the service and cleans it up; the variable may name several.
        given = os.environ.get("RUNTIME_DIRECTORY", "").split(":")[0]
        self._path = Path(tempfile.mkdtemp(prefix="bunqueue-", dir=given or None))
        if len(os.fsencode(self.socket)) >= MAX_SOCKET_PATH:  # a deep TMPDIR
            self._path.rmdir()
            self._path = Path(tempfile.mkdtemp(prefix="bunqueue-", dir="/tmp"))

    @property
    def socket(self) -> str:
        """The path of the socket for the shards."""
        return str(self._path / "shards.sock")

    @property
    def gateway_socket(self) -> str:
        """The path of the socket for the HTTP gateway; no longer than that for the shards."""
        return str(self._path / "http.sock")

    def shard(self, index: int) -> str:
        """The path of a shard's socket for secondary routers; no longer than the others."""
        return str(self._path / f"{index}.sock")

    @property
    def table(self) -> str:
        """The path of the table in which all routers report about themselves."""
        return str(self._path / "routers")

    def remove(self) -> None:
        """Remove the folder and its contents."""
        shutil.rmtree(self._path, ignore_errors=True)

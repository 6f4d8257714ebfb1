"""Keeps the `Directory` of a process up to date with the file of identities.

Each process that clients reach (routers, the gateway) watches the file itself, so a revoked token ends within
a second wherever its connections are, and no message between processes can be lost.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

from bunqueue.logs import get_logger
from bunqueue.server.settings.settings import Settings

from .directory import ADMIN, KEY_BYTES, READER, Directory, Entry
from .identity_file import IdentitiesError, load
from .people import NO_PEOPLE

LOOK_S = 0.3  # between two looks at the file: a revoked token must end within a second

Stamp = tuple[int, int, int]


def directory_of(settings: Settings) -> Directory:
    """The identities of the settings and of their file. Raises IdentitiesError."""
    full, readers = settings.auth_token, settings.read_only_token
    entries = [Entry(ADMIN, plain=full)] if full else []
    entries += [Entry(READER, plain=readers)] if readers else []
    own, people, quotas = load(settings.identities) if settings.identities else ([], NO_PEOPLE, {})
    is_open = not (full or settings.identities)
    return Directory([*entries, *own], os.urandom(KEY_BYTES), is_open=is_open, people=people, quotas=quotas)


class IdentitiesWatch:
    """Reads the file again when it has changed. A file with a mistake changes nothing."""

    def __init__(
        self, settings: Settings, directory: Directory, changed: Callable[[Directory], None], *, logs: bool
    ) -> None:
        """``changed`` gets the directory after each change, and again when a grant has expired. Of several
        processes one ``logs``."""
        self._settings, self._directory, self._changed, self._logs = settings, directory, changed, logs
        self._log = get_logger("identities")
        self._stamp = self._look()
        self._next_end = directory.next_end(time.time())
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to watch, if there is a file."""
        if self._settings.identities and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._watch())

    def stop(self) -> None:
        """Stop to watch."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def reload(self) -> None:
        """Read the file now, and the files that it names."""
        if not self._settings.identities:
            return
        self._stamp = self._look()
        try:
            found = directory_of(self._settings)
        except IdentitiesError as error:
            if self._logs:
                self._log.error("the identities have a mistake; those before it stay", error=str(error))
            return
        before, self._directory = self._directory, found
        if self._logs:
            self._log_changes(before, found)
        self._apply()

    def _log_changes(self, before: Directory, found: Directory) -> None:
        old, new = before.entries, found.entries
        both = old.keys() & new.keys()
        changes = {
            "added": sorted(new.keys() - old.keys()),
            "removed": sorted(old.keys() - new.keys()),
            "changed": sorted(name for name in both if old[name] != new[name]),
        }
        found_changes = {key: ",".join(names) for key, names in changes.items() if names}
        self._log.info("the identities were read again", **found_changes)

    async def _watch(self) -> None:
        seen = self._stamp
        while True:
            await asyncio.sleep(LOOK_S)
            before, seen = seen, self._look()
            if seen != self._stamp and seen == before:  # else it may be half written
                self.reload()
            elif time.time() >= self._next_end:
                self._apply()

    def _apply(self) -> None:
        self._next_end = self._directory.next_end(time.time())
        self._changed(self._directory)

    def _look(self) -> Stamp | None:
        try:
            found = os.stat(self._settings.identities)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

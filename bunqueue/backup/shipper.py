"""Ships what changes in a data folder, each second, while its server works.

It begins with a backup, and stores the pages that change from then on as `shipped` describes. While the
target is away, it only notes which pages have changed: nothing is kept on disk, and little in memory. If
these have become many, or much has been shipped, it makes another backup, which has them all.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

from bunqueue.server.folder.data_folder import copy_of, read_identified
from bunqueue.server.folder.unreadable import UnreadableShard

from .create import BackupError, back_up, check_apart, live_files
from .live_file import Following, LiveFile
from .primary import BEAT_S, Claim
from .repository import Repository
from .shipped import Changes, changed_file, latest, ship
from .trail import StoredTrail

LARGEST = 8192  # pages of a segment, 64 MiB: more become a backup
LONGEST = 64 << 20  # bytes that are shipped after a backup ...
MANY = 10_000  # segments that follow a backup: a restore reads each of them
SHARE = 4  # ... or this part of its size, whichever is more: a restore reads them all


class Shipper:
    """Ships one folder. Call `step` about each second, from one thread."""

    def __init__(
        self,
        folder: Path,
        repository: Repository,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        address: str = "",
    ) -> None:
        """``address``: where clients reach the server, for those who look for the primary."""
        self._address = address
        self._claim: Claim | None = None
        self._beat_at = 0.0  # when to give the next sign of life, monotonic
        self._folder, self._repository, self._now_ms = folder, repository, now_ms
        self._stack = ExitStack()
        self._trail = StoredTrail(folder)
        self._files: list[LiveFile] = []
        self._following: Following | None = None
        self.base = ""  # the backup that is continued; "": there is none yet
        self._number = 0  # segments of it
        self._shipped = 0  # bytes of these
        self._most = LONGEST
        self._since: list[set[int]] = []  # pages of each file that were shipped since
        self.until = 0  # all that was committed before is stored; epoch ms

    @property
    def pending(self) -> int:
        """Bytes of pages that have changed and are not stored."""
        return sum(file.changed * file.page_size for file in self._files)

    def step(self) -> None:
        """Store what has changed. TargetError, BackupError, UnreadableShard and DataFolderError: nothing is
        lost, call it again later; but after Superseded another server is the primary."""
        if self._following is None:
            self._open()
        following = self._following
        assert following is not None
        try:
            following.check()
            moment = max(self._now_ms(), self.until)  # before the pages are looked for
            for file in self._files:
                if not file.is_there:
                    raise UnreadableShard(f"{file.path} was deleted or replaced")
                file.follow()
            if not self.base or self._shipped > self._most or self._changed > LARGEST or self._number >= MANY:
                self._begin(following)
            else:
                self._ship(moment)
            if time.monotonic() >= self._beat_at:
                self._beat()
        except (UnreadableShard, OSError):
            self.close()  # the files may be others now: begin again
            raise

    @property
    def _changed(self) -> int:
        return sum(file.changed for file in self._files)

    def _open(self) -> None:
        manifest = read_identified(self._folder)
        if manifest.store:
            raise BackupError(f"{self._folder} belongs to a store, which has the jobs: back up its database")
        check_apart(self._folder, self._repository)
        with ExitStack() as stack:
            files = [stack.enter_context(closing(each)) for each in live_files(self._folder, manifest)]
            self._following, self._files = stack.enter_context(Following(files)), files
            self._stack = stack.pop_all()
        self._manifest = manifest
        self._since = [set() for _ in self._files]

    def _begin(self, following: Following) -> None:
        """Make a backup, and continue it from then on."""
        self._repository.open_for(self._manifest.id)  # before pages are taken: the target may be away
        claim = self._claimed()
        for file, numbers in zip(self._files, self._since, strict=True):
            file.put_back(sorted(numbers))
        self.base, before = "", self._changed
        try:
            made = back_up(
                self._files,
                following,
                self._manifest,
                self._repository,
                self._now_ms,
                claim=claim,
                trail=self._trail,
            )
        except BaseException:
            if self._changed < before:  # some are stored, but not known to be
                for file in self._files:
                    file.mark_all()
            raise
        for numbers in self._since:
            numbers.clear()
        self.base, self.until = made.id, made.moment
        self._number = self._shipped = 0
        self._beat_at = 0.0  # at once: who follows goes on with this backup
        self._most = max(LONGEST, made.bytes // SHARE)

    def _claimed(self) -> Claim:
        """This folder is the primary. Superseded."""
        if self._claim is None:
            claim = Claim(self._repository, copy_of(self._folder), self._address)
            claim.take()
            self._claim = claim
        if self._claim.is_open:
            self._claim.close(latest(self._repository))
        return self._claim

    def _beat(self, *, stopped: bool = False) -> None:
        if self._claim is not None and self.base:
            self._claim.beat(self.base, self.until, stopped=stopped)
        self._beat_at = time.monotonic() + BEAT_S

    def _ship(self, moment: int) -> None:
        """Store the changed pages of each file, as they are at one moment of this file, that one or later."""
        appended = self._trail.appended()
        if not self._changed and not appended:
            self.until = moment
            return
        taken, changes = [], Changes(moment, [], appended)
        for file in self._files:
            with file.fixed():
                pages = file.take(2 * LARGEST)
            taken.append([number for number, _ in pages])
            changes.files.append(changed_file(file.fixed_pages, file.page_size, pages))
        try:
            self._shipped += ship(self._repository, self.base, self._number + 1, changes)
        except BaseException:
            for file, numbers in zip(self._files, taken, strict=True):
                file.put_back(numbers)
            raise
        self._number += 1
        self._trail.stored(appended)
        self.until = moment
        for since, numbers in zip(self._since, taken, strict=True):
            since.update(numbers)

    def end(self) -> None:
        """The last `step` has stored everything: say so."""
        self._beat(stopped=True)

    def close(self) -> None:
        self._stack.close()
        self._files, self._following, self.base = [], None, ""

"""Makes a backup of a data folder, while its server works or not.

First all pages are read that differ from those of the last backup, then those that have changed meanwhile,
until few are left; these are read at one moment of all shards. Reading holds no transaction for longer than a
few MiB take, so a slow target lets no log grow.
"""

from __future__ import annotations

import secrets
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from pathlib import Path
from typing import NamedTuple

from bunqueue.server.folder.data_folder import (
    DataFolderError,
    Manifest,
    is_resharded,
    read_identified,
    shard_file,
)
from bunqueue.server.folder.unreadable import UnreadableShard
from bunqueue.text import span_of

from .live_file import Following, LiveFile, one_moment
from .pages import BackupPages, FilePages, Place
from .primary import Claim, Superseded, read_primary, superseded
from .repository import PACK_PAGES, PACKS, PAGES, UNFINISHED, Backup, Counts, Repository, id_of
from .shipped import latest
from .targets import Missing, TargetError
from .trail import StoredTrail

AT_ONCE = 4  # packs that are stored at the same time
FEW = 4096  # changed pages that may be left for the one moment: 32 MiB
ROUNDS = 8  # in which to get there: a shard may change pages faster than the target takes them
AHEAD_MS = 60_000  # that is more than clocks differ where somebody sets them
NOTE_S = 30.0  # between two notes of what is stored, from which an interrupted backup continues
_COUNTS = """select (select count(*) from jobs), (select count(*) from completed),
    (select count(*) from dead_letters), (select count(*) from locks), (select count(*) from queues)"""


class BackupError(Exception):
    """No backup could be made; the text is one line that says what to do."""


class Progress(NamedTuple):
    """The progress of a backup: pages read, pages in all, and bytes stored."""

    done: int
    total: int
    stored: int


class Throttle:
    """Keeps what all threads send below a number of bytes a second; 0: as fast as it goes."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._free_at = time.monotonic()
        self._mutex = threading.Lock()

    def wait(self, size: int) -> None:
        if not self._rate:
            return
        with self._mutex:
            now = time.monotonic()
            pause = max(0.0, self._free_at - now)
            self._free_at = max(now, self._free_at) + size / self._rate
        time.sleep(pause)


def create(
    folder: Path,
    repository: Repository,
    *,
    rate: float = 0,
    report: Callable[[Progress], None] = lambda progress: None,
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> Backup:
    """Back up a data folder. ``rate``: the most bytes to store in a second; 0: no limit.

    Raises BackupError, DataFolderError and TargetError; no backup that there was is harmed."""
    manifest = read_identified(folder)
    if is_resharded(folder):
        raise BackupError(f"{folder} has an interrupted reshard; run bunqueue reshard again to finish it")
    if manifest.store:
        raise BackupError(f"{folder} belongs to a store, which has the jobs: back up the store's database")
    check_apart(folder, repository)
    try:
        repository.open_for(manifest.id)
        primary, _ = read_primary(repository)
        if primary.is_passed(manifest.copy):
            raise Superseded(superseded(repository.target.where, primary, manifest.copy))
        with ExitStack() as stack:
            files = [stack.enter_context(closing(each)) for each in live_files(folder, manifest)]
            following = stack.enter_context(Following(files))
            return back_up(files, following, manifest, repository, now_ms, rate=rate, report=report)
    except UnreadableShard as error:
        raise BackupError(str(error)) from error


def clock_problem(moment: int, now: float) -> str:
    """What to say of a backup that has just been made, of that moment; "" if the clock shows the same (epoch
    ms). It is later than the one before, whatever the clock shows."""
    if moment - now < AHEAD_MS:
        return ""
    return (
        f"the backups are {span_of(moment - now)} ahead of this machine's clock: until that has caught up, "
        "--at cannot tell them apart"
    )


def check_apart(folder: Path, repository: Repository) -> None:
    """BackupError if the backups would be in the data folder, and go with it."""
    where = Path(repository.target.where)
    if where.is_absolute() and folder.resolve() in (where.resolve(), *where.resolve().parents):
        raise BackupError(f"{where} is in the data folder {folder}; give a place elsewhere, on another disk")


def back_up(
    files: Sequence[LiveFile],
    following: Following,
    manifest: Manifest,
    repository: Repository,
    now_ms: Callable[[], int],
    *,
    rate: float = 0,
    report: Callable[[Progress], None] = lambda progress: None,
    claim: Claim | None = None,
    trail: StoredTrail | None = None,
) -> Backup:
    """Store all pages that count as changed, and make the backup exist. What changes after its moment counts
    as changed afterwards. ``claim``: of the primary that ships these changes, which continue the backup.
    ``trail``: what is noted of the stored trail. UnreadableShard, BackupError and TargetError."""
    trail = trail or StoredTrail(files[0].path.parent)
    with repository.locked() as lock:
        began = time.monotonic()
        earliest = latest(repository) + 1  # should the clock have been ahead, this still becomes the newest
        upload = Upload(repository, len(files), rate, report)
        with upload.noting():
            upload.read(files, following)
            with one_moment(files) as connections:
                moment, sizes = max(earliest, now_ms()), [file.fixed_pages for file in files]
                upload.read_rest(files)
                counts = [_count(shard, each) for shard, each in enumerate(connections)]
                schema = max(each.execute("pragma user_version").fetchone()[0] for each in connections)
            following.check()
            upload.finish(sizes)
        made = Backup(
            id=id_of(moment),
            server=manifest.id,
            generation=manifest.generation,
            shards=manifest.shards,
            schema=schema,
            version=_version(),
            moment=moment,
            took_ms=int((time.monotonic() - began) * 1000),
            term=claim.term if claim else 0,
            counts=counts,
            bytes=0,
            new_bytes=0,
            packs=0,
            checksum="",
            trail=trail.store(repository),
            goes_on=claim is not None,
        )
        lock.check()
        if claim is not None:
            claim.check()
        upload.publish(made)
        return made


def live_files(folder: Path, manifest: Manifest) -> Iterator[LiveFile]:
    """The files of a data folder. UnreadableShard and DataFolderError."""
    for shard in range(manifest.shards):
        file = shard_file(folder, shard)
        if not file.exists() or not file.stat().st_size:
            raise DataFolderError(
                f"the data folder {folder} has no {file.name}: start its server once, or restore that file"
            )
        yield LiveFile(file)


def _count(shard: int, connection: sqlite3.Connection) -> Counts:
    return Counts(shard, *connection.execute(_COUNTS).fetchone())


class Upload:
    """Stores pages of files in packs, and notes where they are."""

    def __init__(
        self,
        repository: Repository,
        files: int,
        rate: float = 0,
        report: Callable[[Progress], None] = lambda progress: None,
    ) -> None:
        """``rate``: the most bytes to store in a second; 0: no limit."""
        self._repository, self._throttle, self._report = repository, Throttle(rate), report
        self._pages = _known_pages(repository)
        self._pages.forget_sparse()
        self._pages.files = [*self._pages.files[:files], *(FilePages(0) for _ in range(files))][:files]
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="bunqueue-backup")
        self._running: deque[Future[int]] = deque()
        self._is_there = {name for name, _ in self._pages.packs}  # packs that are stored
        self._bodies: list[bytes] = []  # of the pages of the newest pack, until it is sent
        self._stored = 0  # bytes
        self._done = self._total = 0
        self._noted_at = time.monotonic()
        self._noted = 0  # packs

    # -- reading ----------------------------------------------------------------------------------

    def read(self, files: Sequence[LiveFile], following: Following) -> None:
        """Store what has changed, until little is left."""
        for _ in range(ROUNDS):
            self._total = self._done + sum(file.changed for file in files)
            for number, file in enumerate(files):
                left = file.changed
                while left > 0:
                    following.check()
                    with file.fixed():
                        taken = file.take(min(left, PACK_PAGES))
                    left = left - len(taken) if taken else 0
                    self._add(number, file, taken)
            if sum(file.changed for file in files) <= FEW:
                return

    def read_rest(self, files: Sequence[LiveFile]) -> None:
        """Store all that has changed since, at the moment that is fixed."""
        for number, file in enumerate(files):
            while taken := file.take(PACK_PAGES):
                self._add(number, file, taken)

    def _add(self, file: int, live: LiveFile, taken: Sequence[tuple[int, bytes]]) -> None:
        """Store the pages that are not stored yet."""
        known = self._pages.files[file]
        if known.page_size != live.page_size:
            known = self._pages.files[file] = FilePages(live.page_size)
        for number, body in taken:
            sum_ = self._repository.sealer.page_sum(body)
            if not known.is_stored(number, sum_):
                if self._bodies and len(self._bodies[0]) != len(body):  # a pack has pages of one size
                    self._send()
                if not self._bodies:
                    self._pages.packs.append((secrets.token_hex(8), PACK_PAGES))
                known.put(number, sum_, Place(len(self._pages.packs) - 1, len(self._bodies)))
                self._bodies.append(body)
                if len(self._bodies) == PACK_PAGES:
                    self._send()
        self._done += len(taken)
        self._report(Progress(self._done, max(self._total, self._done), self._stored))

    # -- storing ----------------------------------------------------------------------------------

    def _send(self) -> None:
        """Have the newest pack stored by a thread."""
        self._settle(AT_ONCE - 1)
        name = self._pages.packs[-1][0]
        self._pages.packs[-1] = (name, len(self._bodies))
        self._running.append(self._pool.submit(self._store, name, b"".join(self._bodies)))
        self._bodies = []
        if time.monotonic() - self._noted_at > NOTE_S:
            self._settle(0)
            self._note()

    def _store(self, pack: str, body: bytes) -> int:
        name = f"{PACKS}{pack}"
        sealed = self._repository.sealer.seal(name, body)
        self._throttle.wait(len(sealed))
        size = self._repository.target.write(name, sealed)
        self._is_there.add(pack)
        return size

    def _settle(self, running: int) -> None:
        """Wait until at most that many packs are being stored."""
        while len(self._running) > running:
            self._stored += self._running.popleft().result()

    def _note(self) -> None:
        """Store where the pages are so far."""
        if len(self._is_there) > self._noted:
            self._repository.put_pages(UNFINISHED, self._pages)
        self._noted, self._noted_at = len(self._is_there), time.monotonic()

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Note what is stored if the block fails."""
        self._noted = len(self._is_there)
        try:
            yield
        except BaseException:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pages.keep_packs(self._is_there.__contains__)
            with suppress(TargetError):  # the block's own error says it
                self._note()
            raise
        finally:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def finish(self, sizes: Sequence[int]) -> None:
        """Wait until all is stored."""
        if self._bodies:
            self._send()
        self._settle(0)
        for file, size in zip(self._pages.files, sizes, strict=True):
            file.resize(size)
        self._pages.forget_unused()
        if missing := sum(len(file) - sum(file.uses().values()) for file in self._pages.files):
            raise BackupError(f"{missing:,} pages were not read: report this, and run it again")

    def publish(self, backup: Backup) -> None:
        """Make the backup exist."""
        backup.bytes = sum(len(file) * file.page_size for file in self._pages.files)
        backup.packs = len(self._pages.packs)
        backup.checksum, size = self._repository.put_pages(backup.id, self._pages)
        backup.new_bytes = self._stored + size
        self._repository.put_backup(backup)
        self._repository.target.remove(f"{PAGES}{UNFINISHED}")


def _version() -> str:
    try:
        return installed("bunqueue")
    except PackageNotFoundError:
        return ""


def _known_pages(repository: Repository) -> BackupPages:
    """Where the pages are that are stored already: those of an interrupted backup, or of the last one. What
    cannot be read is stored again."""
    for number in (UNFINISHED, *reversed(repository.ids())):
        try:
            found = repository.pages(number)
        except Missing:
            continue
        except TargetError:  # damaged: an older one may be whole
            continue
        stored = {name.removeprefix(PACKS) for name, _ in repository.target.names(PACKS)}
        found.keep_packs(stored.__contains__)
        return found
    return BackupPages()

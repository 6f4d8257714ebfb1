"""The pages of a shard's file, while its server writes to it.

SQLite writes changed pages into the log beside the file (``-wal``) and from there, at a checkpoint, into the
file. `LiveFile` learns from the log which pages have changed, and reads their content as it is at one moment.
It never writes, and keeps a transaction only for as long as one such read takes, so the log is not kept from
being reset. The formats are https://sqlite.org/walformat.html and https://sqlite.org/fileformat.html#walformat.
"""

from __future__ import annotations

import os
import sqlite3
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

from bunqueue.server.folder.unreadable import UnreadableShard

_INDEX = struct.Struct("=IIIBBHII8s8s8s")  # the head of the -shm file, which is there twice
_BACKFILLED = struct.Struct("=I")  # behind both: the frames that are in the file already
_FRAME = struct.Struct(">II8s8s")  # the head of a frame in the log
_TOUCH = "select count(*) from sqlite_schema"  # reads, which fixes a transaction's moment
_LOG_HEAD = 32  # bytes before the first frame
FOLLOW_S = 0.05  # between two looks at the log, in which the shard would have to write 32 MiB to be lost
LOCK_S = 0.1  # that a commit may have to wait for the moment of all shards
MOMENTS = 50  # attempts to find it
PAUSE_S = 0.05  # between two of them


class Head(NamedTuple):
    """What the index of the log says at one moment."""

    salt: bytes  # another one whenever the log begins anew
    frames: int
    pages: int
    backfilled: int


_NO_LOG = Head(b"none", 0, 0, 0)


class LiveFile:
    """Follows one file. Call `follow` at least every FOLLOW_S; `Following` does."""

    def __init__(self, path: Path) -> None:
        """Raises UnreadableShard."""
        self.path = path
        self.lost_track = 0  # how often all pages had to count as changed
        self._changed = bytearray()  # a flag for each page; the first is page 0, which does not exist
        self._from = 1  # no page before it has changed
        self._mutex = threading.Lock()
        self._salt = b""
        self._seen = 0  # frames of the log
        self._frame_of: dict[int, int] = {}  # the newest frame of a page in the log
        self._keeper: sqlite3.Connection | None = None
        self._files: list[FileIO] = []
        try:
            self._open()
        except (sqlite3.Error, OSError) as error:
            self.close()
            reason = error.strerror if isinstance(error, OSError) else error
            raise UnreadableShard(f"{path} cannot be read: {reason}") from error
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        path = self.path
        if os.geteuid() not in (0, path.stat().st_uid):
            raise UnreadableShard(f"{path} belongs to another user: run this as the server's user")
        # Open for as long as this object is: it keeps the log and its index where they are. The descriptors
        # are closed after it, as closing one ends all locks that this process has on its file.
        self._keeper = keeper = self._connect()
        mode = keeper.execute("pragma journal_mode").fetchone()[0]
        keeper.execute(_TOUCH).fetchone()
        self.page_size: int = keeper.execute("pragma page_size").fetchone()[0]
        if mode != "wal":  # a copy that no server has used yet: keep it from that
            keeper.execute("begin")
            keeper.execute(_TOUCH).fetchone()
        for suffix in ("", "-wal", "-shm") if mode == "wal" else ("",):
            self._files.append(FileIO(f"{path}{suffix}", "rb"))
        self._file = self._files[0].fileno()
        self._log, self._index = (file.fileno() for file in self._files[1:]) if mode == "wal" else (-1, -1)
        self.pages = self._head().pages or os.fstat(self._file).st_size // self.page_size
        self.fixed_pages = self.pages  # at the moment of `fixed`
        self.mark_all()
        self.follow()

    def _connect(self) -> sqlite3.Connection:
        uri = f"{self.path.absolute().as_uri()}?mode=rw"
        return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=5)

    def close(self) -> None:
        if self._keeper is not None:
            self._keeper.close()
        for file in self._files:
            file.close()

    @property
    def is_there(self) -> bool:
        """Whether the file is still the one that has this name."""
        try:
            found = os.stat(self.path)
        except OSError:
            return False
        return os.path.samestat(found, os.fstat(self._file))

    # -- following the log ------------------------------------------------------------------------

    def mark_all(self) -> None:
        """Let all pages count as changed."""
        with self._mutex:
            self._mark_all()

    def _mark_all(self) -> None:
        self._changed[:] = b"\1" * (self.pages + 1)
        self._changed[0], self._from = 0, 1

    @property
    def changed(self) -> int:
        """The number of pages that have changed since they were taken."""
        return self._changed.count(1)

    def follow(self) -> None:
        """Note the pages that have changed since the last call."""
        with self._mutex:
            self._follow()

    def _follow(self) -> Head:
        while True:
            head = self._head()
            self.pages = head.pages or self.pages
            if head.salt != self._salt:
                if self._salt:
                    self._finish_log()
                self._salt, self._seen, self._frame_of = head.salt, 0, {}
            if self._read_frames(head.frames):
                return head

    def _read_frames(self, last: int) -> bool:
        """Note the pages of the frames up to that one; False if the log has begun anew meanwhile."""
        while self._seen < last:
            page, salt = self._frame_head(self._seen + 1)
            if salt != self._salt:
                return False
            self._seen += 1
            self._frame_of[page] = self._seen
            self._mark(page)
        return True

    def _finish_log(self) -> None:
        """Note the pages of the last frames of a log that has begun anew."""
        while True:
            page, salt = self._frame_head(self._seen + 1)
            if salt != self._salt:
                break
            self._mark(page)
            self._seen += 1
        head = self._head()  # of now: more may be overwritten than before
        end = _LOG_HEAD + self._seen * (_FRAME.size + self.page_size)
        size = os.fstat(self._log).st_size
        is_cut = not salt and (size != end or self._seen == head.frames)
        has_missed = _count_of(head.salt) != (_count_of(self._salt) + 1) % (1 << 32)
        if is_cut or has_missed or self._seen < head.frames:  # what followed may be overwritten
            self.lost_track += 1
            self._mark_all()

    def _mark(self, page: int) -> None:
        if page >= len(self._changed):
            self._changed.extend(bytes(page + 1 - len(self._changed)))
        self._changed[page] = 1
        self._from = min(self._from, page)

    def _frame_head(self, frame: int) -> tuple[int, bytes]:
        """The page that a frame holds, and the salt of its log; (0, b"") behind the end."""
        body = os.pread(self._log, _FRAME.size, self._at(frame))
        if len(body) < _FRAME.size:
            return 0, b""
        page, _, salt, _ = _FRAME.unpack(body)
        return page, salt

    def _at(self, frame: int) -> int:
        return _LOG_HEAD + (frame - 1) * (_FRAME.size + self.page_size)

    def _head(self) -> Head:
        """The index says what is committed. Its writer changes both copies one after the other."""
        if self._index < 0:
            return _NO_LOG
        deadline = time.monotonic() + LOCK_S
        while True:
            body = os.pread(self._index, 2 * _INDEX.size + _BACKFILLED.size, 0)
            first, second = body[: _INDEX.size], body[_INDEX.size : 2 * _INDEX.size]
            if first == second and len(second) == _INDEX.size:
                break
            if time.monotonic() > deadline:
                raise UnreadableShard(f"{self.path} cannot be followed: {self.path.name}-shm is not whole")
        found: tuple[Any, ...] = _INDEX.unpack(first)
        (backfilled,) = _BACKFILLED.unpack_from(body, 2 * _INDEX.size)
        return Head(found[9], found[6], found[7], backfilled)

    # -- reading pages ----------------------------------------------------------------------------

    @contextmanager
    def fixed(self) -> Iterator[sqlite3.Connection]:
        """Fix the moment that `take` reads. Queries on the connection also see that moment."""
        reader = self._connect()
        try:
            reader.execute("begin")
            reader.execute(_TOUCH).fetchone()
            with self._mutex:
                head = self._follow()
                # A reader that began when all was in the file does not keep the log from beginning anew.
                self._frames = {} if head.backfilled >= head.frames else dict(self._frame_of)
                self.fixed_pages = self.pages
            yield reader
        except sqlite3.Error as error:
            raise UnreadableShard(f"{self.path} cannot be read: {error}") from error
        finally:
            reader.close()

    def take(self, most: int) -> list[tuple[int, bytes]]:
        """Up to that many of the changed pages, which count as unchanged from now on, in the moment that
        `fixed` has fixed."""
        numbers: list[int] = []
        with self._mutex:
            at = self._from
            while len(numbers) < most and (at := self._changed.find(1, at)) > 0:
                self._changed[at] = 0
                if at <= self.fixed_pages:
                    numbers.append(at)
                at += 1
            self._from = at if at > 0 else len(self._changed)
        return [(number, body) for run in _runs(numbers) for number, body in self._read(run)]

    def put_back(self, numbers: Sequence[int]) -> None:
        """Let pages that were taken count as changed again."""
        with self._mutex:
            for number in numbers:
                self._mark(number)

    def _read(self, run: range) -> Iterator[tuple[int, bytes]]:
        """Pages that follow each other."""
        size = self.page_size
        body = os.pread(self._file, len(run) * size, (run.start - 1) * size)
        for place, number in enumerate(run):
            frame = self._frames.get(number)
            if frame is None:
                yield number, body[place * size : (place + 1) * size].ljust(size, b"\0")
            else:
                yield number, os.pread(self._log, size, self._at(frame) + _FRAME.size)


def _count_of(salt: bytes) -> int:
    """How often the log has begun anew: its salt is that number and a random one."""
    return int.from_bytes(salt[:4])


def _runs(numbers: Sequence[int]) -> Iterator[range]:
    """Ascending numbers, as ranges."""
    first = last = 0
    for number in numbers:
        if number != last + 1 or not first:
            if first:
                yield range(first, last + 1)
            first = number
        last = number
    if first:
        yield range(first, last + 1)


class Following:
    """Follows files in a thread, while a block runs."""

    def __init__(self, files: Sequence[LiveFile]) -> None:
        self._files = files
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bunqueue-follow", daemon=True)
        self._error: Exception | None = None

    def __enter__(self) -> Following:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def check(self) -> None:
        """Raise what has gone wrong."""
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while not self._stopped.wait(FOLLOW_S):
            try:
                for file in self._files:
                    file.follow()
            except (UnreadableShard, OSError) as error:
                self._error = error
                return


@contextmanager
def one_moment(files: Sequence[LiveFile]) -> Iterator[list[sqlite3.Connection]]:
    """Fix the same moment in all files (`LiveFile.fixed`): between two commits of each, so that nothing is
    there of which the cause is not. Commits wait LOCK_S for it at most.

    Should the shards be too busy for that all the time, their moments lie some milliseconds apart, which a
    start on them evens out as after a power cut."""
    with ExitStack() as stack, ExitStack() as locks:
        for _ in range(MOMENTS):
            if _lock_all(files, locks):
                break
            locks.close()
            time.sleep(PAUSE_S)
        connections = [stack.enter_context(file.fixed()) for file in files]
        locks.close()
        yield connections


def _lock_all(files: Sequence[LiveFile], locks: ExitStack) -> bool:
    """Take the write lock of all files, or not all."""
    deadline = time.monotonic() + LOCK_S
    for file in files:
        lock = file._connect()
        locks.callback(lock.close)
        lock.execute("pragma busy_timeout = 0")
        while True:
            try:
                lock.execute("begin immediate")
                break
            except sqlite3.DatabaseError as error:
                if not isinstance(error, sqlite3.OperationalError):
                    raise UnreadableShard(f"{file.path} cannot be read: {error}") from error
                if time.monotonic() > deadline:
                    return False
                time.sleep(0.0005)
    return True

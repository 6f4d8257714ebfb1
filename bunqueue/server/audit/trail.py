"""Writes the trail of one process, and reads those of all.

Each process that clients reach appends to files of its own in the folder ``audit`` of the data folder:
``router-0.000001.jsonl``, and so on. A file that is full is followed by the next one; the oldest are removed
by age and size. Nothing is written before the first entry.

Nothing is written to what somebody else has made: a file that was replaced, cut or removed meanwhile is left
as it is, and the next one begins.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from math import inf
from pathlib import Path
from typing import NamedTuple

import msgspec

from bunqueue.logs import get_logger
from bunqueue.model.rights import Identity
from bunqueue.protocol.codes import Code
from bunqueue.server.settings.settings import Settings

from .entries import CONTINUES, LOST, START, Entry, first_broken, hash_in, line_of

FOLDER = "audit"
MAX_FILE = 4 * 1024 * 1024  # bytes
MANY = 1000  # entries of one identity in an hour
HOUR_MS = 3_600_000
AGAIN_S = 60.0  # between two entries about the same: a client in a loop must not push out all others
MAX_LATELY = 10_000  # of these that are remembered; then all are forgotten
MAX_FOREIGN = 100  # files of others that are passed by

BUSY = "busy-"  # the files with entries beyond MANY
STANDBY = "standby-"  # the files without it come from its primary

_NAME = re.compile(r"([a-z-]+(?:-[0-9]+)?)\.([0-9]{6,})\.jsonl")
_log = get_logger("audit")


class File(NamedTuple):
    """A file of the trail."""

    writer: str
    number: int
    path: Path


class Trail:
    """The trail of one process. A full disk stops nothing: entries are lost, and the log says so."""

    def __init__(self, settings: Settings, writer: str, *, is_busy: bool = False) -> None:
        self._settings, self._is_busy = settings, is_busy
        self._folder = None if settings.in_memory else Path(settings.data_dir, FOLDER)
        self._writer = writer
        if settings.follow and not is_busy:
            self._writer = f"{STANDBY}{writer}"
        self._max_age_s = settings.audit_max_age * 3600
        self._max_bytes = settings.audit_max_size * 1024 * 1024
        self._file: int | None = None  # its descriptor
        self._number, self._size, self._last = 0, 0, START
        self._lately: dict[tuple[str, str, str, str], float] = {}
        self._lost = 0  # entries that could not be written
        self._hour, self._counts = 0, Counter[str]()  # entries of each identity in this hour
        self._busy: Trail | None = None  # those beyond MANY

    def add(self, entry: Entry) -> None:
        """Append an entry."""
        if self._is_much(entry):
            self._busy = self._busy or Trail(self._settings, f"{BUSY}{self._writer}", is_busy=True)
            self._busy.add(entry)
        else:
            self._append(entry)

    def _is_much(self, entry: Entry) -> bool:
        """Whether there were many of the same identity within the hour.  Those beyond have files of their
        own, so that nobody can push out what others did."""
        hour, who = entry.at // HOUR_MS, entry.who or entry.address
        if hour != self._hour or len(self._counts) >= MAX_LATELY:
            self._hour, self._counts = hour, Counter()
        self._counts[who] += 1
        return self._counts[who] > MANY and not self._is_busy

    def _append(self, entry: Entry) -> None:
        if self._folder is None:
            return
        try:
            if self._file is None or self._size >= MAX_FILE or not self._is_as_left(self._folder):
                self._open(self._folder)
            lost = [Entry(at=ms(), what=LOST, count=self._lost, outcome="ok")] if self._lost else []
            self._write(*lost, entry)
            self._lost = 0
        except OSError as error:
            if not self._lost:
                _log.error(
                    "the trail cannot be written: what happens meanwhile is missing in it", error=str(error)
                )
            self._lost += 1
            if self._file is not None and not self._size:  # the next one has to begin it properly
                os.close(self._file)
                self._file = None

    def _write(self, *entries: Entry) -> None:
        """All of them, or none."""
        assert self._file is not None
        lines, last = b"", self._last
        for entry in entries:
            line, last = line_of(entry, last)
            lines += line
        if os.write(self._file, lines) < len(lines):  # the disk is full
            os.ftruncate(self._file, self._size)
            raise OSError("no room for a whole line")
        self._size, self._last = self._size + len(lines), last

    def add_once(self, entry: Entry) -> None:
        """Append an entry, unless the same client did the same within the last minute with that outcome."""
        now_s, key = time.time(), (entry.who, entry.address, entry.what, entry.outcome)
        if now_s < self._lately.get(key, 0.0) + AGAIN_S:
            return
        if len(self._lately) >= MAX_LATELY:
            self._lately.clear()
        self._lately[key] = now_s
        self.add(entry)

    def refused(self, who: Identity, address: str, over: str, what: str, request: str = "") -> None:
        """An identity may not use a command."""
        entry = Entry(at=ms(), who=who.name, namespace=who.namespace, what=what, outcome=Code.FORBIDDEN)
        entry.address, entry.over, entry.request = address, over, request
        self.add_once(entry)

    def wrong_tokens(self, address: str, over: str, count: int) -> None:
        """Wrong tokens were presented, the last of them from this address."""
        self.add(
            Entry(at=ms(), address=address, over=over, what="Auth", count=count, outcome=Code.INVALID_TOKEN)
        )

    def _path(self, folder: Path) -> Path:
        return folder / f"{self._writer}.{self._number:06}.jsonl"

    def _is_as_left(self, folder: Path) -> bool:
        """Whether the file is where it was, and nobody else has written to it or cut it."""
        assert self._file is not None
        own = os.fstat(self._file)
        try:
            there = os.lstat(self._path(folder))
        except FileNotFoundError:
            there = None
        if there is not None and os.path.samestat(there, own) and own.st_size == self._size:
            return True
        _log.error("a file of the trail was changed by something else", file=str(self._path(folder)))
        return False

    def _open(self, folder: Path) -> None:
        """Go on with the last file, or begin another."""
        folder.mkdir(mode=0o700, exist_ok=True)
        if self._file is None:
            self._continue(folder)
        else:
            os.close(self._file)
            self._file, self._size = None, MAX_FILE
        if self._size >= MAX_FILE or not self._number:
            self._number, self._size = self._number + 1, 0
        self._file = self._own_file(folder)
        old = self._old(folder)
        if old or (self._number > 1 and not self._size):
            on = {"after": self._last, **({"removed": old[-1].number} if old else {})}
            self._write(Entry(at=ms(), what=CONTINUES, on=on, outcome="ok"))
        for file in old:
            with suppress(FileNotFoundError):
                file.path.unlink()

    def _own_file(self, folder: Path) -> int:
        """Open the file with the next number. What somebody else has put there is left alone."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        for _ in range(MAX_FOREIGN):
            with suppress(OSError) if os.path.lexists(self._path(folder)) else nullcontext():
                file = os.open(self._path(folder), flags, 0o600)
                status = os.fstat(file)
                if stat.S_ISREG(status.st_mode) and status.st_size == self._size:
                    return file
                os.close(file)
            _log.error("something else is where a file of the trail should be", file=str(self._path(folder)))
            self._number, self._size = self._number + 1, 0
        raise OSError(f"the files of {folder} are not ours")

    def _continue(self, folder: Path) -> None:
        own = [file for file in files_in(folder) if file.writer == self._writer]
        if not own:
            return
        self._number = own[-1].number
        lines = own[-1].path.read_bytes().splitlines(keepends=True)
        if lines and not lines[-1].endswith(b"\n"):  # after a power cut
            os.truncate(own[-1].path, sum(map(len, lines[:-1])))
            del lines[-1]
        self._size = sum(map(len, lines))
        if not lines and len(own) > 1:  # the disk was full when it began
            lines = own[-2].path.read_bytes().splitlines(keepends=True)
        if lines:
            self._last = hash_in(lines[-1])

    def _old(self, folder: Path) -> list[File]:
        """The files that are too old, or too much."""
        own = [file for file in files_in(folder) if file.writer == self._writer]
        found = [(file, file.path.stat()) for file in own if file.number < self._number]
        size, now_s = self._size + sum(status.st_size for _, status in found), time.time()
        old: list[File] = []
        for file, status in found:
            if size <= self._max_bytes and status.st_mtime >= now_s - self._max_age_s:
                break
            size -= status.st_size
            old.append(file)
        return old


def ms() -> int:
    """The wall clock, epoch ms."""
    return time.time_ns() // 1_000_000


def files_in(folder: Path) -> list[File]:
    """The files of a trail, by writer and number; nothing that is no ordinary file."""
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        found = [
            (match, Path(entry))
            for entry in entries
            if (match := _NAME.fullmatch(entry.name)) and entry.is_file(follow_symlinks=False)
        ]
        return sorted(File(match[1], int(match[2]), path) for match, path in found)
    return []


def is_file_name(name: str) -> bool:
    """Whether a file of a trail may have that name."""
    return _NAME.fullmatch(name) is not None


class Wanted(NamedTuple):
    """Which entries are wanted: of an identity or address; with each of these words as command, queue or
    other value, or as the id of the request; not older than a moment and not newer than another (epoch
    ms)."""

    who: str = ""
    what: tuple[str, ...] = ()
    since: float = 0
    until: float = inf

    def fits(self, entry: Entry) -> bool:
        """Whether this is one."""
        told = {entry.what, entry.outcome, entry.request, *map(str, entry.on.values())}
        return (
            self.since <= entry.at <= self.until
            and (not self.who or self.who in (entry.who, entry.address))
            and told.issuperset(self.what)
        )


def latest(data_dir: str, wanted: Wanted, limit: int) -> list[Entry]:
    """The newest entries that are wanted, oldest first. Reads no more files than needed."""
    found: list[Entry] = []
    files = files_in(Path(data_dir, FOLDER))
    for writer in dict.fromkeys(file.writer for file in files):
        own: list[Entry] = []
        for file in reversed([file for file in files if file.writer == writer]):
            entries = [entry for entry in _entries(_bytes(file.path)) if wanted.fits(entry)]
            own = entries + own
            if len(own) >= limit or (not entries and _is_before(file.path, wanted.since)):
                break
        found += own
    return sorted(found, key=lambda entry: entry.at)[-limit:]


def _is_before(path: Path, since: float) -> bool:
    try:
        return path.stat().st_mtime * 1000 < since
    except FileNotFoundError:
        return True


class Follower:
    """Reads what is appended to a trail."""

    def __init__(self, data_dir: str) -> None:
        self._folder = Path(data_dir, FOLDER)
        self._read = {file.path: file.path.stat().st_size for file in files_in(self._folder)}

    def new(self) -> list[Entry]:
        """The entries since the last call."""
        return sorted(_entries(b"".join(self.lines())), key=lambda entry: entry.at)

    def lines(self) -> list[bytes]:
        """The lines since the last call, those of each process in their order."""
        found: list[bytes] = []
        files = files_in(self._folder)
        for file in files:
            start = self._read.get(file.path, 0)
            text = _bytes(file.path, start)
            whole = text[: text.rfind(b"\n") + 1]
            self._read[file.path] = start + len(whole)
            found += whole.splitlines(keepends=True)
        there = {file.path for file in files}
        self._read = {path: size for path, size in self._read.items() if path in there}
        return found


def _bytes(path: Path, start: int = 0) -> bytes:
    try:
        with open(path, "rb") as file:
            file.seek(start)
            return file.read()
    except FileNotFoundError:  # it has just been removed by age
        return b""


_decode = msgspec.json.Decoder(Entry).decode


def _decoded(line: bytes) -> Entry | None:
    """The entry of a line; None if there is no entry in it."""
    try:
        return _decode(line)
    except (msgspec.MsgspecError, ValueError):
        return None


def _entries(text: bytes) -> Iterator[Entry]:
    """The entries of whole lines, but those that are about the files only."""
    for line in text.splitlines():
        entry = _decoded(line)
        if entry is not None and entry.what != CONTINUES:
            yield entry


def entries_as_json(data_dir: str, name: str) -> str:
    """The entries of one file as a JSON list, without lines that are no entries."""
    lines = _bytes(Path(data_dir, FOLDER, name)).splitlines()
    found = [line for line in lines if (entry := _decoded(line)) is not None and entry.what != CONTINUES]
    return f"[{b','.join(found).decode()}]"


def problems_in(data_dir: str) -> tuple[int, list[str]]:
    """The number of files, and what is wrong with them: the first line of each that does not follow."""
    files = files_in(Path(data_dir, FOLDER))
    problems: list[str] = []
    for writer in dict.fromkeys(file.writer for file in files):
        problems += _problems_of([file for file in files if file.writer == writer])
    return len(files), problems


def _problems_of(files: list[File]) -> Iterator[str]:
    """What is wrong with the files of one writer."""
    number, last, removed, first = 0, START, 0, files[0]
    for file in files:
        lines = _bytes(file.path).splitlines(keepends=True)
        if file is files[-1] and lines and not lines[-1].endswith(b"\n"):
            del lines[-1]  # it is just being written, or was when the power was cut
        said = [entry.on for line in lines if CONTINUES.encode() in line and (entry := _decoded(line))]
        if file.number != number + 1:
            if number:
                yield f"{file.path}: the file before it is missing"
            last = str(said[0].get("after", "")) if said else ""
        removed = max([removed, *(found for on in said if isinstance(found := on.get("removed"), int))])
        broken, last = first_broken(lines, last)
        if broken is not None:
            yield f"{file.path}, line {broken}: was changed, or a line before it is missing"
        number = file.number
    if removed < first.number - 1:
        yield f"{first.path}: the file before it is missing, and was not removed by age or size"

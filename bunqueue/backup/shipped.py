"""What has changed since a backup: an object for each moment, with the pages that changed since the last.

    shipped/BACKUP/NUMBER-MOMENT

Numbers begin at 1 and have no gaps, so what is missing is noticed, and what follows it is not used. If it was
not known whether one was stored, there may be two of a number: the later one has all that is in the other.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from bunqueue.server.folder.data_folder import shard_file

from .pages import PAGE_SIZES
from .primary import read_primary
from .repository import SHIPPED, Backup, Repository, id_of, ms_of
from .sealing import Damaged
from .trail import Appended, append

NUMBER = 4  # bytes of a page's number
MOST_PAGES = (1 << 32) - 2  # that a file of SQLite has at most


class ChangedFile(msgspec.Struct):
    """The pages of one file that have changed."""

    pages: int  # of the whole file, then
    page_size: int
    numbers: bytes  # of the pages, little-endian, 4 bytes each
    bodies: bytes


class Changes(msgspec.Struct):
    """What is in such an object: each file as it was at about that moment, epoch ms."""

    moment: int
    files: list[ChangedFile]
    trail: list[Appended] = []


class Segment(NamedTuple):
    """Such an object."""

    number: int
    moment: str  # an id as of a backup
    name: str


def number_of(name: str) -> int:
    """The number of the segment of that name; 0 if it is none."""
    text = name.rpartition("/")[2].partition("-")[0]
    return int(text) if text.isascii() and text.isdecimal() else 0


def changed_file(pages: int, page_size: int, taken: Sequence[tuple[int, bytes]]) -> ChangedFile:
    numbers = b"".join(number.to_bytes(NUMBER, "little") for number, _ in taken)
    return ChangedFile(pages, page_size, numbers, b"".join(body for _, body in taken))


def ship(repository: Repository, base: str, number: int, changes: Changes) -> int:
    """Store changes as the segment of that number; returns the size of the object."""
    name = f"{SHIPPED}{base}/{number:08}-{id_of(changes.moment)}"
    return repository.target.write(name, repository.sealer.seal(name, msgspec.msgpack.encode(changes)))


def segments_of(
    repository: Repository, base: str, until: str | None = None, after: str = ""
) -> list[Segment]:
    """The segments of a backup, as far as none is missing; ``until``: those that are not later; ``after``:
    those that come after the one of that name."""
    found: list[Segment] = []
    last = number_of(after)
    for name, _ in sorted(repository.target.names(f"{SHIPPED}{base}/", after)):
        number, moment = number_of(name), name.rpartition("-")[2]
        if number not in (last, last + 1) or not number or (until is not None and moment > until):
            break
        found.append(Segment(number, moment, name))
        last = number
    return found


def changes_since(repository: Repository, backup: Backup, until: str | None = None) -> list[Segment]:
    """The segments of a backup that count; ``until``: as for `segments_of`."""
    if not backup.goes_on:
        return []
    return segments_of(repository, backup.id, _end(repository, backup, until))


def check_gapless(repository: Repository, backup: Backup, until: str | None = None) -> None:
    """Damaged if a segment of a backup is missing and later ones, which count, cannot be used."""
    there = [name for name, _ in repository.target.names(f"{SHIPPED}{backup.id}/")]
    segments = changes_since(repository, backup, until)  # afterwards: what was stored meanwhile is no gap
    end = _end(repository, backup, until)
    last, moment = (segments[-1].number, segments[-1].moment) if segments else (0, backup.id)
    later = [each for each in there if number_of(each) > last]
    lost = sum(1 for each in later if end is None or each.rpartition("-")[2] <= end)
    if lost:
        raise Damaged(
            f"{repository.target.where} has no {SHIPPED}{backup.id}/{last + 1:08}, so {lost:,} after it "
            f"cannot be used: what comes before is restored with --at {moment}"
        )


def _end(repository: Repository, backup: Backup, until: str | None) -> str | None:
    """The last moment, as an id, until which segments of a backup are wanted and count; None: all do."""
    last = read_primary(repository)[0].last_of(backup.term)
    return min((each for each in (until, id_of(last) if last else None) if each), default=None)


def until(repository: Repository, backup: Backup) -> int | None:
    """The last moment that is shipped, epoch ms; None if a backup does not go on."""
    if not backup.goes_on:
        return None
    segments = changes_since(repository, backup)
    return ms_of(segments[-1].moment) if segments else backup.moment


def latest(repository: Repository) -> int:
    """The newest moment that is stored and counts, epoch ms; 0 without backups."""
    found = 0
    primary, _ = read_primary(repository)
    for number in reversed(repository.ids()):
        moment, last = ms_of(number), None
        with suppress(Damaged):
            backup = repository.backup(number)
            if not primary.counts(backup.term, moment):
                continue
            last = until(repository, backup)
        found = max(found, moment, last or 0)
        if last is not None:
            break
    return found


def read(repository: Repository, segment: Segment, shards: int) -> Changes:
    """What a segment holds, of so many files. Damaged."""
    return decoded(repository.read(segment.name), segment.name, shards)


def decoded(body: bytes, name: str, shards: int) -> Changes:
    """Changes of so many files, of which all numbers are within their bounds. Damaged."""
    try:
        found = msgspec.msgpack.decode(body, type=Changes)
    except msgspec.DecodeError as error:
        raise Damaged(f"{name} is damaged: {error}") from error
    if len(found.files) != shards:
        raise Damaged(f"{name} has changes of {len(found.files)} files, and there are {shards}")
    for file in found.files:
        numbers, rest = divmod(len(file.numbers), NUMBER)
        if file.page_size not in PAGE_SIZES or rest or len(file.bodies) != numbers * file.page_size:
            raise Damaged(f"{name} is damaged: its pages do not fit their numbers")
        if file.pages > MOST_PAGES or any(not 1 <= each <= file.pages for each in numbers_of(file)):
            raise Damaged(f"{name} is damaged: it has pages beyond the end of a file")
    return found


def apply(repository: Repository, segments: Sequence[Segment], backup: Backup, folder: Path) -> None:
    """Bring the files of a backup forward to the moment of the last segment. Damaged, OSError."""
    with opened(folder, backup.shards) as files:
        before = backup.id
        for segment in segments:
            try:
                changes = read(repository, segment, backup.shards)
            except Damaged as error:
                raise Damaged(f"{error}; what comes before is restored with --at {before}") from error
            before = segment.moment
            write(changes, files)
            append(changes.trail, folder)


@contextmanager
def opened(folder: Path, shards: int) -> Iterator[list[int]]:
    """The files of a folder, for `write`; they are flushed afterwards."""
    files: list[int] = []
    try:
        for path in (shard_file(folder, shard) for shard in range(shards)):
            files.append(os.open(path, os.O_RDWR))  # noqa: PERF401  # those before are closed if one fails
        yield files
        for descriptor in files:
            os.fsync(descriptor)
    finally:
        for descriptor in files:
            os.close(descriptor)


def write(changes: Changes, files: Sequence[int]) -> None:
    """Write changed pages into files. Doing it twice does no harm."""
    for descriptor, changed in zip(files, changes.files, strict=True):
        size = changed.page_size
        for place, number in enumerate(numbers_of(changed)):
            os.pwrite(descriptor, changed.bodies[place * size : (place + 1) * size], (number - 1) * size)
        os.ftruncate(descriptor, changed.pages * size)


def numbers_of(file: ChangedFile) -> list[int]:
    """The numbers of the pages, from 1 on."""
    column = file.numbers
    return [int.from_bytes(column[at : at + NUMBER], "little") for at in range(0, len(column), NUMBER)]

"""Where the pages of a backup's files are: for each page its checksum, the pack that holds it, and its place
there.

A backup stores only pages that differ from those of the backup before it. All others stay where they are, so
each backup is complete on its own, and any of them can be removed.
"""

from __future__ import annotations

import sys
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

PAGE_SIZES = frozenset(1 << bits for bits in range(9, 17))  # that SQLite has: 512 bytes to 64 KiB
SUM = 8  # bytes of a page's checksum
NOWHERE = 0xFFFFFFFF  # instead of a pack: the page is not stored yet
WORTH = 4  # a pack stays in use while one of so many of its pages is; then those are stored again


class StoredFile(msgspec.Struct):
    """The pages of one file, as columns of little-endian numbers."""

    page_size: int
    sums: bytes
    packs: bytes
    places: bytes


class StoredPages(msgspec.Struct):
    """All pages of a backup. A pack is known by its name, and has a number of pages."""

    packs: list[tuple[str, int]]
    files: list[StoredFile]


class Place(NamedTuple):
    """A page of a pack."""

    pack: int
    place: int


class FilePages:
    """The pages of one file. Pages are counted from 1."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self._sums = bytearray()
        self._packs = array("I")
        self._places = array("H")

    def __len__(self) -> int:
        return len(self._packs)

    def resize(self, pages: int) -> None:
        """Let the file have that many pages."""
        more = pages - len(self._packs)
        if more > 0:
            self._sums.extend(bytes(SUM * more))
            self._packs.extend([NOWHERE] * more)
            self._places.extend([0] * more)
        else:
            del self._sums[SUM * pages :]
            del self._packs[pages:], self._places[pages:]

    def is_stored(self, number: int, sum_: bytes) -> bool:
        """Whether a page with that checksum is stored as this page."""
        at = number - 1
        return (
            at < len(self._packs)
            and self._packs[at] != NOWHERE
            and self._sums[SUM * at : SUM * number] == sum_
        )

    def put(self, number: int, sum_: bytes, place: Place) -> None:
        if number > len(self._packs):
            self.resize(number)
        self._sums[SUM * (number - 1) : SUM * number] = sum_
        self._packs[number - 1], self._places[number - 1] = place

    def sum_of(self, number: int) -> bytes:
        return bytes(self._sums[SUM * (number - 1) : SUM * number])

    def stored(self) -> Iterator[tuple[int, Place]]:
        """The pages that are stored, and where."""
        for at, pack in enumerate(self._packs):
            if pack != NOWHERE:
                yield at + 1, Place(pack, self._places[at])

    def uses(self) -> Counter[int]:
        """How many pages are in each pack."""
        found = Counter(self._packs)
        found.pop(NOWHERE, None)
        return found

    def renumber(self, numbers: dict[int, int]) -> None:
        """Give packs other numbers. Pages of packs without one are not stored any more."""
        self._packs = array("I", [numbers.get(pack, NOWHERE) for pack in self._packs])

    def columns(self) -> StoredFile:
        return StoredFile(self.page_size, bytes(self._sums), _little(self._packs), _little(self._places))

    @classmethod
    def of(cls, stored: StoredFile) -> FilePages:
        """From its columns. ValueError if they do not fit each other."""
        is_begun = stored.page_size or stored.sums  # an interrupted backup has files that it has not begun
        if is_begun and stored.page_size not in PAGE_SIZES:
            raise ValueError(f"a file has pages of {stored.page_size} bytes")
        made = cls(stored.page_size)
        made._sums = bytearray(stored.sums)
        for column, content in ((made._packs, stored.packs), (made._places, stored.places)):
            column.frombytes(content)
            if sys.byteorder == "big":
                column.byteswap()
        if not len(made._packs) == len(made._places) == len(made._sums) / SUM:
            raise ValueError("the columns of a file have several lengths")
        return made


def _little(column: array[int]) -> bytes:
    if sys.byteorder == "big":
        column = column[:]
        column.byteswap()
    return column.tobytes()


class BackupPages:
    """The pages of all files of a backup."""

    def __init__(
        self, packs: list[tuple[str, int]] | None = None, files: list[FilePages] | None = None
    ) -> None:
        self.packs = packs or []
        self.files = files or []

    def forget_sparse(self) -> None:
        """Forget packs of which few pages are used, so that those are stored again and the packs can go."""
        uses = self._uses()
        self._keep([number for number, (_, size) in enumerate(self.packs) if uses[number] * WORTH >= size])

    def forget_unused(self) -> None:
        """Forget packs of which no page is used."""
        uses = self._uses()
        self._keep([number for number in range(len(self.packs)) if uses[number]])

    def keep_packs(self, is_there: Callable[[str], bool]) -> None:
        """Forget all other packs."""
        self._keep([number for number, (name, _) in enumerate(self.packs) if is_there(name)])

    def _uses(self) -> Counter[int]:
        return sum((file.uses() for file in self.files), Counter())

    def _keep(self, kept: list[int]) -> None:
        if len(kept) < len(self.packs):
            numbers = {old: new for new, old in enumerate(kept)}
            self.packs = [self.packs[old] for old in kept]
            for file in self.files:
                file.renumber(numbers)

    def encoded(self) -> bytes:
        return msgspec.msgpack.encode(StoredPages(self.packs, [file.columns() for file in self.files]))

    @classmethod
    def decoded(cls, body: bytes) -> BackupPages:
        """Decode what `encoded` made. Raises ValueError for anything else."""
        stored = msgspec.msgpack.decode(body, type=StoredPages)
        for name, _ in stored.packs:
            if not name.isalnum():  # it becomes a part of a path
                raise ValueError(f"a pack has the name {name[:64]!r}")
        made = cls(stored.packs, [FilePages.of(each) for each in stored.files])
        for file in made.files:
            for pack in file.uses():
                if pack >= len(made.packs):
                    raise ValueError("a page is in a pack that is not listed")
        return made

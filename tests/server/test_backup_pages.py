"""Others may write to the place of a backup: names and sizes that are stored there are checked."""

from __future__ import annotations

import msgspec
import pytest

from bunqueue.backup.pages import BackupPages, StoredFile, StoredPages


def stored(pack: str, page_size: int) -> bytes:
    file = StoredFile(page_size, bytes(8), bytes(4), bytes(2))
    return msgspec.msgpack.encode(StoredPages([(pack, 1)], [file]))


def test_names_and_sizes_that_no_backup_has_are_refused() -> None:
    assert len(BackupPages.decoded(stored("0f3a", 4096)).files) == 1
    for pack in ("../../etc/passwd", "/dev/zero", "", "."):
        with pytest.raises(ValueError, match="a pack has the name"):
            BackupPages.decoded(stored(pack, 4096))
    for page_size in (-4096, 0, 1000, 1 << 40):
        with pytest.raises(ValueError, match="a file has pages of"):
            BackupPages.decoded(stored("0f3a", page_size))

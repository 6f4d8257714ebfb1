"""Makes the files of a backup again, in a folder."""

from __future__ import annotations

import os
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bunqueue.server.folder.data_folder import FORMAT, Manifest, private, save_manifest, shard_file, sync
from bunqueue.server.folder.shard_file import KEPT_FREE
from bunqueue.server.folder.unreadable import NoRoom

from .repository import PACKS, Backup, Repository
from .sealing import Damaged

FEW = 16  # packs: too little to be worth an estimate
AT_ONCE = 4  # packs that are read at the same time


def check_room(size: int, folder: Path) -> None:
    """NoRoom if a folder's disk has no room for files of that size."""
    free = shutil.disk_usage(folder).free
    if size + KEPT_FREE > free:
        raise NoRoom(
            f"{folder} has {free / 1e6:,.0f} MB left, and the files need {(size + KEPT_FREE) / 1e6:,.0f} MB: "
            "make room, or give a folder on another disk"
        )


def fetch_seconds(repository: Repository, backup: Backup) -> float | None:
    """About how long `fetch` takes, as measured on one pack; None if there are few."""
    packs = repository.pages(backup.id, backup.checksum).packs
    if len(packs) < FEW:
        return None
    began = time.monotonic()
    repository.read(f"{PACKS}{packs[0][0]}")
    return (time.monotonic() - began) * len(packs) / AT_ONCE


def fetch(
    repository: Repository,
    backup: Backup,
    folder: Path,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Make the files of a backup in an existing folder, and at last its manifest; as `fetch_files`."""
    fetch_files(repository, backup, folder, report)
    shards = list(range(backup.shards))
    save_manifest(folder, Manifest(FORMAT, backup.shards, backup.server, backup.generation, shards))
    sync(folder)


def fetch_files(
    repository: Repository,
    backup: Backup,
    folder: Path,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Make the files of a backup in an existing folder. Each page is compared with its checksum. ``report``
    gets the number of packs read, and of all packs. TargetError and NoRoom."""
    pages = repository.pages(backup.id, backup.checksum)
    if len(pages.files) != backup.shards:
        raise Damaged(f"backup {backup.id} has {len(pages.files)} files, and {backup.shards} shards")
    wanted: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for number, file in enumerate(pages.files):
        for page, place in file.stored():
            wanted[place.pack].append((number, page, place.place))
    with _explaining(folder), ExitStack() as stack:
        files = []
        for shard, file in enumerate(pages.files):
            made = stack.enter_context(open(shard_file(folder, shard), "wb", opener=private))
            made.truncate(len(file) * file.page_size)
            files.append(made.fileno())

        def read(pack: int) -> None:
            name = f"{PACKS}{pages.packs[pack][0]}"
            body = repository.read(name)
            for number, page, place in wanted[pack]:
                file = pages.files[number]
                size = file.page_size
                content = body[place * size : (place + 1) * size]
                if repository.sealer.page_sum(content) != file.sum_of(page):
                    raise Damaged(f"{name} has another page {page} of shard {number} than the backup")
                os.pwrite(files[number], content, (page - 1) * size)

        pool = stack.enter_context(ThreadPoolExecutor(AT_ONCE))
        try:
            for done, _ in enumerate(pool.map(read, wanted), 1):
                report(done, len(wanted))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
        for descriptor in files:
            os.fsync(descriptor)


@contextmanager
def _explaining(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        text = f"{folder} cannot be written to: {error.strerror}; make room, or give another folder"
        raise NoRoom(text) from error

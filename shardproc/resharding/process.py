"""The process that reshards: what it checks, in which order, and what it prints.

``python -m shardproc.resharding FOLDER SHARDS [--dry-run]``; `bunqueue reshard` has checked the arguments.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from rich.filesize import decimal

from bunqueue.server.folder.data_folder import (
    NAME,
    DataFolderError,
    Manifest,
    check_places,
    is_resharded,
    own_data_folder,
    read_identified,
    refuse,
    shards_of,
)
from bunqueue.text import printable

from . import swap
from .build import build
from .errors import UNCHANGED, ReshardError
from .inventory import Inventory, Report

FAILED, INTERRUPTED = 1, 130
DRY_RUN = "--dry-run"
SPARE = 1.1  # new files take about as much as the old ones; renumbered jobs have one more index entry
EMPTY_BYTES = 256 * 1024  # of a file without jobs
REPORT_S = 1.0  # between two lines about the progress


def main(arguments: Sequence[str]) -> int:
    """Run it; returns the exit status."""
    folder, shards, *flags = arguments
    os.umask(0o077)
    try:
        reshard(Path(folder), int(shards), dry_run=DRY_RUN in flags)
    except (DataFolderError, ReshardError) as error:
        return _refuse(str(error), FAILED)
    except OSError as error:
        return _refuse(f"the data folder {folder}: {error}; {_what_now(Path(folder))}", FAILED)
    except KeyboardInterrupt:
        return _refuse(f"interrupted; {_what_now(Path(folder))}", INTERRUPTED)
    return 0


def reshard(folder: Path, new: int, *, dry_run: bool) -> None:
    """Turn ``folder`` into one for ``new`` shards. DataFolderError, ReshardError or OSError if that is not
    possible."""
    shards_of(folder)  # before `own_data_folder` could make a folder
    _check_user(folder)
    report = _Report()
    with own_data_folder(folder):
        if is_resharded(folder):
            if dry_run:
                refuse(folder, f"has an interrupted reshard: run it again without {DRY_RUN} to finish it")
            change = swap.finish(folder)
            print(f"finished an interrupted reshard from {change.old} to {change.new} shards")
            if change.new == new:
                return
        old = shards_of(folder)
        if old == new:
            refuse(folder, f"is made for {new} shards already; start the server with --shards {new}")
        manifest = read_identified(folder)
        if manifest.store:
            refuse(
                folder,
                "belongs to a store, which has its number of shards for ever: take the jobs out of it with "
                "bunqueue store leave, change the number, and make another store",
            )
        check_places(folder, manifest)
        with Inventory(folder, old, new, report) as inventory:
            _show(folder, inventory)
            _check_space(folder, inventory)
            if dry_run:
                print(f"{UNCHANGED} ({DRY_RUN})")
                return
            _change(folder, inventory, manifest.resharded(new), report)


def _change(folder: Path, inventory: Inventory, manifest: Manifest, report: Report) -> None:
    begun = time.monotonic()
    try:
        build(swap.begin(folder), inventory, manifest, report)
        swap.complete(folder, inventory.old, manifest)
    except BaseException:
        swap.give_up(folder)
        raise
    swap.finish(folder)
    took = time.monotonic() - begun
    with suppress(OSError):  # standard output is closed
        print(f"done in {took:.1f} s; start the server with --shards {inventory.new}", flush=True)


def _check_user(folder: Path) -> None:
    """Refuse to run as another user than the server, which must be able to open the new files."""
    owner = (folder / NAME).stat().st_uid
    if owner != os.geteuid():
        refuse(folder, f"belongs to user {owner}; run this as that user, like the server; {UNCHANGED}")


def _check_space(folder: Path, inventory: Inventory) -> None:
    """Check that there is room for the new files, as the old ones stay until those are whole."""
    size = sum(source.size() for source in inventory.sources)
    needed, free = int(size * SPARE) + inventory.new * EMPTY_BYTES, shutil.disk_usage(folder).free
    print(f"needs {decimal(needed)} of the {decimal(free)} that are free on the disk")
    if needed > free:
        raise ReshardError(f"too little space: free {decimal(needed - free)} on the disk; {UNCHANGED}")


def _show(folder: Path, inventory: Inventory) -> None:
    """Print what each shard will have, and how much of that comes from another one."""
    print(f"{folder}: from {inventory.old} to {inventory.new} shards, {inventory.jobs:,} jobs")
    print(f"{'':6}{'has then':^34}{'of these from elsewhere':^34}")
    line = "{:>5} {:>9} {:>13} {:>10} {:>9} {:>13} {:>10}".format
    print(line("shard", "queues", "jobs", "payload", "queues", "jobs", "payload"))
    for number, share in enumerate(inventory.shares):
        now = f"{share.queues:,}", f"{share.jobs:,}", decimal(share.bytes)
        moved = f"{share.moved_queues:,}", f"{share.moved_jobs:,}", decimal(share.moved_bytes)
        print(line(number, *now, *moved))


class _Report:
    """Prints the progress from time to time."""

    def __init__(self) -> None:
        self._next = time.monotonic() + REPORT_S

    def __call__(self, progress: str) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + REPORT_S
            print(progress, file=sys.stderr, flush=True)


def _what_now(folder: Path) -> str:
    if is_resharded(folder):
        return "the new files are whole: run bunqueue reshard again to put them in place"
    return UNCHANGED


def _refuse(text: str, status: int) -> int:
    sys.stdout.flush()
    print("bunqueue:", printable(" ".join(text.split())), file=sys.stderr)
    return status

"""``python -m shardproc.repair FOLDER``: makes new files from what can be read of damaged ones, and fixes
contradictions in the others.

The server must not run. In a file that is whole, only rows that contradict each other are fixed. For a
damaged one a new file is made in the folder `REPAIR`, checked, and flushed; then a note marks it as ready.
After that it takes the place of the old one, however often that is interrupted. The old file is kept beside
it. Writes a JSON object for each shard that was changed, or that has contradictions left; if it cannot be
done, one line for people on standard error says why.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec
from rich.filesize import decimal

from bunqueue.model.ids import MAX_SHARDS
from bunqueue.server.folder.data_folder import (
    REPAIR,
    DataFolderError,
    is_resharded,
    own_data_folder,
    read_manifest,
    read_whole,
    refuse,
    shard_file,
    sync,
    write_whole,
)
from bunqueue.server.host.lifeline import end_with_parent
from bunqueue.text import printable
from shardproc.storage.database import DatabaseError
from shardproc.storage.repair.contradictions import fix_contradictions
from shardproc.storage.repair.recount import damage_of
from shardproc.storage.repair.salvage import Salvaged, salvage

FAILED = 1
SPARE = 1.1  # a new file takes about as much as what can be read of the old one
COPIES = 3  # a file with a damaged header is copied before it is read
READY = "ready.json"  # once this exists, the new file counts


class Ready(msgspec.Struct):
    """A new file is whole and waits to take its place."""

    shard: Annotated[int, msgspec.Meta(ge=0, lt=MAX_SHARDS)]
    kept_as: Annotated[str, msgspec.Meta(pattern=r"^shard-\d\d\.db\.damaged-[\d-]+$")]  # the old file's name
    salvaged: Salvaged


def main(folder: Path) -> int:
    """Run it; returns the exit status."""
    os.umask(0o077)
    try:
        manifest = read_manifest(folder)
        if manifest.store:
            refuse(
                folder,
                "belongs to a store, which has the jobs: remove a damaged file, and the next start builds it "
                "again; nothing was changed",
            )
        shards = manifest.shards
        with own_data_folder(folder):
            if is_resharded(folder):
                refuse(folder, "has an interrupted reshard: run bunqueue reshard again to finish it")
            _finish(folder)
            for shard in range(shards):
                _repair(folder, shard)
            with suppress(OSError):
                (folder / REPAIR).rmdir()
    except (DataFolderError, OSError, DatabaseError) as error:
        print(printable(str(error)), file=sys.stderr)
        return FAILED
    return 0


def _repair(folder: Path, shard: int) -> None:
    file, place = shard_file(folder, shard), folder / REPAIR
    if not file.exists():
        return
    if damage_of(file) is None:
        _fix_contradictions(file, shard)
        return
    _report(f"shard {shard}: {file.name} is damaged, reading what can be read")
    _check_space(folder, file)
    shutil.rmtree(place, ignore_errors=True)  # of an interrupted run
    place.mkdir(mode=0o700)
    made = place / file.name
    salvaged = salvage(file, made, lambda text: _report(f"shard {shard}: {text}"))
    if problem := damage_of(made):
        raise DataFolderError(f"{made} is not whole ({problem}); nothing was changed")
    sync(place)
    name = f"{file.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}"
    write_whole(place / READY, Ready(shard, name, salvaged))
    _finish(folder)


def _fix_contradictions(file: Path, shard: int) -> None:
    done = fix_contradictions(file)
    if done.fixed or done.left:
        _print_line({"shard": shard, **msgspec.to_builtins(done)})


def _print_line(line: dict[str, object]) -> None:
    sys.stdout.write(msgspec.json.encode(line).decode() + "\n")
    sys.stdout.flush()


def _finish(folder: Path) -> None:
    """Put a new file into its place, if one is ready."""
    place = folder / REPAIR
    if not (place / READY).exists():
        return
    try:
        ready = read_whole(place / READY, Ready)
    except msgspec.DecodeError as error:
        refuse(folder, f"has a damaged {REPAIR}/{READY} ({error}): take that folder away, and run it again")
    file, kept = shard_file(folder, ready.shard), folder / ready.kept_as
    made = place / file.name
    if made.exists():
        with suppress(FileExistsError):  # an interrupted run got this far
            os.link(file, kept)
        log = Path(f"{file}-wal")
        if log.exists():
            log.replace(f"{kept}-wal")  # it may contain the newest changes to the old file
        Path(f"{file}-shm").unlink(missing_ok=True)
        sync(folder)
        made.replace(file)
        sync(folder)
        sync(place)
    _print_line({"shard": ready.shard, "keptAs": ready.kept_as, **msgspec.to_builtins(ready.salvaged)})
    shutil.rmtree(place)
    sync(folder)


def _check_space(folder: Path, file: Path) -> None:
    sizes = [path.stat().st_size for path in (file, Path(f"{file}-wal")) if path.exists()]
    needed, free = int(sum(sizes) * SPARE * COPIES), shutil.disk_usage(folder).free
    if needed > free:
        missing = decimal(needed - free)
        raise DataFolderError(
            f"too little space to repair {file.name}: free {missing} on the disk of {folder}"
        )


def _report(text: str) -> None:
    print(printable(text), file=sys.stderr, flush=True)


if __name__ == "__main__":
    end_with_parent()
    sys.exit(main(Path(sys.argv[1])))

"""``python -m shardproc.recount FOLDER``: recounts the files of a stopped server.

Writes a JSON object per line: ``{"shard", "check", "problem"}``, or ``{"shard", "queue", "unfinished",
"completed", "dead"}``. If the folder cannot be inspected, it writes one line for people to standard error.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from bunqueue.server.folder.data_folder import (
    DataFolderError,
    is_resharded,
    own_data_folder,
    read_identified,
    refuse,
    shard_file,
)
from bunqueue.server.folder.shard_identity import Place, misfit
from bunqueue.server.host.lifeline import end_with_parent
from bunqueue.text import printable
from shardproc.storage.repair.recount import Counts, Finding, recount

FAILED = 1


def main(folder: Path) -> int:
    """Run it; returns the exit status."""
    try:
        places = read_identified(folder).places()  # before `own_data_folder` could make a folder
        with own_data_folder(folder):
            if is_resharded(folder):
                refuse(folder, "has an interrupted reshard: run bunqueue reshard again to finish it")
            for place in places:
                check(folder, place)
    except (DataFolderError, OSError) as error:
        print(printable(str(error)), file=sys.stderr)
        return FAILED
    return 0


def check(folder: Path, place: Place) -> None:
    """Recount the file of a shard."""
    shard, shards = place.identity.shard, place.identity.shards
    file = shard_file(folder, shard)
    wrong = misfit(file, place)
    _print(shard, Finding("identity", f"{file.name} {wrong}" if wrong else None))
    if not file.exists():  # its first start makes it
        return
    for found in recount(file, shard, shards):
        _print(shard, found)


def _print(shard: int, found: Finding | Counts) -> None:
    line = msgspec.json.encode({"shard": shard, **found._asdict()})
    sys.stdout.write(line.decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    end_with_parent()
    sys.exit(main(Path(sys.argv[1])))

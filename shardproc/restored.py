"""``python -m shardproc.restored FOLDER SHARD WANTED``: proves that a shard's file is good before a server
uses it, and makes it ready for one. Nobody else may use the folder meanwhile.

The file is recounted, and the shard's engine is started on it, as a server would. Writes what `recount`
writes, then:

    started     the jobs in memory
    active      those that were running, by queue
    schedules   the names of those whose times have passed
    dropped     the queues that were removed
    kept, left  the number of other queues, and of their jobs in memory

If the engine does not start, it writes one line for people to standard error.
"""

from __future__ import annotations

import os
import sys
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from bunqueue.logs import configure_logging
from bunqueue.protocol.commands import CommandError
from bunqueue.server.folder.data_folder import DataFolderError, read_identified, shard_file
from bunqueue.server.folder.shard_identity import Identity
from bunqueue.server.host.lifeline import end_with_parent
from bunqueue.text import printable

from . import recount
from .core import Shard
from .engine.handlers.crons.commands import keep, next_after, remove
from .engine.handlers.crons.due_runs import RECHECK_MS
from .storage.damage import ShardDamaged
from .storage.database import DISK_ERRORS, DatabaseBusy
from .storage.marking import claim
from .storage.schema import WrongSchema

FAILED = 1
NOBODY = 1  # the number of the connection whose commands remove queues
VERSION = 2  # of its protocol


class Wanted(msgspec.Struct):
    """What to change. With the defaults, nothing but what a start changes."""

    skips_missed: bool = False  # schedules go on with their next times, counted from now
    queues: list[str] = []  # patterns of the queues to keep, as in ``mail.*``; none: all
    is_foreign: bool = False  # the file comes from another folder or a store: it becomes this folder's


def main(folder: Path, shard: int, wanted: Wanted) -> int:
    """Run it; returns the exit status."""
    os.umask(0o077)
    configure_logging("critical", "text")
    try:
        place = read_identified(folder).places()[shard]
        file = shard_file(folder, shard)
        if wanted.is_foreign:
            claim(file, place.identity)
        recount.check(folder, place)
        _try(file, place.identity, wanted)
    except (DataFolderError, OSError, ShardDamaged, DatabaseBusy, WrongSchema, *DISK_ERRORS) as error:
        print(printable(str(error)), file=sys.stderr)
        return FAILED
    return 0


def _try(file: Path, identity: Identity, wanted: Wanted) -> None:
    """Start the engine on a file, change what is wanted, and stop it as a crash would: the server that starts
    next has to ask the other shards what they know."""
    shard = Shard(str(file), full_sync=True, shard=identity.shard, shards=identity.shards)
    try:
        jobs = shard.recover(shard.now(), "restored", lambda loaded, total: None)
        passed = _schedules(shard, wanted)
        dropped = _drop(shard, wanted.queues)
        state = shard.engine.state
        left = {"kept": len(state.queues), "left": len(state.jobs)}
        active = {name: len(queue.active) for name, queue in state.queues.items() if queue.active}
        shard.commit()
    finally:
        shard.close()
    found = {"started": jobs, "active": active, "schedules": passed, "dropped": dropped, **left}
    print(msgspec.json.encode({"shard": identity.shard, **found}).decode(), flush=True)


def _schedules(shard: Shard, wanted: Wanted) -> list[str]:
    """The schedules that are due; they go on with their next times if that is wanted."""
    state, now = shard.engine.state, shard.now()
    due = [each for each in state.timetable.by_name.values() if each.next_run <= now]
    if wanted.skips_missed:
        for schedule in due:
            try:
                schedule.next_run = next_after(schedule, schedule.next_run, now)
            except CommandError:  # a time zone that this machine does not know
                schedule.next_run = now + RECHECK_MS
            keep(state, schedule)
    return sorted(each.name for each in due)


def _drop(shard: Shard, patterns: list[str]) -> list[str]:
    """Remove all queues that no pattern matches, with their schedules; returns their names."""

    def is_kept(queue: str) -> bool:
        return not patterns or any(fnmatchcase(queue, pattern) for pattern in patterns)

    state = shard.engine.state
    for schedule in [each for each in state.timetable.by_name.values() if not is_kept(each.queue)]:
        remove(state, schedule.name)
    dropped = sorted(name for name in state.queues if not is_kept(name))
    for name in dropped:
        command = msgspec.msgpack.encode({"cmd": "Obliterate", "queue": name, "reqId": name})
        shard.execute(shard.client(NOBODY, VERSION), command, shard.now())
        shard.commit()
        while shard.engine.work():
            shard.commit()
    shard.commit()
    return dropped


if __name__ == "__main__":
    end_with_parent()
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), msgspec.json.decode(sys.argv[3], type=Wanted)))

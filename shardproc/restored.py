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
from functools import partial
from pathlib import Path

import msgspec

from bunqueue.logs import configure_logging
from bunqueue.model.names import SEPARATOR
from bunqueue.protocol.commands import CommandError
from bunqueue.protocol.commands.flows import FlowJob
from bunqueue.server.folder.data_folder import DataFolderError, read_identified, shard_file
from bunqueue.server.folder.shard_identity import Identity
from bunqueue.server.host.lifeline import end_with_parent
from bunqueue.text import printable

from . import recount
from .core import Shard
from .engine.handlers.crons.commands import keep, next_after, remove
from .engine.handlers.crons.due_runs import RECHECK_MS
from .engine.handlers.webhooks import drop
from .engine.lifecycle.child_results import KIND as RESULT
from .engine.lifecycle.outcomes import KIND as GONE
from .engine.lookup import has_its_id
from .engine.memory.dropped_letters import LETTER
from .engine.memory.pointers import KIND as HOME
from .engine.peers.callbacks import KIND as CALL
from .engine.peers.children import KIND as CANCEL
from .engine.peers.flows import DECIDED, UNDECIDED, Decision, Part
from .storage.compaction import rewrite
from .storage.damage import ShardDamaged
from .storage.database import DISK_ERRORS, DatabaseBusy
from .storage.marking import claim
from .storage.schema import WrongSchema

FAILED = 1
NOBODY = 1  # the number of the connection whose commands remove queues
VERSION = 2  # of its protocol
OF_JOBS = frozenset({GONE, HOME, LETTER, RESULT, CANCEL, CALL})
"""The kinds of records that are about jobs."""


class Wanted(msgspec.Struct):
    """What to change. With the defaults, nothing but what a start changes."""

    skips_missed: bool = False  # schedules go on with their next times, counted from now
    queues: list[str] = []  # patterns of the queues to keep, as in ``mail.*``; none: all
    is_foreign: bool = False  # the file comes from another folder or a store: it becomes this folder's
    namespace: str = ""  # to keep, with nothing else in the file; ``queues`` are those in it

    def keeps(self, queue: str) -> bool:
        """Whether a queue is kept, and what belongs to it."""
        prefix = f"{self.namespace}{SEPARATOR}" if self.namespace else ""
        name = queue.removeprefix(prefix)
        return queue.startswith(prefix) and (
            not self.queues or any(fnmatchcase(name, pattern) for pattern in self.queues)
        )


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
        if wanted.namespace:
            rewrite(file, partial(belongs, f"{wanted.namespace}{SEPARATOR}"))
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
        dropped = _drop(shard, wanted)
        passed = _schedules(shard, wanted)
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


def _drop(shard: Shard, wanted: Wanted) -> list[str]:
    """Remove all queues that are not kept, with what belongs to them; returns their names."""
    state = shard.engine.state
    for schedule in [each for each in state.timetable.by_name.values() if not wanted.keeps(each.queue)]:
        remove(state, schedule.name)
    for hook in list(state.webhooks.values()):
        is_kept = wanted.keeps(hook.queue) if hook.queue else not wanted.namespace
        if not is_kept:
            drop(state, hook)
    named = {*state.queues, *(queue for _, queue in state.configs)}
    dropped = sorted(name for name in named if not wanted.keeps(name))
    for name in dropped:
        command = msgspec.msgpack.encode({"cmd": "Obliterate", "queue": name, "reqId": name})
        shard.execute(shard.client(NOBODY, VERSION), command, shard.now())
        shard.commit()
        while shard.engine.work():
            shard.commit()
    shard.commit()
    if wanted.namespace:
        shard.store.keep_events(wanted.keeps)
        shard.commit()
    return dropped


def belongs(prefix: str, kind: str, key: str, value: str) -> bool:
    """Whether a record may stay: if it is about a job or a flow, that is in the namespace.  Records about
    queues have gone with them."""
    if kind == UNDECIDED:
        jobs = msgspec.msgpack.decode(msgspec.json.decode(value, type=Part).jobs, type=list[FlowJob])
        return all(job.queue.startswith(prefix) for job in jobs)
    if kind == DECIDED:
        decision = msgspec.json.decode(value, type=Decision)
        return all(queue.startswith(prefix) for queue, _ in decision.jobs)
    if kind in OF_JOBS:
        found = msgspec.json.decode(value)
        queue = found.get("queue") or found.get("child") or prefix
        return queue.startswith(prefix) and (kind == CALL or has_its_id(prefix, key))
    return True


if __name__ == "__main__":
    end_with_parent()
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), msgspec.json.decode(sys.argv[3], type=Wanted)))

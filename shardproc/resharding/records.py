"""Where records (settings of queues, schedules and so on) go: each kind declares that itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from bunqueue.model.ids import slot_of_id
from shardproc.engine.all_handlers import RECORDS
from shardproc.engine.memory.pointers import KIND as DIRECTORY
from shardproc.engine.memory.pointers import Home
from shardproc.engine.memory.timetable import KIND as SCHEDULE
from shardproc.engine.peers.callbacks import KIND as CALL
from shardproc.engine.registry import Apart
from shardproc.storage.transfer import Record

from .errors import UNCHANGED, ReshardError

_encode = msgspec.json.Encoder().encode


class Placing:
    """The records of each new shard, collected from those of the old ones."""

    def __init__(self, old: int, new: int) -> None:
        self._old, self._new = old, new
        self._found: list[dict[tuple[str, str], str]] = [{} for _ in range(new)]
        self._unsettled: set[str] = set()  # flows
        self._calls = 0  # jobs that one shard is about to add for a dead one of another shard

    def add(self, source: int, record: Record) -> None:
        """Add a record of an old shard; ReshardError when its kind is unknown."""
        kind, key, value = record
        known = RECORDS.get(kind)
        if known is None:
            raise ReshardError(
                f"shard {source} has records of a kind that this version does not know ({kind}):"
                f" upgrade bunqueue; {UNCHANGED}"
            )
        slot = known.slot
        if kind == CALL:
            self._calls += 1
        elif slot is Apart.UNSETTLED:
            self._unsettled.add(key)
        elif not isinstance(slot, Apart):
            there = self._found[slot(key, value) & (self._new - 1)]
            if kind == SCHEDULE and (kind, key) in there:
                raise ReshardError(
                    f"the schedule {key} is stored twice: start the server with --shards {self._old},"
                    f" set it again and stop the server; {UNCHANGED}"
                )
            there[kind, key] = value

    def records(self) -> list[list[Record]]:
        """The records by shard; ReshardError when exchanges between the old shards are unfinished."""
        if self._unsettled or self._calls:
            what = f"{self._calls} job(s) were being pushed from shard to shard"
            if self._unsettled:
                what = f"{len(self._unsettled)} flow(s) were being pushed, or jobs moved,"
            raise ReshardError(
                f"{what} when the server ended:"
                f" start it once with --shards {self._old}, which settles them, stop it and try again;"
                f" {UNCHANGED}"
            )
        return [[(*place, value) for place, value in some.items()] for some in self._found]


def entries(ids: Iterable[tuple[str, int]], new: int) -> Iterator[tuple[int, Record]]:
    """The directory of ids, as (shard, record): an entry for each job (given with its new home) that is not
    where its id suggests."""
    for job_id, home in ids:
        pointer = slot_of_id(job_id) & (new - 1)
        if pointer != home:
            yield pointer, (DIRECTORY, job_id, _encode(Home(home)).decode())

"""Events as a stream: each exactly once, as long as the checkpoint is kept.

Spark asks for the end of the log, stores that number, and reads the events up to it.  After a crash it reads
the same numbers again.  An event's number never changes, so the same numbers are the same events.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from bunqueue.server.folder.shard_file import current

from ..errors import EventsLost, brief
from ..options import ReadOptions, StreamOptions
from .conditions import microseconds
from .event_rows import Bounds, bounds, first_since, time_of
from .folders import Shard, find_shards
from .offsets import Offset, key_of, limited, lost_events, reached, resharded, went_back
from .reading import read_events

ROUNDS = 4  # of looking for a fuller batch
logger = logging.getLogger("bunqueue.spark")


@brief
class EventStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the event logs of all shards.

    ``asked`` gives the options, or raises an error.  Spark would hide an error of the constructor behind one
    of its own.
    """

    def __init__(self, asked: Callable[[], tuple[ReadOptions, StreamOptions]]) -> None:
        self.asked = asked
        self.target: Offset | None = None  # where a run with availableNow ends
        self.reported: set[str] = set()

    @cached_property
    def options(self) -> ReadOptions:
        return self.asked()[0]

    @cached_property
    def stream(self) -> StreamOptions:
        return self.asked()[1]

    def _shards(self) -> dict[str, Shard]:
        paths, hosts = self.options.paths, self.options.hosts
        several = bool(hosts) or len(paths) > 1
        return {key_of(shard, several): shard for shard in find_shards(paths, hosts)}

    def _bounds(self) -> dict[str, Bounds]:
        found = {}
        for key, shard in self._shards().items():
            with current(Path(shard.path)) as file:
                found[key] = bounds(file)
        return found

    def initialOffset(self) -> dict[str, Any]:
        start = self.stream.start
        if start == "earliest":
            return {}  # no numbers: retention may remove the oldest event before the first batch
        if isinstance(start, str):
            return {key: found.last for key, found in self._bounds().items()}
        at = -(-microseconds(start) // 1000)
        offset = {}
        for key, shard in self._shards().items():
            with current(Path(shard.path)) as file:
                offset[key] = first_since(file, at) - 1
        return offset

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.stream.max_events)

    def prepareForTriggerAvailableNow(self) -> None:
        self.target = {key: found.last for key, found in self._bounds().items()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        found = self._bounds()
        self._check(start, found)
        latest = self.target or {key: one.last for key, one in found.items()}
        if isinstance(limit, ReadAllAvailable):
            return {key: max(last, start.get(key, 0)) for key, last in latest.items()}
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else self.stream.max_events
        return self._in_step(reached(start, found), latest, most)

    def _in_step(self, start: Offset, latest: Offset, most: int) -> Offset:
        """The end of a batch in which no shard is ahead of another in time.  With a watermark, Spark drops
        events that are older than those that it has seen."""
        cut = end = limited(start, latest, most)
        with ExitStack() as stack:
            shards = self._shards() if end != latest else {}
            files = {key: stack.enter_context(current(Path(shards[key].path))) for key in shards.keys() & end}
            for _ in range(ROUNDS):
                unread = {
                    key: time_of(file, end[key] + 1) for key, file in files.items() if end[key] < latest[key]
                }
                if not unread:
                    cut = end
                    break
                oldest = min(unread, key=lambda key: unread[key])
                caps = {
                    key: max(start.get(key, 0), first_since(file, unread[oldest] + 1) - 1)
                    for key, file in files.items()
                    if key != oldest
                }
                cut = {key: min(last, caps.get(key, last)) for key, last in end.items()}
                if cut == end:
                    break
                # What the others may not read yet, the one that is behind may read in addition.
                end = limited(
                    start, {key: min(last, caps.get(key, last)) for key, last in latest.items()}, most
                )
        goes_on = any(last > start.get(key, 0) for key, last in cut.items())
        return cut if goes_on else limited(start, latest, most)  # if clocks were set back

    def _check(self, start: Offset, found: dict[str, Bounds]) -> None:
        moved = resharded(start, found) or went_back(start, found)
        if moved is not None:
            raise EventsLost(f"{moved}: begin a new stream with a checkpoint of its own, and startAt=a time")
        for loss in lost_events(start, found):
            if self.stream.fail_on_loss:
                raise EventsLost(
                    f"{loss}; to go on without them, set failOnDataLoss=false; to keep events longer, "
                    "start the server with a larger --events-max-age and --events-max-count"
                )
            if loss not in self.reported:
                self.reported.add(loss)
                logger.warning("%s", loss)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        shards = self._shards()
        return [
            InputPartition((shards[key], start.get(key), last))
            for key, last in end.items()
            if last > start.get(key, 0)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        shard, after, until = partition.value
        return read_events(shard, self.options.selection(0), after, until, strict=self.stream.fail_on_loss)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the server removes events by age, whether or not they were read."""

    def stop(self) -> None:
        """Do nothing: nothing is kept open."""

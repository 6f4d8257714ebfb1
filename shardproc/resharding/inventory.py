"""Inspects the old files before anything is made. It writes nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from bunqueue.server.folder.data_folder import shard_file
from shardproc.storage.transfer import QueueSize, Record, Source

from .errors import UNCHANGED, ReshardError, damaged, explained
from .plan import Share, shard_of, shares
from .records import Placing

Report = Callable[[str], None]  # takes the progress; called often, prints a line now and then


class Inventory:
    """The old files, which no other process may open while this is open."""

    def __init__(self, folder: Path, old: int, new: int, report: Report) -> None:
        """ReshardError when they cannot become files for another number of shards."""
        self.old, self.new = old, new
        self._open = ExitStack()
        with self._open:  # closed here if there is an error
            self.sources: list[Source] = []
            self.queues: list[list[QueueSize]] = []
            for number in range(old):
                report(f"looking at file {number + 1} of {old}")
                self.sources.append(self._source(shard_file(folder, number)))
                self.queues.append(self._queues(number))
            self.records = self._records()
            self._open = self._open.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    @property
    def jobs(self) -> int:
        return sum(self.jobs_of(number) for number in range(self.old))

    @property
    def shares(self) -> list[Share]:
        """What each new shard will have."""
        return shares(self.queues, self.new)

    def jobs_of(self, source: int) -> int:
        return sum(queue.jobs for queue in self.queues[source])

    def _source(self, file: Path) -> Source:
        if not file.exists():
            raise ReshardError(
                f"{file} is missing: restore it from a backup of the folder, or start the server once with"
                f" --shards {self.old} to go on without it; {UNCHANGED}"
            )
        with explained(file):
            source = Source(file)
            self._open.callback(source.close)
            if problem := source.problem():
                raise damaged(file, problem)
        return source

    def _queues(self, number: int) -> list[QueueSize]:
        source = self.sources[number]
        with explained(source.path):
            queues = source.queues()
            strays = source.jobs() - sum(queue.jobs for queue in queues)
        if strays:
            raise damaged(source.path, f"{strays} jobs belong to no queue")
        for queue in queues:
            if shard_of(queue.name, self.old) != number:
                raise damaged(source.path, f"the queue {queue.name} belongs to another shard")
        return queues

    def _records(self) -> list[list[Record]]:
        """The records, by new shard."""
        placing = Placing(self.old, self.new)
        for number, source in enumerate(self.sources):
            with explained(source.path):
                for record in source.records():
                    placing.add(number, record)
        return placing.records()

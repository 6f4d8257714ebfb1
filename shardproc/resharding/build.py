"""Making the new files. The old ones are not changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from bunqueue.server.folder.data_folder import Manifest, shard_file
from shardproc.storage.transfer import Target

from . import event_logs, records
from .errors import UNCHANGED, ReshardError, explained
from .inventory import Inventory, Report
from .plan import Family, QueueNumbers, families, shard_of

WINDOW = 5_000  # jobs copied at a time, some 20 ms: then progress is reported


def build(folder: Path, inventory: Inventory, manifest: Manifest, report: Report) -> None:
    """Make the files of all new shards in ``folder``, whole and on disk, for the folder that ``manifest``
    describes. ReshardError if that is not possible."""
    with explained(shard_file(folder, 0)), ExitStack() as opened:
        targets = []
        for number in range(inventory.new):
            targets.append(Target(shard_file(folder, number)))
            opened.callback(targets[-1].close)
        _Build(inventory, targets, manifest, report).run()


class _Build:
    """Fills the targets, family by family."""

    def __init__(
        self, inventory: Inventory, targets: list[Target], manifest: Manifest, report: Report
    ) -> None:
        self._inventory = inventory
        self._targets = targets
        self._places = manifest.places()
        self._report = report
        self._total = inventory.jobs
        self._copied = 0

    def run(self) -> None:
        inventory = self._inventory
        for family in families(inventory.old, inventory.new):
            numbers = QueueNumbers(family)
            # The jobs of the first source keep their numbers, so it has to be the one with most jobs.
            for source in sorted(family.sources, key=inventory.jobs_of, reverse=True):
                self._put_queues(source, family, numbers)
                self._copy_jobs(source, family)
            self._put_log(family, numbers)
        if self._copied != self._total:
            raise ReshardError(f"only {self._copied} of {self._total} jobs could be copied; {UNCHANGED}")
        self._put_broadcasts()
        self._put_directory()
        for number, (target, some) in enumerate(zip(self._targets, inventory.records, strict=True)):
            self._report(f"flushing file {number + 1} of {inventory.new}")
            target.put_records(some)
            target.finish(self._places[number].identity)

    def _put_queues(self, source: int, family: Family, numbers: QueueNumbers) -> None:
        """Write the queues of a source, and note the source of their jobs."""
        found: dict[int, list[tuple[int, str, int]]] = {target: [] for target in family.targets}
        moved: dict[int, list[tuple[int, int]]] = {target: [] for target in family.targets}
        for queue in self._inventory.queues[source]:
            target = shard_of(queue.name, self._inventory.new)
            there = numbers.enter(source, queue.id, target)
            found[target].append((there, queue.name, queue.created_at))
            moved[target].append((queue.id, there))
        for target in family.targets:
            self._targets[target].put_queues(found[target])
            file = self._inventory.sources[source]
            with explained(file.path):
                self._targets[target].attach(file, moved[target])

    def _copy_jobs(self, source: int, family: Family) -> None:
        targets = [self._targets[target] for target in family.targets]
        file = self._inventory.sources[source]
        with explained(file.path):
            for after, last in file.windows(WINDOW):
                self._copied += sum(target.copy(after, last) for target in targets)
                self._report(f"{self._copied:,} of {self._total:,} jobs copied")
        for each in targets:
            each.detach()

    def _put_log(self, family: Family, numbers: QueueNumbers) -> None:
        sources = self._inventory.sources
        first = None
        if len(family.sources) > 1:
            first = max(sources[source].next_event() for source in family.sources)
        batches = [self._log(source) for source in family.sources]
        for target, row in event_logs.shared_out(batches, numbers, family, self._inventory.new, first):
            self._targets[target].put_events([row])
            self._report(f"copying the event logs of {_named(family.sources)}")

    def _log(self, source: int) -> Iterator[event_logs.Batch]:
        file = self._inventory.sources[source]
        with explained(file.path):
            yield from event_logs.read(source, file.events())

    def _put_broadcasts(self) -> None:
        """Write the broadcasts; every shard has all of them."""
        for file in self._inventory.sources:
            with explained(file.path):
                for sent in file.broadcasts():
                    for target in self._targets:
                        target.put_broadcasts([sent])

    def _put_directory(self) -> None:
        """Write the places of jobs that are elsewhere than their ids suggest."""
        new = self._inventory.new
        for file, queues in zip(self._inventory.sources, self._inventory.queues, strict=True):
            homes = {queue.id: shard_of(queue.name, new) for queue in queues}
            with explained(file.path):
                ids = ((job_id, homes[queue_id]) for job_id, queue_id in file.own_ids())
                for target, record in records.entries(ids, new):
                    self._targets[target].put_records([record])


def _named(sources: Sequence[int]) -> str:
    """A name for consecutive shards: "shard 1", or "shards 0 to 3"."""
    first, last = sources[0], sources[-1]
    return f"shard {first}" if first == last else f"shards {first} to {last}"

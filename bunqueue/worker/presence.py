"""A worker's entry in the server's list of workers."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Sequence

from bunqueue.protocol.commands import workers
from bunqueue.worker import log
from bunqueue.worker.active_job import ActiveJob
from bunqueue.worker.control import Control
from bunqueue.worker.fetching.slots import Slots
from bunqueue.worker.outcomes import Outcomes

MAX_NAMES = 1000  # names of jobs that a worker reports, over all its queues; with more it reports none


class Presence:
    """One worker's entry in the list. Read in the thread that renews locks."""

    def __init__(
        self,
        name: str,
        queues: Sequence[str],
        owner: str,
        control: Control,
        slots: Slots[ActiveJob],
        stats: Outcomes,
        names: Mapping[str, Sequence[str] | None],
    ) -> None:
        """`owner` is the id of the worker and of its locks; `names` are the names of the jobs it runs, by
        queue; None: all.
        """
        self.started_at = time.time()
        self._name = name
        self._queues = queues
        self._owner = owner
        self._control = control
        self._slots = slots
        self._stats = stats
        self._names, self._names_by_queue = _reported_names(names)

    def registration(self) -> workers.RegisterWorker:
        """The worker's identity."""
        return workers.RegisterWorker(
            name=self._name,
            queues=list(self._queues),
            worker_id=self._owner,
            concurrency=self._control.concurrency,
            hostname=socket.gethostname(),
            pid=os.getpid(),
            started_at=self.started_at * 1000,
            names=self._names,
            names_by_queue=self._names_by_queue,
        )

    def registered(self, address: str, server: str) -> None:
        """A server, with this name and version, has registered it, for the first time or again."""
        log.connected(", ".join(self._queues), address, server)

    def heartbeat(self, current_job: str | None) -> workers.Heartbeat:
        """The worker's current state."""
        return workers.Heartbeat(
            id=self._owner,
            active_jobs=self._slots.busy,
            processed=self._stats.completed,
            failed=self._stats.failed,
            current_job=current_job,
            paused=self._control.paused,
            concurrency=self._control.concurrency,
            wish=self._control.request,
        )


def _reported_names(
    names: Mapping[str, Sequence[str] | None],
) -> tuple[list[str] | None, dict[str, list[str]] | None]:
    """The names of all queues together, and those of each queue. Older servers know only the former."""
    known = {queue: list(each) for queue, each in names.items() if each is not None}
    if sum(map(len, known.values())) > MAX_NAMES:
        return None, None
    together = list(dict.fromkeys(name for each in known.values() for name in each))
    same = all(len(each) == len(together) for each in known.values())
    if len(known) < len(names):
        return None, known or None
    return together, None if same else known

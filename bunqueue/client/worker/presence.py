"""What a worker says of itself to the server's list of workers."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence

from bunqueue.client.worker import log
from bunqueue.client.worker.active_job import ActiveJob
from bunqueue.client.worker.control import Control
from bunqueue.client.worker.slots import Slots
from bunqueue.client.worker.stats import RunStats
from bunqueue.protocol.commands import workers

MAX_NAMES = 1000  # of jobs, times queues, that a worker says: one with more does not say what it runs


class Presence:
    """One worker's entry in the list. Read in the thread that renews locks."""

    def __init__(
        self,
        name: str,
        queues: Sequence[str],
        owner: str,
        control: Control,
        slots: Slots[ActiveJob],
        stats: RunStats,
        names: Sequence[str] | None,
    ) -> None:
        """`owner` is its id, and that of its locks; `names` are those of the jobs that it runs, None: any."""
        self.started_at = time.time()
        self._name = name
        self._queues = queues
        self._owner = owner
        self._control = control
        self._slots = slots
        self._stats = stats
        few = names is not None and len(names) * len(queues) <= MAX_NAMES
        self._names = list(names) if names is not None and few else None

    def registration(self) -> workers.RegisterWorker:
        """Who the worker is."""
        return workers.RegisterWorker(
            name=self._name,
            queues=list(self._queues),
            worker_id=self._owner,
            concurrency=self._control.concurrency,
            hostname=socket.gethostname(),
            pid=os.getpid(),
            started_at=self.started_at * 1000,
            names=self._names,
        )

    def registered(self, address: str, server: str) -> None:
        """It is on the list of a server, of this name and version, for the first time or again."""
        log.connected(", ".join(self._queues), address, server)

    def heartbeat(self, current_job: str | None) -> workers.Heartbeat:
        """How it does."""
        return workers.Heartbeat(
            id=self._owner,
            active_jobs=self._slots.busy,
            processed=self._stats.completed,
            failed=self._stats.failed,
            current_job=current_job,
            paused=self._control.paused,
            concurrency=self._control.concurrency,
            wish=self._control.wish,
        )

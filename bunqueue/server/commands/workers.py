"""Registered workers and the queues that they work on.  A registration ends with its connection.

Pure: the time comes from the caller.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence

from msgspec import UNSET, Struct
from msgspec.structs import asdict

from bunqueue.model.names import queue_name_problem
from bunqueue.model.scope import Scope
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError
from bunqueue.protocol.commands.base import Data, Removed
from bunqueue.protocol.commands.workers import (
    ControlWorker,
    DesiredState,
    Heartbeat,
    Registered,
    RegisterWorker,
    RegisterWorkerReply,
    Stop,
    WorkerHeartbeatReply,
    WorkerInfo,
    WorkerList,
    WorkerStats,
)

from .queue_workers import QueueWorkers

MAX_PER_CONNECTION = 1000
MAX_QUEUES = 10_000  # of all workers on a connection; about 3 MB here, and as much in the queues' shards
MAX_NAMES = 10_000  # job names of all workers on a connection, counted once per queue; about 2 MB
STALE_MS = 30_000  # without a heartbeat


class Worker(Struct):
    """One registration."""

    id: str
    conn: int  # the last connection that registered it
    name: str
    queues: list[str]
    concurrency: int
    hostname: str
    pid: int
    registered_at: int
    last_seen: int
    active_jobs: int = 0
    processed: int = 0
    failed: int = 0
    current_job: str | None = None
    paused: bool = False
    wanted_paused: bool | None = None  # desired state, until the worker confirms it; so are the next fields
    wanted_concurrency: int | None = None
    wanted_stop: Stop | None = None
    request: int = 0  # the number of the last request
    born: str | None = None  # when its process started, if it runs on this machine
    names: list[str] | None = None  # of the jobs that it runs; None: not declared
    names_by_queue: dict[str, list[str]] = {}  # for these queues, instead of `names`

    def names_of(self, queue: str) -> list[str] | None:
        """The names of the jobs that it runs from a queue; None: not declared."""
        return self.names_by_queue.get(queue, self.names)

    @property
    def size(self) -> int:
        """How many names it declares, counted once per queue."""
        return sum(len(self.names_of(queue) or ()) for queue in self.queues)


class Workers:
    """All registrations, by id and by connection."""

    def __init__(self, on_presence: Callable[[str], None] = lambda queue: None) -> None:
        self._workers: dict[str, Worker] = {}
        self._on_presence = on_presence  # called when the entry of a queue in `by_queue` changes
        self.by_queue: dict[str, QueueWorkers] = {}  # only queues with workers
        self._of_conn: dict[int, set[str]] = {}
        self._gone_processed = self._gone_failed = 0  # by workers that are no longer registered
        self._elsewhere: dict[str, WorkerList] = {}  # workers registered with other hosts, by host

    def register(
        self, conn: int, command: RegisterWorker, now: int, *, born: str | None = None
    ) -> RegisterWorkerReply:
        """Register a worker, or update the one with that id.  For ``born`` see `Worker.born`."""
        queues = list(dict.fromkeys(command.queues or ()))
        names, of_queue = _names(command, queues)
        for queue in queues:
            if problem := queue_name_problem(queue):
                raise CommandError(problem, Code.INVALID_QUEUE, field="queues", value=queue)
        worker_id = command.worker_id or str(uuid.uuid4())
        said = sum(len(of_queue.get(queue, names) or ()) for queue in queues)
        self._check_room(conn, worker_id, len(queues), said)
        worker = self._workers.get(worker_id)
        if worker is None:
            since = now if command.started_at is None else int(command.started_at)
            worker = Worker(
                worker_id, conn, command.name, queues, 1, command.hostname, command.pid, since, now
            )
            self._workers[worker_id] = worker
        else:
            self._leave(worker)
            self._dismiss(worker)
            worker.queues, worker.name = queues, command.name
            if command.hostname != "unknown":
                worker.hostname, worker.pid = command.hostname, command.pid
        worker.names, worker.names_by_queue = names, of_queue
        self._employ(worker)
        worker.conn, worker.concurrency, worker.last_seen = conn, command.concurrency, now
        worker.born = born
        self._of_conn.setdefault(conn, set()).add(worker_id)
        fields = asdict(_shown(worker, now))
        return RegisterWorkerReply(data=Registered(worker_id=worker_id, **fields))

    def _check_room(self, conn: int, worker_id: str, queues: int, names: int) -> None:
        """Raise CommandError if a connection would have too many workers, or they too many queues or names.

        `names` is counted like `Worker.size`.
        """
        others = self._of_conn.get(conn, set()) - {worker_id}
        if len(others) >= MAX_PER_CONNECTION:
            raise CommandError(
                f"Too many workers on one connection (max {MAX_PER_CONNECTION}): unregister some first",
                Code.TOO_MANY_WORKERS,
                field="workerId",
                value=worker_id,
                bound=MAX_PER_CONNECTION,
            )
        if queues + sum(len(self._workers[other].queues) for other in others) > MAX_QUEUES:
            raise CommandError(
                f"Too many queues of the workers on one connection (max {MAX_QUEUES}): unregister some first",
                Code.TOO_MANY_WORKERS,
                field="queues",
                value=queues,
                bound=MAX_QUEUES,
            )
        if names + sum(self._workers[other].size for other in others) > MAX_NAMES:
            raise CommandError(
                f"Too many names of the workers on one connection (max {MAX_NAMES}, each counted for each "
                f"queue of its worker): leave them out, then the worker does not say what it runs",
                Code.TOO_MANY_WORKERS,
                field="names",
                bound=MAX_NAMES,
            )

    def check_seen(self, worker_id: str | None, scope: Scope | None) -> None:
        """CommandError if a worker is none that this scope sees: for it there is no worker of that id."""
        if worker_id is None or scope is None:
            return
        worker = self._workers.get(worker_id)
        if scope.reserves(worker_id) or (worker is not None and not _sees(scope, worker.queues)):
            raise unknown(worker_id)

    def unregister(self, worker_id: str) -> Data[Removed]:
        """Remove a worker from the list."""
        worker = self._known(worker_id)
        self._leave(worker)
        self._forget(worker)
        return Data(data=Removed(True))

    def heartbeat(self, command: Heartbeat, now: int) -> WorkerHeartbeatReply:
        """Record a heartbeat, with what the worker reports about itself."""
        worker = self._known(command.id)
        worker.last_seen = now
        if command.active_jobs is not None:
            worker.active_jobs = command.active_jobs
        if command.processed is not None:
            worker.processed = command.processed
        if command.failed is not None:
            worker.failed = command.failed
        worker.current_job = command.current_job
        if command.paused is not None:
            worker.paused = command.paused
        if command.concurrency is not None:
            worker.concurrency = command.concurrency
        return WorkerHeartbeatReply(data=_desired_state(worker, command))

    def control(self, command: ControlWorker, now: int) -> Data[WorkerInfo]:
        """Store the desired state of a worker until its next heartbeat."""
        worker = self._workers.get(command.worker_id)
        if worker is None:
            raise unknown(command.worker_id)
        if command.concurrency is not None and command.concurrency < len(worker.queues):
            least = len(worker.queues)
            raise CommandError(
                f"concurrency must be at least {least}, one for each queue of the worker",
                Code.INVALID_FIELD,
                field="concurrency",
                value=command.concurrency,
                bound=least,
            )
        worker.request = max(worker.request + 1, now)  # higher than the numbers from a router that has ended
        if command.paused is not None:
            worker.wanted_paused = command.paused
        if command.concurrency is not None:
            worker.wanted_concurrency = command.concurrency
        if command.stop is not None:
            worker.wanted_stop = command.stop
        return Data(data=_shown(worker, now))

    def listing(self, now: int) -> WorkerList:
        """All workers: those registered here in order of registration, then those of other hosts."""
        here = self.here(now)
        others = self._elsewhere.values()
        workers = [*here.workers, *(worker for listing in others for worker in listing.workers)]
        return WorkerList(workers, self.stats(now))

    def here(self, now: int) -> WorkerList:
        """The workers registered with this server."""
        return WorkerList([_shown(worker, now) for worker in self._workers.values()], self._stats(now))

    def elsewhere(self, host: str, listing: WorkerList | None) -> None:
        """Store the workers that another host of the cluster reports; None: the host is unreachable."""
        if listing is None:
            self._elsewhere.pop(host, None)
        else:
            self._elsewhere[host] = listing

    def stats(self, now: int) -> WorkerStats:
        """Sums over all workers."""
        found = [self._stats(now), *(listing.stats for listing in self._elsewhere.values())]
        names = WorkerStats.__struct_fields__
        return WorkerStats(*(sum(getattr(stats, name) for stats in found) for name in names))

    def _stats(self, now: int) -> WorkerStats:
        workers = self._workers.values()
        return WorkerStats(
            total=len(workers),
            active=sum(_is_alive(worker, now) for worker in workers),
            total_processed=self._gone_processed + sum(worker.processed for worker in workers),
            total_failed=self._gone_failed + sum(worker.failed for worker in workers),
            active_jobs=sum(worker.active_jobs for worker in workers),
            concurrency_slots=sum(worker.concurrency for worker in workers),
        )

    def names_of(self, queues: Iterable[str]) -> dict[str, list[str]]:
        """The names of the jobs that workers run, by queue; queues where they are unknown are left out."""
        said = {queue: self.by_queue[queue].names for queue in queues if queue in self.by_queue}
        return {queue: names for queue, names in said.items() if names is not None}

    def disconnected(self, conn: int) -> list[Worker]:
        """End the registrations of a connection that has ended; return their workers."""
        workers = [self._workers[worker_id] for worker_id in self._of_conn.pop(conn, ())]
        for worker in workers:
            self._forget(worker)
        return workers

    def renew(self, now: int) -> None:
        """Count all workers as heard now: the process was paused, so no heartbeat could arrive."""
        for worker in self._workers.values():
            worker.last_seen = now

    def _known(self, worker_id: str) -> Worker:
        worker = self._workers.get(worker_id)
        if worker is None:
            raise unknown(worker_id)
        return worker

    def _leave(self, worker: Worker) -> None:
        """Remove a worker from its connection."""
        ids = self._of_conn[worker.conn]
        ids.discard(worker.id)
        if not ids:
            del self._of_conn[worker.conn]

    def _employ(self, worker: Worker) -> None:
        for queue in worker.queues:
            if self.by_queue.setdefault(queue, QueueWorkers()).join(worker.names_of(queue)):
                self._on_presence(queue)

    def _dismiss(self, worker: Worker) -> None:
        for queue in worker.queues:
            there = self.by_queue[queue]
            changed = there.leave(worker.names_of(queue))
            if not there.workers:
                del self.by_queue[queue]
            if changed:
                self._on_presence(queue)

    def _forget(self, worker: Worker) -> None:
        del self._workers[worker.id]
        self._dismiss(worker)
        self._gone_processed += worker.processed
        self._gone_failed += worker.failed


def _names(command: RegisterWorker, queues: list[str]) -> tuple[list[str] | None, dict[str, list[str]]]:
    """The names of the jobs that a worker runs, and the names for single queues, without duplicates.

    CommandError for names of a queue that the worker does not work on.
    """
    of_queue = command.names_by_queue or {}
    for queue in of_queue:
        if queue not in queues:
            raise CommandError(
                f"namesByQueue: the worker has no queue {queue!r}",
                Code.INVALID_FIELD,
                field="namesByQueue",
                value=queue,
            )
    once = {queue: list(dict.fromkeys(names)) for queue, names in of_queue.items()}
    return None if command.names is None else list(dict.fromkeys(command.names)), once


def seen_by(scope: Scope | None, listing: WorkerList) -> WorkerList:
    """The workers that a scope sees: those that work on queues of it, and on no others."""
    if scope is None or scope.is_everywhere:
        return listing
    seen = [worker for worker in listing.workers if _sees(scope, worker.queues)]
    stats = WorkerStats(
        total=len(seen),
        active=sum(worker.status == "active" for worker in seen),
        total_processed=sum(worker.processed_jobs for worker in seen),
        total_failed=sum(worker.failed_jobs for worker in seen),
        active_jobs=sum(worker.active_jobs for worker in seen),
        concurrency_slots=sum(worker.concurrency for worker in seen),
    )
    return WorkerList(seen, stats)


def _sees(scope: Scope, queues: Sequence[str]) -> bool:
    return scope.is_everywhere or (bool(queues) and all(map(scope.allows, queues)))


def unknown(worker_id: str) -> CommandError:
    """The error for a worker that does not exist."""
    return CommandError("Worker not found", Code.WORKER_NOT_FOUND, field="workerId", value=worker_id)


def _desired_state(worker: Worker, heartbeat: Heartbeat) -> DesiredState:
    """The requests that the worker has not confirmed yet.  A confirmed request is never sent again, so later
    changes that the worker makes itself are not undone."""
    if heartbeat.wish is not None and heartbeat.wish >= worker.request:
        worker.wanted_paused = worker.wanted_concurrency = worker.wanted_stop = None
    elif heartbeat.wish is None:  # a worker of another client, which only reports its state
        if worker.wanted_paused == heartbeat.paused:
            worker.wanted_paused = None
        if worker.wanted_concurrency == heartbeat.concurrency:
            worker.wanted_concurrency = None
    if (worker.wanted_paused, worker.wanted_concurrency, worker.wanted_stop) == (None, None, None):
        return DesiredState()
    return DesiredState(
        paused=UNSET if worker.wanted_paused is None else worker.wanted_paused,
        concurrency=UNSET if worker.wanted_concurrency is None else worker.wanted_concurrency,
        stop=UNSET if worker.wanted_stop is None else worker.wanted_stop,
        number=UNSET if heartbeat.wish is None else worker.request,
    )


def _is_alive(worker: Worker, now: int) -> bool:
    """Whether the worker has sent a recent heartbeat.  One from the future is older: the clock was set
    back."""
    return 0 <= now - worker.last_seen <= STALE_MS


def _shown(worker: Worker, now: int) -> WorkerInfo:
    return WorkerInfo(
        id=worker.id,
        name=worker.name,
        queues=worker.queues,
        concurrency=worker.concurrency,
        hostname=worker.hostname,
        pid=worker.pid,
        status="active" if _is_alive(worker, now) else "stale",
        registered_at_ms=float(worker.registered_at),
        last_seen_ms=float(worker.last_seen),
        active_jobs=worker.active_jobs,
        processed_jobs=worker.processed,
        failed_jobs=worker.failed,
        current_job=worker.current_job,
        uptime=float(max(0, now - worker.registered_at)),
        paused=worker.paused,
        names=worker.names,
        names_by_queue=worker.names_by_queue or None,
    )

"""The engine of one shard: commands and time go in, replies and writes come out.

``handle`` and ``tick`` change memory and fill the outbox; ``next_deadline`` says when to tick again.  Time,
ids and randomness come from outside, so equal inputs give equal outputs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import MappingProxyType

from bunqueue.model.ids import IdFactory
from bunqueue.model.job import Job
from bunqueue.protocol.commands import Command, CommandError, refused

from . import clock_rebase, peer_calls, scoped, slices
from .all_handlers import RECORDS
from .background import background_work, retention
from .dispatch import answer, carry_out, carry_out_within
from .handlers import (
    disconnects,
    handing_over,
    idempotency,
    locks,
    pull,
    subscriptions,
    webhook_trials,
)
from .handlers.crons import due_runs
from .handlers.workflows import signals
from .kept_kinds import KEPT
from .lifecycle import dropped_letters, job_waiters, recovery, transitions
from .memory import history
from .memory.clock_correction import SetBack
from .memory.worker_presence import NEVER, RESUME_MS
from .outbox import Archive, Outbox, PushedEntry
from .peers import callbacks, children, dependencies, directory, flows, moves, reconcile, roll_call
from .ready import queue_limits
from .state import BUDGET, Client, QueueState, State


class Engine:
    """All rules for the jobs of one shard."""

    def __init__(
        self,
        archive: Archive,
        random_bits: Callable[[int], int],
        chance: Callable[[], float],
        shard: int = 0,
        shards: int = 1,
    ) -> None:
        self.state = State(archive, IdFactory(random_bits), chance, shard, shards)
        self.state.kept.bounds = KEPT
        self.out: Outbox = self.state.out

    def new_incarnation(self, now: int) -> None:
        """Record that the whole server was down until now, not only this shard for a moment."""
        self.state.away_until = now

    def start(self, now: int) -> None:
        """Start the clock after recovery."""
        state = self.state
        state.now = state.started_at = now
        state.next_sweep = now + locks.GRACE_MS
        state.maintenance.next_at = now + retention.ROUND_MS
        state.maintenance.dlq_at = now + retention.DEAD_MS
        state.minute = now // history.MINUTE_MS
        flows.recovered(state)
        children.recovered(state)
        signals.recovered(state)
        moves.recovered(state)
        dropped_letters.recovered(state)
        callbacks.begin(state)
        dependencies.ask_again(state)
        reconcile.begin(state)
        roll_call.begin(state)
        self._serve()

    def handle(self, client: Client, command: Command, now: int) -> None:
        """Carry out one command and put its reply into the outbox, unless the command parks."""
        state = self.state
        state.now = now
        elsewhere = state.directory or state.prepared or state.recovery.unannounced or state.moving
        scope = client.scope
        if scope is not None and not scoped.passes(state, scope, command):
            self._handle_within(client, command, elsewhere=bool(elsewhere))
        elif not (elsewhere and self._sent_elsewhere(client, command)):
            carry_out(state, client, command)
        # The condition that `_serve` starts with; checked here as well to save a call per command.
        if state.woken or state.decided or state.freed_ids or state.unblocked or state.run_ends or state.died:
            self._serve()

    def _handle_within(self, client: Client, command: Command, *, elsewhere: bool) -> None:
        """Carry out a command of a client with a scope."""
        try:
            scoped.enter(client, command)
            problem = scoped.refusal(client, command)
        except CommandError as error:
            problem = error
        if problem is not None:
            answer(self.state, client, command, refused(problem))
        elif not (elsewhere and self._sent_elsewhere(client, command)):
            carry_out_within(self.state, client, command)

    def _sent_elsewhere(self, client: Client, command: Command) -> bool:
        """Whether another shard answers, because it has or may have the job that the command names."""
        state = self.state
        if state.recovery.unannounced and directory.seek(state, client, command):
            return True
        return directory.relay(state, client, command)

    def receive(self, source: int, body: bytes, now: int) -> None:
        """Handle a message from another shard."""
        self.state.now = now
        peer_calls.receive(self.state, source, body)
        self._serve()

    def peer_is_up(self, shard: int, now: int) -> None:
        """Another shard is ready, perhaps after a restart."""
        self.state.now = now
        self.state.incarnations[shard] += 1
        peer_calls.repeat(self.state, shard)
        dependencies.peer_is_back(self.state, shard)
        flows.peer_is_back(self.state, shard)
        reconcile.peer_is_back(self.state, shard)
        self._serve()

    def pass_time(self, now: int) -> None:
        """`tick` before `next_deadline`, when nothing is due."""
        state = self.state
        state.now, state.budget = now, BUDGET
        if state.pushed.batches:
            idempotency.forget(state)
        if now >= state.rates.next_at:
            state.rates.sample(now, state.totals)

    def tick(self, now: int) -> None:
        """Do what is due, as much as one tick allows."""
        state = self.state
        self.pass_time(now)
        self._end_delays()
        if now >= state.reachability.resumes_at:
            self._end_timeouts()
            disconnects.end_reconnects(state)
        queue_limits.ring(state)
        due = state.timetable.next_at()
        if due is not None and due <= now:
            due_runs.run_due(state)
        if now >= state.next_sweep:
            state.next_sweep = now + locks.SWEEP_MS
            if now >= state.reachability.resumes_at:
                locks.sweep(state)
            history.book(state)
        if now >= state.maintenance.next_at:
            retention.step(state)
        if state.background_work:
            background_work.run(state)
        self._serve()
        self._end_polls()
        job_waiters.end_waits(state)
        webhook_trials.end_trials(state)

    def work(self) -> bool:
        """Run one slice of long work; whether more is left."""
        state = self.state
        if state.long_works:
            slices.run(state)
            self._serve()
        return bool(state.long_works)

    def next_deadline(self) -> int:
        """The latest time for the next tick."""
        state = self.state
        if state.long_works or state.background_work:
            return state.now
        return min(self.next_moment(), state.next_sweep, state.maintenance.next_at)

    def next_moment(self) -> int:
        """When something is due, apart from the rounds for locks and retention; NEVER: nothing is."""
        state, deadline = self.state, NEVER
        for heap in state.due:
            if heap.entries and heap.entries[0][0] < deadline:
                deadline = heap.entries[0][0]
        for patience in (state.timeouts, state.reachability.reconnects):
            if patience.entries:
                deadline = min(deadline, max(patience.entries[0][0], state.reachability.resumes_at))
        due = state.timetable.next_at()
        return deadline if due is None else min(deadline, due)

    def disconnect(self, conn: int, now: int, *, severed: bool, broken: bool = False) -> None:
        """Handle the end of a client's connection: closed by the server (``severed``), or lost on the network
        (``broken``)."""
        self.state.now = now
        self.unsubscribe(conn)
        disconnects.disconnect(self.state, conn, severed=severed, broken=broken)
        self._serve()

    def half_closed(self, conn: int, now: int) -> None:
        """Handle a client that sends no more but may still read: the commands it has sent are still
        answered."""
        self.state.now = now
        self.unsubscribe(conn)
        client = self.state.clients.get(conn)
        if client is not None:
            pull.end_polls(self.state, client)
            disconnects.give_back(self.state, client)
            self._serve()

    def cancel_waits(self, conns: Iterable[int]) -> None:
        """Replies to these connections would be lost, so drop what they wait for; the clients ask again.
        They keep their jobs."""
        for conn in conns:
            self.unsubscribe(conn)
            disconnects.hang_up(self.state, conn)

    def unsubscribe(self, conn: int) -> None:
        """End all event subscriptions of a connection."""
        if conn in self.state.clients:
            subscriptions.unsubscribe(self.state, self.state.clients[conn])

    def recover_queue(self, queue_id: int, name: str, completed: int, failed: int) -> None:
        """Restore a queue from storage."""
        state = self.state
        queue = state.enter(QueueState(queue_id, name))
        queue.completed, queue.failed = completed, failed
        state.next_queue_id = max(state.next_queue_id, queue_id + 1)

    def recover_record(self, kind: str, key: str, value: str) -> None:
        """Restore a record from storage; kinds that only a newer version knows stay on disk."""
        record = RECORDS.get(kind)
        if record is not None:
            self.state.kept.note(kind, key, len(value))
            record.recover(self.state, key, value)

    def recover_pushed(self, batches: Iterable[tuple[int, list[PushedEntry] | None]], now: int) -> None:
        """Restore pushes with idempotency keys from storage, batch by batch, newest first."""
        idempotency.recover(self.state, batches, now)

    def recover_jobs(self, jobs: Iterable[Job], now: int) -> None:
        """Restore live jobs from storage, in order of arrival.

        Active ones stay active.  Their lock time restarts, because the shard's downtime is not the worker's
        fault.
        """
        state = self.state
        state.now = now
        doubts = state.recovery.uncertain
        followers: list[Job] = []
        for job in jobs:
            queue = state.queues[job.queue]
            state.next_seq = max(state.next_seq, job.seq + 1)
            state.jobs[job.id] = job
            queue.jobs[job.seq] = job
            if queue.tenant is not None:
                queue.tenant.jobs += 1
            if job.holds_key and job.unique_key is not None:
                queue.unique[job.unique_key] = job.id
            queue_limits.join(queue, job)
            if doubts and job.extra is not None:
                reconcile.note(state, job)
            if job.extra is not None and job.extra.waits_for_jobs:
                if job.extra.after is not None:
                    followers.append(job)
                transitions.recover_blocked(queue, job)
                dependencies.wait_for_pending(state, job)
            elif job.run is not None and job.run.waits is not None and job.lock is None:
                transitions.recover_suspended(state, queue, job)
            elif job.lock is None:
                transitions.enqueue(state, queue, job)
            else:
                recovery.recover_active(state, queue, job)
        transitions.recover_followers(state, followers)

    def suspend_timeouts(self) -> None:
        """Suspend heartbeat timeouts until `resume_timeouts()`."""
        self.state.reachability.resumes_at = NEVER

    def resume_timeouts(self, now: int) -> None:
        """The shard was unreachable for a while: restart all locks and resume heartbeat timeouts after
        RESUME_MS."""
        self.state.now = now
        self.state.reachability.resumes_at = now + RESUME_MS
        locks.renew_all(self.state)

    def set_forward(self, ms: int, now: int) -> None:
        """The wall clock was set forward.  Delays, limits and schedules follow it, but workers keep their
        locks and clients keep the pushes they may repeat."""
        self.state.now = now
        idempotency.set_forward(self.state, ms)
        self.resume_timeouts(now)

    def set_back(self, back: SetBack) -> Counter[str]:
        """The wall clock was ahead and has been corrected.  Return how many things were moved at once, by
        kind; the rest is left to `set_jobs_back`."""
        moved = clock_rebase.set_back(self.state, back)
        self.resume_timeouts(back.now)
        self._serve()
        return moved

    def set_jobs_back(self, back: SetBack, end: int) -> Iterator[int]:
        """Move the live jobs with numbers below ``end``, one step per tick, yielding the number moved in
        each."""
        return clock_rebase.jobs(self.state, back, end)

    def worker_ended(self, owner: str, now: int) -> None:
        """Handle the end of a worker's process."""
        self.state.now = now
        disconnects.worker_ended(self.state, owner)
        self._serve()

    def renew(self, conns: Collection[int], now: int) -> None:
        """These connections have sent data: restart the locks of their jobs."""
        self.state.now = now
        for conn in conns:
            if conn in self.state.clients:
                locks.renew(self.state, self.state.clients[conn].held)

    def worker_presence(
        self,
        queues: Collection[str],
        *,
        present: bool,
        names: Mapping[str, Collection[str]] = MappingProxyType({}),
        origin: int = 0,
    ) -> None:
        """Record that workers registered with a router now work on these queues, or no longer do.  ``names``:
        the job names they run, for queues where all workers declare them."""
        known = self.state.queues_with_workers
        for queue in queues:
            if present:
                said = names.get(queue)
                known.setdefault(queue, {})[origin] = None if said is None else frozenset(said)
            elif queue in known:
                known[queue].pop(origin, None)
                if not known[queue]:
                    del known[queue]

    def router_disconnected(self, origin: int) -> None:
        """Handle the end of a router, which also ends the registrations of its workers."""
        known = self.state.queues_with_workers
        self.worker_presence(
            [queue for queue, origins in known.items() if origin in origins], present=False, origin=origin
        )

    def subscribe(self, conn: int, queue: str) -> None:
        """Resume an event subscription that a connection had with an earlier process of this shard."""
        subscriptions.resume(self.state, self.state.client(conn, 3), queue)

    def parked(self, now: int) -> list[tuple[Client, bytes]]:
        """The commands parked here, for the next owner; see `handing_over`."""
        self.state.now = now
        return list(handing_over.parked(self.state))

    def all_clients_gone(self, now: int) -> None:
        """Handle the final loss of all clients that held jobs."""
        self.state.now = now
        disconnects.all_clients_gone(self.state)
        self._serve()

    def reattach(self, live: Collection[int], now: int) -> None:
        """Reattach the connections that survived the restart of this shard."""
        self.state.now = now
        disconnects.reattach(self.state, live)

    def _serve(self) -> None:
        """Answer pulls and resolve dependencies that waited for what just happened, or for its effects."""
        state = self.state
        while (
            state.woken or state.decided or state.freed_ids or state.unblocked or state.run_ends or state.died
        ):
            if state.died:
                callbacks.call(state)
            if state.freed_ids:
                directory.announce_dropped(state)
            while state.unblocked:
                dependencies.forget(state, state.unblocked.pop())
            dependencies.notify_waiters(state)
            if state.run_ends:
                children.handle_ends(state)
            if state.woken:
                queue = next(iter(state.woken))
                del state.woken[queue]
                pull.serve(state, queue)

    def _end_delays(self) -> None:
        state = self.state
        delays, now = state.delays, state.now
        while state.budget > 0 and (entry := delays.pop_due(now)) is not None:
            state.budget -= 1
            if delays.is_current(entry):
                transitions.due(state, entry[2])

    def _end_timeouts(self) -> None:
        state = self.state
        timeouts, now = state.timeouts, state.now
        while state.budget > 0 and (entry := timeouts.pop_due(now)) is not None:
            state.budget -= 1
            if timeouts.is_current(entry):
                transitions.time_out(state, state.jobs[entry[2]])
                state.budget -= background_work.LOSS

    def _end_polls(self) -> None:
        state = self.state
        while (entry := state.poll_ends.pop_due(state.now)) is not None:
            pull.end_poll(state, entry[2])

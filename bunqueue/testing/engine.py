"""The engine of a sandbox: in memory, and its time moves only on request."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from msgspec import Raw
from msgspec.msgpack import Decoder

from bunqueue.client.models.jobs import Job
from bunqueue.embedded.engine import EmbeddedEngine, Session
from bunqueue.embedded.files import MEMORY
from shardproc.clock import Clock

from .errors import SandboxError

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from bunqueue.protocol.commands import Reply
    from shardproc.core import Shard

MAX_ROUNDS = 1_000_000  # of due work at one moment; more means that it never ends
ROUND_MS = 60_000  # between two looks for what retention has an end of, and dead letters to be retried
MIDDLE = 0.5  # for all chances: a backoff is then exactly what was asked for

_decode_job = Decoder(Job).decode
_decode_view = Decoder(dict[str, Any]).decode


class FrozenClock(Clock):
    """Stands still until it is set."""

    __slots__ = ("_now",)

    def __init__(self, now_ms: int) -> None:
        super().__init__()
        self._now = now_ms

    def now_ms(self) -> int:
        return self._now

    def look(self) -> int:
        return 0

    def mark(self, doubt: int) -> str:
        return ""

    def set(self, now_ms: int) -> None:
        self._now = max(self._now, now_ms)


class Added:
    """A job as it was added."""

    __slots__ = ("job", "view")

    def __init__(self, encoded: bytes) -> None:
        self.job = _decode_job(encoded)
        self.view = _decode_view(encoded)
        """All fields, under their names on the wire."""


class SandboxEngine(EmbeddedEngine):
    """Has no thread: what is due is done at the end of each call."""

    raises = True

    def __init__(self, clock: FrozenClock) -> None:
        self.clock = clock
        self.added: list[Added] = []
        super().__init__(MEMORY)

    def _open(self) -> Shard:
        from shardproc.core import Shard

        return Shard(MEMORY, full_sync=False, clock=self.clock, chance=lambda: MIDDLE)

    def _begin(self) -> None:
        """No thread looks after the time."""

    def close_if_idle(self) -> bool:
        """It lives as long as the sandbox."""
        return False

    def close(self) -> None:
        """The end of the sandbox."""
        with self.lock:
            sessions, self._sessions = list(self._sessions.values()), {}
            if not self.closed:
                self._close()
        for session in sessions:
            session.fail("the sandbox has ended")

    def run(self, session: Session, payloads: list[bytes], here: AbstractEventLoop | None = None) -> None:
        with self.lock:
            super().run(session, payloads, here)
            self._finish()

    def cut(self, session: Session) -> None:
        """The connection of a session ends, and it connects again."""
        with self.lock:
            self.leave(session)
            self.join(session)
            self._finish()

    def kill(self, session: Session, *, renewed: bool) -> None:
        """Whoever is behind a session dies; with ``renewed`` after a renewal of its locks, which then have to
        run out."""
        with self.lock:
            if renewed:
                for job in self._held(session.conn):
                    if job.lock is not None:
                        job.lock.renewed = True
            self.leave(session)
            self._finish()

    # -- time

    def step(self, until: int) -> bool:
        """On to the next moment at which something is due, or to ``until``; False when it is that late.

        Who holds jobs is alive and renews their locks, as far as it is here.
        """
        with self.lock:
            now = self.clock.now_ms()
            if now >= until or self.closed:
                return False
            with self._breaking():
                engine = self._shard.engine
                now = max(now, min(self._next_look(now), until))
                self.clock.set(now)
                engine.renew(list(self._sessions), now)
                self._tick()
            self._finish()
            return True

    def _next_look(self, now: int) -> int:
        """When to look next.  Rounds that would find nothing are left out, so that years pass at once."""
        engine = self._shard.engine
        queues = engine.state.queues.values()
        if any(queue.active for queue in queues):
            return min(engine.next_deadline(), self._limits_open())
        moment = min(engine.next_moment(), self._limits_open())
        if any(queue.completed or queue.failed for queue in queues):
            return min(moment, now + ROUND_MS)
        return moment

    def _limits_open(self) -> int:
        """When a limit lets the next job through.  The engine looks only where a pull is parked, and a drain
        parks none."""
        from shardproc.engine.memory.worker_presence import NEVER
        from shardproc.engine.ready.gate import opens_at

        state = self._shard.engine.state
        held = [queue for queue in state.queues.values() if queue.waiting and not queue.paused and queue.gate]
        times = [opens_at(state, queue, queue.gate) for queue in held if queue.gate is not None]
        return min((at for at in times if at is not None), default=NEVER)

    def _finish(self) -> None:
        """Do all that is due by now."""
        for _ in range(MAX_ROUNDS):
            if self.closed or self._shard.engine.next_deadline() > self.clock.now_ms():
                return
            with self._breaking():
                self._tick()
        raise SandboxError("work that is due at one moment never ends")

    # -- what was added

    def _commit(self) -> list[tuple[int, Reply | Raw]]:
        self._note_added()
        return super()._commit()

    def _note_added(self) -> None:
        from bunqueue.model.events import PUSHED
        from bunqueue.protocol.job_view import queried_job, state_name

        state = self._shard.engine.state
        for entry in state.out.events:
            job = state.jobs.get(entry[2]) if entry[0] == PUSHED else None
            if job is not None:
                self.added.append(Added(queried_job(job, state_name(job, 2))))

    # -- looking

    def waiting(self, queue: str) -> bool:
        """Whether jobs of a queue are ready, as far as one can see without taking one."""
        with self.lock:
            found = self._shard.engine.state.queues.get(queue)
            return found is not None and found.waiting > 0

    def queues(self) -> list[str]:
        """Those that have live jobs, in the order in which they were first met."""
        with self.lock:
            return [queue.name for queue in self._shard.engine.state.queues.values() if queue.jobs]

    def busy(self, workers: dict[Session, set[str]]) -> str | None:
        """What workers, who are sessions with the queues they pull from, have still to do; None: nothing.

        A job that is ready while a pull is parked is held back by something, a pause or a limit."""
        with self.lock:
            state = self._shard.engine.state
            for session, names in workers.items():
                if held := self._held(session.conn):
                    return f"job {next(iter(held)).id} is still active"
                for name in names:
                    queue = state.queues.get(name)
                    if queue is not None and queue.waiting and not queue.waiters:
                        return f"jobs of queue {name!r} wait for a worker"
            return None

    def _held(self, conn: int) -> Collection[Any]:
        client = self._shard.engine.state.clients.get(conn)
        return client.held if client is not None else ()

"""The engine of a sandbox: in memory, with a clock that moves only on request."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from msgspec.msgpack import Decoder

from bunqueue.client.models.jobs import Job
from bunqueue.embedded.engine import EmbeddedEngine, Session
from bunqueue.embedded.open_engines import MEMORY
from bunqueue.model.decoders import decoder
from shardproc.clock import Clock

from .errors import SandboxError

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from bunqueue.client.codecs.codec import Codec
    from shardproc.core import Shard

MAX_ROUNDS = 1_000_000  # rounds of due work at one moment; more than that counts as endless
ROUND_MS = 60_000  # between checks for expired jobs and automatic retries of dead letters
MIDDLE = 0.5  # every random value, so a backoff is exactly as configured

_decode_job = decoder(Job).decode
_decode_view = Decoder(dict[str, Any]).decode


class FrozenClock(Clock):
    """A clock that is stopped until it is set."""

    __slots__ = ("_now",)

    def __init__(self, now_ms: int) -> None:
        super().__init__()
        self._now = now_ms

    def now_ms(self) -> int:
        return self._now

    def check_jump(self) -> int:
        return 0

    def mark(self, uncertainty: int) -> str:
        return ""

    def set(self, now_ms: int) -> None:
        self._now = max(self._now, now_ms)


class Added:
    """A job in the state that it had when it was added."""

    __slots__ = ("job", "view")

    def __init__(self, encoded: bytes) -> None:
        """`encoded` is MessagePack.  What codecs did to its payloads is undone."""
        self.job = _decode_job(encoded)
        self.view = _decode_view(encoded)
        """All fields, by their wire names."""


class _Events(list[Any]):
    """The events of a batch.  They are written when the batch ends, or before anything reads from disk."""

    def __init__(self, on_write: Callable[[], None]) -> None:
        super().__init__()
        self._on_write = on_write

    def clear(self) -> None:
        self._on_write()
        super().clear()


class SandboxEngine(EmbeddedEngine):
    """An embedded engine without a thread.  Due work is done at the end of each call."""

    raises = True

    def __init__(self, clock: FrozenClock) -> None:
        self.clock = clock
        self.round_ms = ROUND_MS
        self.added: list[Added] = []
        self.codecs: list[Codec] = []
        """The codecs that clients have used so far."""
        self._paused_schedules: set[str] = set()
        super().__init__(MEMORY)

    def _open(self) -> Shard:
        from shardproc.core import Shard

        shard = Shard(MEMORY, full_sync=False, clock=self.clock, chance=lambda: MIDDLE)
        shard.engine.out.events = _Events(self._note_added)
        return shard

    def _begin(self) -> None:
        """Start no thread for timers."""

    def close_if_idle(self) -> bool:
        """Never: the engine lives as long as the sandbox."""
        return False

    def close(self) -> None:
        """End the sandbox."""
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

    def reconnect(self, session: Session) -> None:
        """Break the connection of a session, and reconnect it."""
        with self.lock:
            self.leave(session)
            self.join(session)
            self._finish()

    def kill(self, session: Session, *, renewed: bool) -> None:
        """Kill the client of a session.  With ``renewed`` it dies after it has renewed its locks, so they
        must expire."""
        with self.lock:
            if renewed:
                for job in self._locked_jobs(session.conn):
                    if job.lock is not None:
                        job.lock.renewed = True
            self.leave(session)
            self._finish()

    # -- time

    def pause_schedules(self) -> None:
        """Keep schedules from running until `resume_schedules`."""
        with self.lock:
            for schedule in self._shard.engine.state.timetable.by_name.values():
                if not schedule.paused:
                    schedule.paused = True
                    self._paused_schedules.add(schedule.name)

    def resume_schedules(self) -> None:
        """Resume the schedules that were held."""
        with self.lock:
            held, self._paused_schedules = self._paused_schedules, set()
            timetable = self._shard.engine.state.timetable
            for name in held & timetable.by_name.keys():
                schedule = timetable.by_name[name]
                schedule.paused = False
                if schedule.backlog:
                    timetable.ready.append(name)

    def step(self, until: int) -> bool:
        """Advance the clock to the next moment with due work, at most to ``until``.  Return False once
        ``until`` is reached.

        Clients with a session count as alive, so the locks of their jobs are renewed.
        """
        with self.lock:
            now = self.clock.now_ms()
            if now >= until or self.closed:
                return False
            with self._breaking():
                engine = self._shard.engine
                now = max(now, min(self._next_round(now), until))
                self.clock.set(now)
                engine.renew(list(self._sessions), now)
                self._tick()
            self._finish()
            return True

    def _next_round(self, now: int) -> int:
        """The moment of the next round.  Rounds without work are skipped, so years pass at once."""
        engine = self._shard.engine
        queues = engine.state.queues.values()
        if any(queue.active for queue in queues):
            return min(engine.next_deadline(), self._limits_open())
        moment = min(engine.next_moment(), self._limits_open())
        if any(queue.completed or queue.failed for queue in queues):
            return min(moment, now + self.round_ms)
        return moment

    def _limits_open(self) -> int:
        """The moment at which a limit allows the next job.  The engine knows this only for parked pulls, and
        a drain parks none."""
        from shardproc.engine.memory.worker_presence import NEVER
        from shardproc.engine.ready.queue_limits import opens_at

        state = self._shard.engine.state
        waiting = [queue for queue in state.queues.values() if queue.waiting and not queue.paused]
        times = [opens_at(state, queue, queue.limits) for queue in waiting if queue.limits is not None]
        return min((at for at in times if at is not None), default=NEVER)

    def _finish(self) -> None:
        """Do all work that is due by now."""
        for _ in range(MAX_ROUNDS):
            if self.closed or self._shard.engine.next_deadline() > self.clock.now_ms():
                return
            with self._breaking():
                self._tick()
        raise SandboxError("work that is due at one moment never ends")

    # -- what was added

    def _note_added(self) -> None:
        from bunqueue.model.events import PUSHED
        from bunqueue.protocol.job_view import queried_job, state_name

        state = self._shard.engine.state
        for entry in state.out.events:
            job = state.jobs.get(entry[2]) if entry[0] == PUSHED else None
            if job is not None:
                self.added.append(Added(self.opened(queried_job(job, state_name(job, 2)))))

    def opened(self, payload: bytes) -> bytes:
        """A reply with its payloads decoded, as far as a codec of the test can read them."""
        from bunqueue.client.codecs.incoming import decoded

        for codec in self.codecs:
            payload = decoded(codec, payload)
        return payload

    # -- state

    def waiting(self, queue: str) -> bool:
        """Whether a queue has ready jobs.  A pause or a limit may still hold them back."""
        with self.lock:
            found = self._shard.engine.state.queues.get(queue)
            return found is not None and found.waiting > 0

    def queues(self) -> list[str]:
        """The queues with jobs, in the order of first use."""
        with self.lock:
            return [queue.name for queue in self._shard.engine.state.queues.values() if queue.jobs]

    def busy(self, workers: dict[Session, set[str]]) -> str | None:
        """What the workers still have to do, or None if they have nothing to do.  ``workers`` maps sessions
        to the queues that they pull from.

        If a job is ready while a pull is parked, then a pause or a limit holds the job back.
        """
        with self.lock:
            state = self._shard.engine.state
            for session, names in workers.items():
                if held := self._locked_jobs(session.conn):
                    return f"job {next(iter(held)).id} is still active"
                for name in names:
                    queue = state.queues.get(name)
                    if queue is not None and queue.waiting and not queue.waiters:
                        return f"jobs of queue {name!r} wait for a worker"
            return None

    def _locked_jobs(self, conn: int) -> Collection[Any]:
        client = self._shard.engine.state.clients.get(conn)
        return client.held if client is not None else ()

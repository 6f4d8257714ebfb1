"""Keeps the locks of a worker's jobs alive, from a separate thread with its own connection.

So a handler that blocks the event loop for minutes does not lose its job to another worker. The same thread
registers the worker in the server's list of workers.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from math import inf
from typing import Protocol

from msgspec import UNSET, Struct

from bunqueue.client import engine_override
from bunqueue.client.connection.blocking_connection import BlockingConnection
from bunqueue.client.connection.handshake import greetings
from bunqueue.client.connection.options import Duration, milliseconds, reconnect_delay, refused, seconds
from bunqueue.client.connection.replies import R, decode_reply
from bunqueue.client.connection.transport import Endpoint, Transport
from bunqueue.errors import BunqueueError, CommandFailed
from bunqueue.protocol.commands import Ok, core, workers
from bunqueue.protocol.commands.server import HelloReply
from bunqueue.protocol.notices import CancelNotice
from bunqueue.worker.active_job import INTERRUPTED, ActiveJob, Ending, stopped
from bunqueue.worker.locks.loop_monitor import CHECK_S
from bunqueue.worker.presence import Presence
from bunqueue.worker.reporting.failures import stop_command

logger = logging.getLogger("bunqueue.client")

MAX_RENEWAL = 10.0  # seconds between two renewals by default
MAX_IDS = 1000  # jobs in one command
HEARTBEAT_S = 3.0  # seconds between worker heartbeats; the reply may ask the worker to pause
CLOSELY = 1.0  # seconds between job heartbeats while the worker drains
MAX_SILENCE = 5.0  # seconds for a server to answer a renewal before another connection is tried


def renewal_interval(value: Duration | None, lock_ttl: int) -> float:
    """Seconds between two renewals; two may fail before a job's lock is lost. ``lock_ttl`` in
    ms. Raises OptionError."""
    if value is None:
        return min(MAX_RENEWAL, lock_ttl / 3000)
    interval = milliseconds(value, "heartbeat_interval")
    if not 1 <= interval <= lock_ttl / 3:
        raise refused(
            "heartbeat_interval",
            value,
            f"is not allowed; give a time from 1 ms to a third of lock_ttl, which is {lock_ttl} ms",
        )
    return interval / 1000


class Channel(Protocol):
    """The connection of a renewal to the engine. Used by one thread."""

    def call(self, command: Struct, reply: type[R]) -> R:
        """Connects first if needed. Raises OSError or BunqueueError; the channel must be closed
        after that.
        """

    def close(self) -> None:
        """Safe to call twice; the next call connects again."""


class ServerChannel:
    """A connection to a server."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._timeout = min(MAX_SILENCE, seconds(endpoint.options.command_timeout))
        self._connection: BlockingConnection | None = None

    def call(self, command: Struct, reply: type[R]) -> R:
        if self._connection is None:
            self._connection = BlockingConnection(
                self._endpoint, connect_timeout=self._timeout, timeout=self._timeout
            )
        return self._connection.ask(command, reply)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class EmbeddedChannel:
    """A separate session with the engine in this process, from an event loop of the renewing thread."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._runner: asyncio.Runner | None = None
        self._transport: Transport | None = None

    def call(self, command: Struct, reply: type[R]) -> R:
        if self._runner is None:
            self._runner = asyncio.Runner()
        if self._transport is None:
            self._transport = self._runner.run(self._endpoint.open(private=True))
        payload = self._runner.run(self._transport.call(command, timeout=MAX_SILENCE))
        return decode_reply(payload, reply, command, self._endpoint.address)

    def close(self) -> None:
        runner, self._runner = self._runner, None
        transport, self._transport = self._transport, None
        if runner is not None:
            if transport is not None:
                runner.run(transport.close())
            runner.close()


def channel_to(endpoint: Endpoint) -> Channel:
    """A channel that is not connected yet; in the sandbox of a test, to its engine."""
    local = endpoint.embedded or engine_override.current is not None
    return EmbeddedChannel(endpoint) if local else ServerChannel(endpoint)


class LockRenewer:
    """The renewal thread. `keep` and `release` are called from the worker's loop, and cost almost nothing."""

    def __init__(
        self,
        endpoint: Endpoint,
        interval: float,
        *,
        cancel: Callable[[list[CancelNotice]], None],
        check: Callable[[float], None],
        control: Callable[[workers.DesiredState], None],
    ) -> None:
        """All locks are renewed every `interval` seconds, and at once after connecting.

        `cancel` is called in the worker's loop with the jobs that have to stop. `check` is called in the
        thread about once a second, with the seconds by which the call is late. `control` is called in the
        loop, with what was requested of the worker.
        """
        self.received_at = 0.0
        """When the server last answered, by the monotonic clock; 0: never."""
        self._interval = interval
        self._cancel = cancel
        self._check = check
        self._control = control
        self._loop = asyncio.get_running_loop()
        self._presence: Presence | None = None
        self._address = endpoint.address
        self._channel = channel_to(endpoint)
        self._held: dict[str, ActiveJob] = {}  # single operations, so the GIL is enough of a lock
        self._registered = False
        self._heartbeat_at = 0.0  # when to send the next worker heartbeat
        self._failures = 0
        self._woken = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name="bunqueue-renewal", daemon=True)

    @property
    def held(self) -> dict[str, ActiveJob]:
        """The jobs whose locks are currently kept alive, by id."""
        return self._held.copy()

    def find(self, job_id: str, token: str) -> ActiveJob | None:
        """The job with this id, if it is held with this token."""
        job = self._held.get(job_id)
        return job if job is not None and job.token == token else None

    def keeps(self, job: ActiveJob) -> bool:
        """Whether its lock is kept alive."""
        return self._held.get(job.id) is job

    def keep(self, job: ActiveJob) -> bool:
        """Keep the lock of a pulled job alive. Returns False if the worker is already running the job under a
        lock that was lost with a connection: the run continues under the new one.
        """
        running = self._held.get(job.id)
        if running is not None and running.is_same_run(job):
            running.go_on(job)
            self.wake()  # so the server soon sees that the worker still has the job
            return False
        self._held[job.id] = job
        return True

    def release(self, job: ActiveJob) -> None:
        if self._held.get(job.id) is job:
            del self._held[job.id]

    def listen_closely(self) -> None:
        """Send heartbeats more often: from now on only their replies report cancelled jobs."""
        self._interval = min(self._interval, CLOSELY)
        self.wake()

    def wake(self) -> None:
        """Renew now: a connection was lost, and the time until the next renewal may be too long."""
        self._woken.set()

    def heartbeat_soon(self) -> None:
        """Send a worker heartbeat soon: its state has changed."""
        self._heartbeat_at = 0.0

    def start(self, presence: Presence) -> None:
        """Start, and register the worker with the server as `presence` describes it."""
        self._presence = presence
        self._thread.start()

    def stop(self) -> None:
        """Returns when the thread has ended, or after a second; it does not keep the process from exiting."""
        self._stopping = True
        self._woken.set()
        if self._thread.ident is not None:
            self._thread.join(1.0)

    # -- in the thread

    def _work(self) -> None:
        due = 0.0  # at once, to register the worker
        while not (self._stopping or self._loop.is_closed()):
            renewal = time.monotonic() >= due or self._woken.is_set()
            if renewal or (self._registered and time.monotonic() >= self._heartbeat_at):
                if renewal:
                    self._woken.clear()
                self._try(renewal)
                if renewal or self._failures:
                    pause = reconnect_delay(self._failures, random.random()) if self._failures else inf
                    due = time.monotonic() + min(pause, self._interval)
            now = time.monotonic()
            pause = max(0.0, min(due - now, CHECK_S))
            self._woken.wait(pause)
            self._check(time.monotonic() - now - pause)
        if not self._stopping:
            self._give_back()
        self._leave()

    def _try(self, renewal: bool) -> None:
        try:
            if renewal:
                self._renew(list(self.held.values()))
            self._make_known()
            self._failures = 0
        except (OSError, BunqueueError) as error:
            self._failed()
            if self._held and self._failures in (1, 10):  # the worker itself also reports the error
                logger.warning("locks could not be renewed at %s: %s", self._address, error)
        except Exception:
            self._failed()
            logger.exception("locks could not be renewed at %s", self._address)

    def _failed(self) -> None:
        self._failures += 1
        self._channel.close()
        self._registered = False  # a registration ends with its connection

    def _renew(self, held: list[ActiveJob]) -> None:
        for start in range(0, len(held), MAX_IDS):
            part = held[start : start + MAX_IDS]
            alive = self._channel.call(heartbeat(part), core.HeartbeatBatchReply).data
            self.received_at = time.monotonic()
            if alive.count < len(part):  # usually the others finished in the meantime
                logger.debug("%d of %d locks renewed at %s", alive.count, len(part), self._address)
            if alive.cancelled and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._cancel, alive.cancelled)

    def _make_known(self) -> None:
        """Register the worker with the server, and report its state."""
        now, presence = time.monotonic(), self._presence
        if presence is None or (self._registered and now < self._heartbeat_at):
            return
        try:
            if not self._registered:
                self._channel.call(presence.registration(), workers.RegisterWorkerReply)
                self._registered = True
                presence.registered(self._address, self._server())
            self._heartbeat_at = inf  # `heartbeat_soon` may set it earlier in the meantime
            command = presence.heartbeat(self._current())
            desired = self._channel.call(command, workers.WorkerHeartbeatReply).data
            self.received_at = time.monotonic()
            if (desired.paused, desired.concurrency, desired.stop) != (
                UNSET,
                UNSET,
                UNSET,
            ) and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._control, desired)
        except CommandFailed as error:  # it was forgotten, or this server keeps no list of workers
            self._registered = False
            logger.debug("%s does not list this worker: %s", self._address, error)
        self._heartbeat_at = min(self._heartbeat_at, now + HEARTBEAT_S)

    def _current(self) -> str | None:
        return next(iter(self.held), None)

    def _server(self) -> str:
        (hello, kind), *_ = greetings(None)
        reply = self._channel.call(hello, kind)
        return f"{reply.server} {reply.version}" if isinstance(reply, HelloReply) else "a server"

    def _give_back(self) -> None:
        """Give jobs back: nobody else does, and if this thread renewed their locks for ever, no worker could
        get them.
        """
        held = self.held.values()
        words = "the event loop was closed before the worker was stopped; %d jobs that it held at %s go back"
        logger.warning(words, len(held), self._address)
        for job in held:
            with suppress(OSError, BunqueueError):
                self._channel.call(stop_command(job, stopped(job, Ending(INTERRUPTED))), core.AckReply)

    def _leave(self) -> None:
        """Send the final totals, and unregister."""
        if self._registered and self._presence is not None:
            command = self._presence.heartbeat(self._current())
            with suppress(OSError, BunqueueError):
                self._channel.call(command, workers.WorkerHeartbeatReply)
                self._channel.call(workers.UnregisterWorker(worker_id=command.id), Ok)
        self._channel.close()


def heartbeat(held: Collection[ActiveJob]) -> core.JobHeartbeatBatch:
    """The command that reports that these jobs are being worked on."""
    return core.JobHeartbeatBatch(
        ids=[job.id for job in held], tokens=[job.token for job in held], own_timeouts=True
    )

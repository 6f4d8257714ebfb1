"""One run of a worker, from its start to its end.

The order of stopping is the seeds': take no more jobs, keep renewing, wait for what runs, report it, close.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from msgspec import MsgspecError, Raw

from bunqueue.client.connection.caller import AsyncCaller
from bunqueue.client.connection.transport import Endpoint, Transport
from bunqueue.client.models.jobs import PulledJobs
from bunqueue.client.worker import log
from bunqueue.client.worker.active_job import CANCELLED, INTERRUPTED, ActiveJob, Ending, stopped
from bunqueue.client.worker.failures import made_final
from bunqueue.client.worker.fetcher import PollOrders, Polls
from bunqueue.client.worker.job_channel import LoopLine
from bunqueue.client.worker.job_logging import forward
from bunqueue.client.worker.job_runner import PROCESS_PATIENCE, Runner, RunOrders, end
from bunqueue.client.worker.lock_renewer import Renewal, heartbeat
from bunqueue.client.worker.log import logger
from bunqueue.client.worker.loop_monitor import LoopWatch
from bunqueue.client.worker.reporter import Outcomes
from bunqueue.client.worker.slots import Slots
from bunqueue.client.worker.stats import Callbacks, Ledger
from bunqueue.errors import BunqueueError, JobTimeout
from bunqueue.protocol.commands import core, workers
from bunqueue.protocol.notices import CancelNotice, read_notice

MAX_UNREPORTED = 1000  # outcomes waiting to be reported beyond which no more jobs are taken
STOP_PATIENCE = PROCESS_PATIENCE + 2.0  # seconds for cancelled handlers to end, again for the last reports


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """What a worker was told. Spans in seconds."""

    name: str
    polls: PollOrders
    run: RunOrders
    concurrency: int
    max_jobs: int | None
    max_memory: int | None
    renewal_interval: float
    ack_batch: int
    ack_delay: float
    callbacks: Callbacks

    @property
    def queue(self) -> str:
        """For messages."""
        return ", ".join(self.polls.queues)


class WorkerRun:
    """Polls, runs, reports. Made and used in one event loop."""

    def __init__(self, orders: WorkerConfig, endpoint: Endpoint) -> None:
        self.fatal: BaseException | None = None
        """Why it stopped by itself; `over` is set then, and `stop` still has to be called."""
        self.worn_out: str | None = None
        """Why it has stopped by itself in order, to be replaced by a new one."""
        self.over = asyncio.Event()
        self._taken = 0  # jobs, of `max_jobs`
        self._ended = 0
        self._orders = orders
        self._endpoint = endpoint
        self._caller = AsyncCaller(endpoint)
        self._line = LoopLine(self._caller)
        self._polls = Polls(orders.polls, self, endpoint.address)
        self._renewal = Renewal(endpoint, orders.renewal_interval, self)
        place = (orders.queue, endpoint.address)
        self.ledger = Ledger(orders.callbacks, *place, self._settled, self._renewal.nudge)
        self._outcomes = Outcomes(
            self._caller, self.ledger, self.give_up, batch=orders.ack_batch, delay=orders.ack_delay
        )
        self._runner = Runner(orders.run, self._outcomes, self, self._line)
        self._slots: Slots[ActiveJob] = Slots(orders.concurrency, self._runner.run, self._freed)
        self._loop = asyncio.get_running_loop()
        self._watch = LoopWatch(self._loop)
        self._started_at = time.time()
        self._end_forwarding: Callable[[], None] | None = None
        self._stopping = False
        self._hurried = False
        self._no_more_waiting = asyncio.Event()  # for handlers: none is left, or the grace is over

    @property
    def gone(self) -> bool:
        """Whether its event loop was closed before it was stopped."""
        return self._loop.is_closed()

    @property
    def busy(self) -> int:
        """Jobs in hand."""
        return self._slots.busy

    async def start(self) -> None:
        # Pulls have a connection of their own: closing it withdraws polls, whoever else talks to the server.
        given = self._endpoint.options
        options = replace(given, pool_size=1, max_command_timeouts=1, pipelining=True)
        self._pulls: Transport = await replace(self._endpoint, options=options).open(private=True)
        self._pulls.listen(self._heard)
        # Acknowledgements share it: with the poll that follows they are one write and one transaction.
        self._caller.use(self._pulls)
        if self._orders.run.log_level is not None:
            self._end_forwarding = forward(self._orders.run.log_level, self._line)
        self._outcomes.start()
        self._renewal.start()
        self._polls.start(self._pulls)
        place, orders = (self._orders.queue, self._endpoint.address), self._orders
        log.worker_started(*place, orders.concurrency, orders.polls.owner)

    # -- taking jobs

    def room(self) -> int:
        if self._outcomes.waiting > MAX_UNREPORTED:
            return 0
        room = self._orders.concurrency - self._slots.busy
        limit = self._orders.max_jobs
        return room if limit is None else min(room, limit - self._taken)

    def has_any(self, queue: str) -> bool:
        return any(job.queue == queue for job in self._renewal.held.values())

    def take(self, reply: PulledJobs) -> None:
        self.ledger.works()
        if len(reply.tokens) != len(reply.jobs):
            text = f"{self._endpoint.address} gave jobs without tokens; is it a bunqueue server?"
            self.trouble(BunqueueError(text))
            return
        jobs = []
        for raw, token in zip(reply.jobs, reply.tokens, strict=True):
            job = self._unpack(raw, token)
            if job is not None:
                jobs.append(job)
        if jobs:
            self._taken += len(jobs)
            self._slots.put(jobs)

    def _unpack(self, raw: Raw, token: str) -> ActiveJob | None:
        try:
            job = ActiveJob(raw, token, self._line)
        except MsgspecError as error:  # it stays locked until its lock runs out: there is no id to report
            self.trouble(BunqueueError(f"a job that was pulled is not readable: {error}"))
            return None
        if not self._renewal.keep(job):
            return None
        try:
            job.open()
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
            self._outcomes.fail(job, made_final(error), f"the job's data cannot be decoded: {problem}")
            return None
        return job

    def _freed(self) -> None:
        self._polls.change.set()
        self._ended += 1
        if self._ended == self._orders.max_jobs:
            self._wear_out(f"it has run {self._ended} jobs")
        if not self._slots.busy:
            self._outcomes.flush()
            if self._stopping:
                self._no_more_waiting.set()

    def give_up(self, error: BaseException) -> None:
        """Stop for a reason of our own."""
        if self.fatal is None:
            self.fatal = error
            if isinstance(error, BunqueueError):  # what handlers raise is their jobs' outcome, too
                self.ledger.complain(error)
        self.over.set()

    # -- what the server tells unasked

    def _heard(self, payload: bytes | None) -> None:
        if payload is None:  # the connection was lost: tell the server in time what goes on
            self._renewal.nudge()
            return
        notice = read_notice(payload)
        if notice is not None:
            self._cancel([notice])

    def told(self, notices: list[CancelNotice]) -> None:
        """In the renewal's thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._cancel, notices)

    def _cancel(self, notices: list[CancelNotice]) -> None:
        for notice in notices:
            job = self._renewal.find(notice.id, notice.token)
            if job is not None:
                end(job, Ending(CANCELLED, notice.reason, notice.grace / 1000))

    # -- what the server's list of workers tells

    def registration(self) -> workers.RegisterWorker:
        return workers.RegisterWorker(
            name=self._orders.name,
            queues=list(self._orders.polls.queues),
            worker_id=self._orders.polls.owner,
            concurrency=self._orders.concurrency,
            hostname=socket.gethostname(),
            pid=os.getpid(),
            started_at=self._started_at * 1000,
        )

    def reached(self, server: str) -> None:
        """In the renewal's thread."""
        log.connected(self._orders.queue, self._endpoint.address, server)

    def look(self, frozen: float) -> None:
        """In the renewal's thread."""
        self._watch.look(frozen)
        limit = self._orders.max_memory
        if limit is None or self.over.is_set():
            return
        from bunqueue.vitals import memory  # not to be had everywhere

        if (held := memory()) > limit:
            self._loop.call_soon_threadsafe(self._wear_out, f"it holds {held} bytes")

    def vitals(self) -> workers.Heartbeat:
        return workers.Heartbeat(
            id=self._orders.polls.owner,
            active_jobs=self._slots.busy,
            processed=self.ledger.completed,
            failed=self.ledger.failed,
            current_job=next(iter(self._renewal.held), None),
        )

    # -- what becomes of jobs

    def timed_out(self, job: ActiveJob, error: JobTimeout) -> None:
        # The server counts the same time from a moment before, so it need not be told.
        self.ledger.job_failed(job, error)

    def trouble(self, error: BunqueueError) -> None:
        self.ledger.trouble(error)

    def _settled(self, job: ActiveJob) -> None:
        self._renewal.release(job)
        self._polls.change.set()

    def _wear_out(self, why: str) -> None:
        if self.worn_out is None and not self.over.is_set():
            log.worker_worn_out(self._orders.queue, why)
            self.worn_out = why
            self._polls.stop_asking()  # at once, as the stop begins when this loop comes to it
            self.over.set()

    # -- how it is

    def silence(self) -> float | None:
        """Seconds since the server was last heard; None: never."""
        heard_at = max(self._polls.heard_at, self._renewal.heard_at)
        return time.monotonic() - heard_at if heard_at else None

    @property
    def age(self) -> float:
        """Seconds since its start."""
        return time.time() - self._started_at

    @property
    def lag(self) -> float:
        """Seconds for which the event loop has not turned, as far as is known."""
        return self._watch.lag

    # -- stopping

    def hurry(self) -> None:
        """The time of grace is over."""
        self._hurried = True
        self._no_more_waiting.set()

    async def stop(self, grace: float) -> None:
        """Returns when all is reported and closed. Handlers get `grace` seconds to end by themselves."""
        self._stopping = self._line.stopping = self.ledger.stopping = True
        begun = time.monotonic()
        log.worker_stopping(self._orders.queue, self._running(), grace)
        self._runner.tell_stopping()
        self._polls.stop_asking()
        end_at = self._loop.time() + grace
        timer = self._loop.call_at(end_at, self.hurry)
        for job in self._slots.withdraw():
            self._outcomes.stop_short(job, stopped(job, Ending(INTERRUPTED)))
        await self._withdraw_polls()
        if self._slots.busy:
            await self._no_more_waiting.wait()
        if self._slots.busy:
            self._end_running()
        await self._slots.cancel(STOP_PATIENCE)
        grace_left = 0.0 if self._hurried else end_at - self._loop.time()
        await self._report_all(max(STOP_PATIENCE, grace_left))
        timer.cancel()
        await self._close()
        log.worker_stopped(self._orders.queue, self.ledger, time.monotonic() - begun)

    def _end_running(self) -> None:
        """The time of grace is over."""
        log.jobs_interrupted(self._orders.queue, self._running())
        for job in self._renewal.held.values():
            end(job, Ending(INTERRUPTED, grace=PROCESS_PATIENCE))

    def _running(self) -> list[ActiveJob]:
        """The jobs in hand whose handlers have not ended."""
        return [job for job in self._renewal.held.values() if job.took is None]

    async def _withdraw_polls(self) -> None:
        """Close the connection of the polls, so that they take no job any more.

        The server gives back at once what was pulled over it and never renewed, so that is done before. If
        it cannot be done, the connection stays until all is reported. From then on heartbeats tell which jobs
        are cancelled, so they come more often.
        """
        held = self._renewal.held.values()
        if held:
            try:
                async with asyncio.timeout(STOP_PATIENCE):
                    await self._caller.call(heartbeat(held), core.HeartbeatBatchReply)
            except (BunqueueError, TimeoutError) as error:
                logger.debug("queue %r: polls are not withdrawn: %s", self._orders.queue, error)
                return
        self._renewal.listen_closely()
        self._caller.use(None)
        await self._pulls.close()

    async def _report_all(self, patience: float) -> None:
        try:
            async with asyncio.timeout(patience):
                await self._outcomes.drain()
                await self._line.settle(patience)
        except TimeoutError:
            queue, address = self._orders.queue, self._endpoint.address
            message = (
                f"the worker stops, and {len(self._renewal.held)} outcomes could not be "
                f"reported to {address}; these jobs will run again"
            )
            self.ledger.complain(BunqueueError(message, queue=queue, address=address))

    async def _close(self) -> None:
        await self._caller.close()
        await self._pulls.close()
        await self._polls.stop()
        await self._outcomes.stop()
        await asyncio.to_thread(self._runner.stop)
        await asyncio.to_thread(self._renewal.stop)
        if self._end_forwarding is not None:
            self._end_forwarding()

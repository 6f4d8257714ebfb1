"""One run of a worker, from its start to its end.

The order of stopping is the seeds': take no more jobs, keep renewing, wait for what runs, report it, close.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from bunqueue.client.connection.caller import AsyncCaller
from bunqueue.client.connection.transport import Endpoint, Transport
from bunqueue.client.worker import log
from bunqueue.client.worker.active_job import CANCELLED, INTERRUPTED, ActiveJob, Ending, stopped
from bunqueue.client.worker.fetcher import PollOrders, Polls
from bunqueue.client.worker.intake import Intake
from bunqueue.client.worker.job_channel import LoopLine
from bunqueue.client.worker.job_logging import forward
from bunqueue.client.worker.job_runner import PROCESS_PATIENCE, Runner, RunOrders, end
from bunqueue.client.worker.lock_renewer import Renewal, heartbeat
from bunqueue.client.worker.log import logger
from bunqueue.client.worker.loop_monitor import LoopWatch
from bunqueue.client.worker.presence import Presence
from bunqueue.client.worker.reporter import Outcomes
from bunqueue.client.worker.slots import Slots
from bunqueue.client.worker.stats import Callbacks, Ledger
from bunqueue.errors import BunqueueError
from bunqueue.protocol.commands import core
from bunqueue.protocol.notices import CancelNotice, read_notice

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
        self._ended = 0
        self._orders = orders
        self._endpoint = endpoint
        self._caller = AsyncCaller(endpoint)
        self._line = LoopLine(self._caller)
        self._change = asyncio.Event()  # there may be more room
        self._renewal = Renewal(endpoint, orders.renewal_interval, cancel=self._cancel, look=self._look)
        place = (orders.queue, endpoint.address)
        self.ledger = Ledger(orders.callbacks, *place, self._settled, self._renewal.nudge)
        self._outcomes = Outcomes(
            self._caller, self.ledger, self._give_up, batch=orders.ack_batch, delay=orders.ack_delay
        )
        self._runner = Runner(orders.run, self._outcomes, self.ledger, self._give_up, self._line)
        self._slots: Slots[ActiveJob] = Slots(orders.concurrency, self._runner.run, self._freed)
        intake = Intake(
            self._slots,
            self._renewal,
            self._outcomes,
            self.ledger,
            self._line,
            concurrency=orders.concurrency,
            max_jobs=orders.max_jobs,
            address=endpoint.address,
        )
        self._polls = Polls(orders.polls, intake, self.ledger, self._give_up, self._change, endpoint.address)
        self._presence = Presence(
            orders.name,
            orders.polls.queues,
            orders.polls.owner,
            orders.concurrency,
            self._slots,
            self.ledger,
        )
        self._loop = asyncio.get_running_loop()
        self._watch = LoopWatch(self._loop)
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
        self._renewal.start(self._presence)
        self._polls.start(self._pulls)
        place, orders = (self._orders.queue, self._endpoint.address), self._orders
        log.worker_started(*place, orders.concurrency, orders.polls.owner)

    # -- what happens to its parts

    def _freed(self) -> None:
        self._change.set()
        self._ended += 1
        if self._ended == self._orders.max_jobs:
            self._wear_out(f"it has run {self._ended} jobs")
        if not self._slots.busy:
            self._outcomes.flush()
            if self._stopping:
                self._no_more_waiting.set()

    def _give_up(self, error: BaseException) -> None:
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

    def _cancel(self, notices: list[CancelNotice]) -> None:
        for notice in notices:
            job = self._renewal.find(notice.id, notice.token)
            if job is not None:
                end(job, Ending(CANCELLED, notice.reason, notice.grace / 1000))

    def _look(self, frozen: float) -> None:
        """In the renewal's thread."""
        self._watch.look(frozen)
        limit = self._orders.max_memory
        if limit is None or self.over.is_set():
            return
        from bunqueue.vitals import memory  # not to be had everywhere

        if (held := memory()) > limit:
            self._loop.call_soon_threadsafe(self._wear_out, f"it holds {held} bytes")

    def _settled(self, job: ActiveJob) -> None:
        self._renewal.release(job)
        self._change.set()

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
        return time.time() - self._presence.started_at

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

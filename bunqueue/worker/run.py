"""One run of a worker, from its start to its end.

It stops in this order: take no more jobs, keep renewing, wait for running jobs, report them, close.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from msgspec import UNSET

from bunqueue.client.connection.caller import AsyncCaller
from bunqueue.client.connection.transport import Endpoint, Transport
from bunqueue.errors import BunqueueError, WorkerBroken
from bunqueue.protocol.commands.workers import DesiredState
from bunqueue.protocol.notices import CancelNotice, read_notice, read_wake
from bunqueue.worker import log
from bunqueue.worker.active_job import CANCELLED, INTERRUPTED, ActiveJob, Ending, stopped
from bunqueue.worker.control import Control
from bunqueue.worker.fetching.fetcher import MAX_PULL, FetchConfig
from bunqueue.worker.fetching.intake import Intake
from bunqueue.worker.fetching.ordered_fetcher import fetcher_for
from bunqueue.worker.fetching.slots import Slots
from bunqueue.worker.job_channel import WorkerChannel
from bunqueue.worker.job_logging import forward
from bunqueue.worker.job_runner import PROCESS_PATIENCE, JobRunner, RunConfig, end
from bunqueue.worker.locks.lock_renewer import LockRenewer, heartbeat
from bunqueue.worker.locks.loop_monitor import LoopMonitor
from bunqueue.worker.log import logger
from bunqueue.worker.outcomes import Callbacks, Outcomes
from bunqueue.worker.presence import Presence
from bunqueue.worker.reporting.reporter import Reporter
from bunqueue.worker.reporting.retrying_caller import RetryingCaller

NOTICED = 0.1  # seconds from the end of a task to the end of the worker, unless that was stopping anyway
STOP_PATIENCE = PROCESS_PATIENCE + 2.0  # seconds for cancelled handlers to end, and again for last reports


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """The options of a worker, checked. Durations are in seconds."""

    name: str
    fetch: FetchConfig
    run: RunConfig
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
        return ", ".join(self.fetch.queues)


class WorkerRun:
    """Makes the parts of a worker, connects them, and stops them in order.

    Made and used in one event loop.
    """

    def __init__(self, config: WorkerConfig, endpoint: Endpoint, control: Control) -> None:
        """`control` may change at any time; call `controlled` then."""
        self.fatal: BaseException | None = None
        """Why it stopped on its own; `over` is set then, and `stop` still has to be called."""
        self.recycle_reason: str | None = None
        """Why it stopped gracefully on its own, to be replaced by a new worker."""
        self.asked_to_stop = False
        """Somebody asked for its end at the server. With `drains` its jobs have all the time they need."""
        self.drains = False
        self.over = asyncio.Event()
        self._ended = 0
        self._config = config
        self._control = control
        self._endpoint = endpoint
        self._caller = AsyncCaller(endpoint)
        self._change = asyncio.Event()  # set when there may be more room
        self._renewer = LockRenewer(
            endpoint, config.renewal_interval, cancel=self._cancel, check=self._check, control=self._apply
        )
        address = endpoint.address
        self.stats = Outcomes(
            config.callbacks, config.queue, address, self._on_done, self._renewer.keeps, self._renewer.wake
        )
        retrying = RetryingCaller(self._caller, self.stats)
        self._channel = WorkerChannel(self._caller, retrying, config.run.middleware, config.concurrency)
        self._reporter = Reporter(
            retrying.ask,
            self.stats,
            self._change.set,
            self._part_ended,
            batch=config.ack_batch,
            delay=config.ack_delay,
        )
        self._runner = JobRunner(config.run, self._reporter, self._give_up, self._is_ending, self._channel)
        self._slots: Slots[ActiveJob] = Slots(control.concurrency, self._runner.run, self._freed)
        intake = Intake(
            self._slots,
            self._renewer,
            self._reporter,
            self.stats,
            self._channel,
            control=control,
            max_jobs=config.max_jobs,
            address=address,
        )
        self._fetcher = fetcher_for(config.fetch)(
            config.fetch, intake, self.stats, self._give_up, self._part_ended, self._change, address
        )
        fetch = config.fetch
        names = {queue: config.run.table.of(queue).names for queue in fetch.queues}
        self._presence = Presence(
            config.name, fetch.queues, fetch.owner, control, self._slots, self.stats, names
        )
        self._loop = asyncio.get_running_loop()
        self._monitor = LoopMonitor(self._loop)
        self._end_forwarding: Callable[[], None] | None = None
        self._stopping = False
        self._grace_ended = False
        self._no_more_waiting = asyncio.Event()  # for handlers: all have ended, or the grace is over

    @property
    def loop_closed(self) -> bool:
        """Whether its event loop was closed before it was stopped."""
        return self._loop.is_closed()

    @property
    def busy(self) -> int:
        """The number of jobs in progress."""
        return self._slots.busy

    async def start(self) -> None:
        # Pulls have their own connection: closing it withdraws polls, whatever else uses the server.
        given = self._endpoint.options
        options = replace(given, pool_size=1, max_command_timeouts=1, pipelining=True)
        self._pulls: Transport = await replace(self._endpoint, options=options).open(private=True)
        self._pulls.listen(self._on_notice)
        # Acknowledgements share it: with the poll that follows they are one write and one transaction.
        self._caller.use(self._pulls)
        if self._config.run.log_level is not None:
            self._end_forwarding = forward(self._config.run.log_level, self._channel)
        self._renewer.start(self._presence)
        self._fetcher.start(self._pulls)
        config, control = self._config, self._control
        self._make_room()
        log.worker_started(config.queue, self._endpoint.address, control.concurrency, config.fetch.owner)

    # -- what happens to its parts

    def _freed(self) -> None:
        self._change.set()
        self._ended += 1
        if self._ended == self._config.max_jobs:
            self._recycle(f"it has run {self._ended} jobs")
        if not self._slots.busy:
            self._reporter.flush()
            if self._stopping:
                self._no_more_waiting.set()

    def _give_up(self, error: BaseException) -> None:
        """Stop for an internal reason."""
        if self.fatal is None:
            self.fatal = error
            if isinstance(error, BunqueueError) and not isinstance(error, WorkerBroken):
                self.stats.report_error(error)  # exceptions of handlers are also outcomes of their jobs
        self.over.set()

    def _is_ending(self) -> bool:
        """Whether the worker is ending running jobs: it stops, or all tasks of its event loop
        were cancelled.
        """
        return self._stopping or self.over.is_set() or self._fetcher.is_cancelled

    def _part_ended(self, task: asyncio.Task[None]) -> None:
        """A task that fetches or reports has ended. Unless the worker is stopping, it cannot work
        any more.
        """
        if self._stopping:
            return
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("queue %r: a part of the worker has failed", self._config.queue, exc_info=error)
            self._give_up(error)
        elif task.cancelled():  # a loop that ends cancels its tasks, and then the worker itself is stopped
            self._loop.call_later(NOTICED, self._broken)

    def _broken(self) -> None:
        if self._stopping or self.over.is_set():
            return
        queue, address = self._config.queue, self._endpoint.address
        text = (
            f"queue {queue!r}: the worker stops, as somebody else has cancelled its tasks; cancel tasks that "
            f"are yours, not all of asyncio.all_tasks(), and start the worker again"
        )
        logger.error("%s", text)
        self._give_up(WorkerBroken(text, queue=queue, address=address))

    # -- what may change while it runs

    def controlled(self) -> None:
        """Its `control` has changed. May be called in any thread."""
        with suppress(RuntimeError):  # the loop was closed
            self._loop.call_soon_threadsafe(self._take_over)

    def _take_over(self) -> None:
        self._make_room()
        self._change.set()
        self._renewer.heartbeat_soon()
        log.worker_controlled(self._config.queue, self._control.concurrency, paused=self._control.paused)

    def _make_room(self) -> None:
        """Limits that equal the concurrency change with it."""
        before, size = self._config.concurrency, self._control.concurrency
        self._slots.resize(size)
        self._runner.grow(before, size)
        if self._config.fetch.pull_size >= min(before, MAX_PULL):
            self._fetcher.pull_size = min(size, MAX_PULL)

    def _apply(self, desired: DesiredState) -> None:
        """Apply what somebody requested at the server. A request received twice is applied once."""
        if desired.number is not UNSET:
            if desired.number <= self._control.request:
                return
            self._control.request = desired.number
        if desired.paused is not UNSET:
            self._control.paused = desired.paused
        if desired.concurrency is not UNSET:
            self._control.concurrency = max(desired.concurrency, self._config.fetch.least)
        if (desired.paused, desired.concurrency) != (UNSET, UNSET):
            self._take_over()
        if desired.stop is not UNSET and not self.over.is_set():
            log.worker_asked_to_stop(self._config.queue, drain=desired.stop == "drain")
            self.asked_to_stop, self.drains = True, desired.stop == "drain"
            self._renewer.heartbeat_soon()  # which confirms it
            self._fetcher.stop_asking()
            self.over.set()

    # -- notices from the server

    def _on_notice(self, payload: bytes | None) -> None:
        if payload is None:  # the connection was lost: renew the locks before they expire
            self._renewer.wake()
            return
        notice = read_notice(payload)
        if notice is not None:
            self._cancel([notice])
        elif (news := read_wake(payload)) is not None:
            job = self._renewer.find(news.id, news.token)
            if job is not None and job.woken is not None:
                job.woken(news.number)

    def _cancel(self, notices: list[CancelNotice]) -> None:
        for notice in notices:
            job = self._renewer.find(notice.id, notice.token)
            if job is not None:
                end(job, Ending(CANCELLED, notice.reason, notice.grace / 1000))

    def _check(self, frozen: float) -> None:
        """Runs in the renewal thread."""
        self._monitor.check(frozen)
        limit = self._config.max_memory
        if limit is None or self.over.is_set():
            return
        from bunqueue.process_stats import memory  # not available everywhere

        if (held := memory()) > limit:
            self._loop.call_soon_threadsafe(self._recycle, f"it holds {held} bytes")

    def _on_done(self, job: ActiveJob) -> None:
        self._renewer.release(job)
        self._change.set()

    def _recycle(self, why: str) -> None:
        if self.recycle_reason is None and not self.over.is_set():
            log.worker_recycled(self._config.queue, why)
            self.recycle_reason = why
            self._fetcher.stop_asking()  # at once, because the stop begins only when this loop gets to it
            self.over.set()

    # -- its state

    def silence(self) -> float | None:
        """Seconds since the server last answered; None: never."""
        received_at = max(self._fetcher.received_at, self._renewer.received_at)
        return time.monotonic() - received_at if received_at else None

    @property
    def age(self) -> float:
        """Seconds since its start."""
        return time.time() - self._presence.started_at

    @property
    def lag(self) -> float:
        """Seconds for which the event loop has been blocked, as far as known."""
        return self._monitor.lag

    # -- stopping

    def end_grace(self) -> None:
        """The grace is over."""
        self._grace_ended = True
        self._no_more_waiting.set()

    async def stop(self, grace: float) -> None:
        """Returns when everything is reported and closed. Handlers get `grace` seconds to end on
        their own.
        """
        self._stopping = self._channel.stopping = self.stats.stopping = True
        begun = time.monotonic()
        log.worker_stopping(self._config.queue, self._running(), grace)
        self._fetcher.stop_asking()
        end_at = self._loop.time() + grace
        timer = self._loop.call_at(end_at, self.end_grace)
        not_begun = self._slots.withdraw()
        await self._withdraw_polls()  # before any job goes back: a poll that waits there would take it again
        self._runner.notify_stopping()
        for job in not_begun:
            self._reporter.stop_short(job, stopped(job, Ending(INTERRUPTED)))
        if self._slots.busy:
            await self._no_more_waiting.wait()
        if self._slots.busy:
            self._end_running()
        await self._slots.cancel(STOP_PATIENCE)
        grace_left = 0.0 if self._grace_ended else end_at - self._loop.time()
        await self._report_all(max(STOP_PATIENCE, grace_left))
        timer.cancel()
        await self._close()
        log.worker_stopped(self._config.queue, self.stats, time.monotonic() - begun)

    def _end_running(self) -> None:
        """The grace is over."""
        log.jobs_interrupted(self._config.queue, self._running())
        for job in self._renewer.held.values():
            end(job, Ending(INTERRUPTED, grace=PROCESS_PATIENCE))

    def _running(self) -> list[ActiveJob]:
        """The jobs in progress whose handlers have not ended."""
        return [job for job in self._renewer.held.values() if job.took is None]

    async def _withdraw_polls(self) -> None:
        """Close the connection of the polls, so that they take no more jobs.

        The server at once gives back jobs that were pulled over it and never renewed, so all jobs are renewed
        first. If that fails, the connection stays open until everything is reported. After it is closed, only
        the replies to heartbeats say which jobs are cancelled, so heartbeats come more often.
        """
        held = self._renewer.held.values()
        if held:
            try:
                async with asyncio.timeout(STOP_PATIENCE):
                    await self._renew_all()
            except (BunqueueError, TimeoutError) as error:
                logger.debug("queue %r: polls are not withdrawn: %s", self._config.queue, error)
                return
        self._renewer.listen_closely()
        self._caller.use(None)
        await self._pulls.close()
        if held:
            await self._confirm_disconnect()

    async def _confirm_disconnect(self) -> None:
        """Wait until the server has seen the polls' connection end: it executes commands from another
        connection after that end, once it has answered two of them.
        """
        with suppress(BunqueueError, TimeoutError):
            async with asyncio.timeout(STOP_PATIENCE):
                for _ in range(2):
                    await self._renew_all()

    async def _renew_all(self) -> None:
        """Renew the locks of all jobs in progress. Raises BunqueueError."""
        await self._caller.call(heartbeat(self._renewer.held.values()))

    async def _report_all(self, patience: float) -> None:
        try:
            async with asyncio.timeout(patience):
                await self._reporter.drain()
                await self._channel.flush(patience)
                await self.stats.finish(patience)
        except TimeoutError:
            queue, address = self._config.queue, self._endpoint.address
            message = (
                f"the worker stops, and {len(self._renewer.held)} outcomes could not be "
                f"reported to {address}; these jobs will run again"
            )
            self.stats.report_error(BunqueueError(message, queue=queue, address=address))

    async def _close(self) -> None:
        await self._caller.close()
        await self._pulls.close()
        await self._fetcher.stop()
        await self._reporter.stop()
        await self._channel.stop()
        await asyncio.to_thread(self._runner.stop)
        await asyncio.to_thread(self._renewer.stop)
        if self._end_forwarding is not None:
            self._end_forwarding()

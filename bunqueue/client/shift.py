"""One run of a worker, from its start to its end.

The order of stopping is the seeds': take no more jobs, keep renewing, wait for what runs, report it, close.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from msgspec import MsgspecError, Raw

from bunqueue.client.caller import AsyncCaller
from bunqueue.client.connection_options import reconnect_delay
from bunqueue.client.job_options import encode_data
from bunqueue.client.jobs import PulledJobs
from bunqueue.client.middleware import Middleware, around_running
from bunqueue.client.outcomes import Outcomes
from bunqueue.client.renewal import Renewal
from bunqueue.client.replies import decode_reply
from bunqueue.client.runner import ActiveJob, Handler, ProgressLine, Runner, error_text
from bunqueue.client.slots import Slots
from bunqueue.client.transport import Endpoint, Transport
from bunqueue.errors import AuthError, BunqueueError, ConnectionLost, ConnectTimeout, LockLost
from bunqueue.protocol.commands import core
from bunqueue.protocol.commands.core import PullBatch

logger = logging.getLogger("bunqueue.worker")

POLLS = 2  # at a time: while one is parked for few jobs, the other asks for what became free since
MAX_POLL_DELAY = 5.0  # seconds between polls that fail
MAX_UNREPORTED = 1000  # outcomes waiting to be reported beyond which no more jobs are taken
STOP_PATIENCE = 5.0  # seconds for cancelled handlers to end, and again for the last reports


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What a worker was told. Spans in seconds, but `lock_ttl` and `poll_timeout` in ms, as they are sent."""

    queue: str
    handler: Handler
    owner: str
    concurrency: int
    pull_size: int
    lock_ttl: int
    poll_timeout: float
    renewal_interval: float
    ack_batch: int
    ack_delay: float
    middleware: tuple[Middleware, ...] = ()
    on_completed: Callable[[ActiveJob, Any], object] | None = None
    on_failed: Callable[[ActiveJob, BaseException], object] | None = None
    on_error: Callable[[Exception], object] | None = None


class Interrupted(Exception):
    """The worker stopped before the handler was done."""


class Shift:
    """Polls, runs, reports. Made and used in one event loop."""

    def __init__(self, orders: Orders, endpoint: Endpoint) -> None:
        self.completed = self.failed = self.lost = 0
        self.fatal: BaseException | None = None
        """Why it stopped by itself; `over` is set then, and `stop` still has to be called."""
        self.over = asyncio.Event()
        self._orders = orders
        self._endpoint = endpoint
        self._caller = AsyncCaller(endpoint)
        self._line = ProgressLine(self._caller)
        self._runner = Runner(orders.handler, orders.concurrency)
        self._call = around_running(orders.middleware, self._runner.run)
        self._slots: Slots[ActiveJob] = Slots(orders.concurrency, self._run, self._freed)
        self._outcomes = Outcomes(self._caller, self, batch=orders.ack_batch, delay=orders.ack_delay)
        self._renewal = Renewal(endpoint, orders.renewal_interval)
        self._pulls: Transport | None = None
        self._asked_for = 0  # jobs that polls under way may bring
        self._change = asyncio.Event()  # there may be room, or nothing left to do
        self._polls: list[asyncio.Task[None]] = []
        self._stopping = False
        self._told: set[type[BunqueueError]] = set()  # troubles with the connection logged since it worked
        self._hurry = asyncio.Event()

    @property
    def busy(self) -> int:
        """Jobs in hand."""
        return self._slots.busy

    async def start(self) -> None:
        # Pulls have a connection of their own: closing it withdraws polls, whoever else talks to the server.
        given = self._endpoint.options
        size = 1 if given.pipelining else POLLS + 1
        options = replace(given, pool_size=size, max_command_timeouts=1)
        self._pulls = await replace(self._endpoint, options=options).open(private=True)
        # Acknowledgements share it: with the poll that follows they are one write and one transaction.
        self._caller.use(self._pulls)
        self._outcomes.start()
        self._renewal.start()
        self._polls = [asyncio.create_task(self._poll()) for _ in range(POLLS)]
        for poll in self._polls:
            poll.add_done_callback(self._poll_ended)

    # -- polling

    async def _poll(self) -> None:
        failures = 0
        while not self._stopping:
            room = self._room()
            if room <= 0:
                self._change.clear()
                await self._change.wait()
                continue
            self._asked_for += room
            try:
                reply = await self._pull(room)
                failures = 0
                self._told.clear()
            except AuthError as error:
                self._give_up(error)
                return
            except BunqueueError as error:
                failures += 1
                await self._poll_failed(error, failures)
                continue
            finally:
                self._asked_for -= room
            self._take(reply)

    def _poll_ended(self, poll: asyncio.Task[None]) -> None:
        """An error that nobody foresaw must end the worker, not silence it."""
        if not poll.cancelled() and (error := poll.exception()) is not None:
            logger.error("queue %r: polling failed", self._orders.queue, exc_info=error)
            self._give_up(error)

    def _room(self) -> int:
        """How many jobs could start at once and are not asked for yet."""
        if self._outcomes.waiting > MAX_UNREPORTED:
            return 0
        return min(self._orders.concurrency - self._slots.busy - self._asked_for, self._orders.pull_size)

    async def _pull(self, count: int) -> PulledJobs:
        orders = self._orders
        command = PullBatch(
            queue=orders.queue,
            count=count,
            timeout=orders.poll_timeout,
            owner=orders.owner,
            lock_ttl=orders.lock_ttl,
        )
        assert self._pulls is not None
        payload = await self._pulls.call(command)
        return decode_reply(payload, PulledJobs, command, self._endpoint.address)

    async def _poll_failed(self, error: BunqueueError, failures: int) -> None:
        if self._stopping:
            return
        self.trouble(error)
        with suppress(TimeoutError):
            async with asyncio.timeout(min(reconnect_delay(failures, random.random()), MAX_POLL_DELAY)):
                await self._hurry.wait()

    def _take(self, reply: PulledJobs) -> None:
        """Run what came. Jobs that come after `stop` are left alone: closing gives them back."""
        if self._stopping:
            return
        jobs = []
        if len(reply.tokens) != len(reply.jobs):
            self.trouble(
                BunqueueError(f"{self._endpoint.address} gave jobs without tokens; is it a bunqueue server?")
            )
            return
        for raw, token in zip(reply.jobs, reply.tokens, strict=True):
            job = self._unpack(raw, token)
            if job is not None:
                jobs.append(job)
        if jobs:
            self._slots.put(jobs)

    def _unpack(self, raw: Raw, token: str) -> ActiveJob | None:
        try:
            job = ActiveJob(raw, token, self._line)
        except MsgspecError as error:  # it stays locked until its lock runs out: there is no id to report
            self.trouble(BunqueueError(f"a job that was pulled is not readable: {error}"))
            return None
        self._renewal.hold(job.id, token)
        try:
            job.open()
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
            self._outcomes.fail(job, error, f"the job's data cannot be decoded: {problem}")
            return None
        return job

    # -- running

    async def _run(self, job: ActiveJob) -> None:
        outcomes = self._outcomes
        try:
            value = await self._call(job)
            result = encode_data(value, "the result of the handler")
        except (KeyboardInterrupt, SystemExit) as error:
            outcomes.fail(job, error)
            if self._runner.is_async:  # in a handler's thread it ends that call only
                self._give_up(error)
        except asyncio.CancelledError as error:
            if not _is_being_cancelled():  # it came out of the handler by itself
                outcomes.fail(job, error)
                return
            outcomes.fail(job, Interrupted(), "Interrupted: the worker stopped before the job was done")
            raise
        except GeneratorExit:  # the event loop is gone
            raise
        except BaseException as error:
            outcomes.fail(job, error)
        else:
            outcomes.complete(job, result, value)

    def _freed(self) -> None:
        self._change.set()
        if not self._slots.busy:
            self._outcomes.flush()

    def _give_up(self, error: BaseException) -> None:
        """Stop for a reason of our own."""
        if self.fatal is None:
            self.fatal = error
        self.over.set()

    # -- what the outcomes tell

    def job_completed(self, job: ActiveJob, value: object) -> None:
        self.completed += 1
        self._settled(job)
        if self._orders.on_completed:
            _tell(self._orders.on_completed, job, value)

    def job_failed(self, job: ActiveJob, error: BaseException) -> None:
        self.failed += 1
        self._settled(job)
        if self._orders.on_failed:
            _tell(self._orders.on_failed, job, error)
        elif job.attempts + 1 >= job.max_attempts:
            words = "queue %r: job %s (%s) has failed for good, in attempt %d of %d: %s"
            attempts = (job.attempts + 1, job.max_attempts)
            logger.warning(words, job.queue, job.id, job.name, *attempts, error_text(error))

    def job_lost(self, job: ActiveJob, why: str) -> None:
        self.lost += 1
        self._settled(job)
        message = (
            f"the outcome of job {job.id} does not count: {why}; it may run again, so give the worker a "
            f"longer lock_ttl if handlers keep Python from renewing it"
        )
        self._complain(LockLost(message, reason=why, queue=job.queue, job_id=job.id))

    def trouble(self, error: BunqueueError) -> None:
        if self._stopping and isinstance(error, ConnectionLost):  # we did that ourselves; it is said again
            logger.debug("queue %r: %s", self._orders.queue, error)
            return
        self._renewal.nudge()
        self._complain(error)

    def _complain(self, error: BunqueueError) -> None:
        """Tell who wants to know of errors, else the log: there one outage is worth a line, not one a try."""
        queue, kind = self._orders.queue, type(error)
        if self._orders.on_error:
            _tell(self._orders.on_error, error)
        elif not isinstance(error, ConnectionError):
            logger.warning("queue %r: %s", queue, error)
        elif kind not in self._told:
            self._told.add(kind)
            what = "cannot reach" if kind is ConnectTimeout else "lost the connection to"
            logger.warning("queue %r: %s %s, trying again: %s", queue, what, self._endpoint.address, error)

    def _settled(self, job: ActiveJob) -> None:
        self._renewal.release(job.id)
        self._change.set()

    # -- stopping

    def hurry(self) -> None:
        """The time of grace is over."""
        self._hurry.set()
        self._change.set()

    async def stop(self, grace: float) -> None:
        """Returns when all is reported and closed. Handlers get `grace` seconds to end by themselves."""
        self._stopping = True
        loop = asyncio.get_running_loop()
        end = loop.time() + grace
        timer = loop.call_at(end, self.hurry)
        for job in self._slots.withdraw():
            self._renewal.release(job.id)
        await self._withdraw_polls()
        while self._slots.busy and not self._hurry.is_set():
            self._change.clear()
            await self._change.wait()
        await self._slots.cancel(STOP_PATIENCE)
        await self._report_all(max(STOP_PATIENCE, 0.0 if self._hurry.is_set() else end - loop.time()))
        timer.cancel()
        await self._close()

    async def _withdraw_polls(self) -> None:
        """Close the connection of the polls, so that they take no job any more.

        The server gives back at once what was pulled over it and never renewed, so that is done before. If
        it cannot be done, the connection stays until all is reported.
        """
        assert self._pulls is not None
        held = self._renewal.held
        if held:
            command = core.JobHeartbeatBatch(ids=list(held), tokens=list(held.values()))
            try:
                async with asyncio.timeout(STOP_PATIENCE):
                    await self._caller.call(command, core.HeartbeatBatchReply)
            except (BunqueueError, TimeoutError) as error:
                logger.debug("queue %r: polls are not withdrawn: %s", self._orders.queue, error)
                return
        self._caller.use(None)
        await self._pulls.close()

    async def _report_all(self, patience: float) -> None:
        try:
            async with asyncio.timeout(patience):
                await self._outcomes.drain()
        except TimeoutError:
            queue, address = self._orders.queue, self._endpoint.address
            message = (
                f"the worker stops, and {len(self._renewal.held)} outcomes could not be "
                f"reported to {address}; these jobs will run again"
            )
            self._complain(BunqueueError(message, queue=queue, address=address))

    async def _close(self) -> None:
        assert self._pulls is not None
        await self._caller.close()
        await self._pulls.close()
        for poll in self._polls:
            poll.cancel()
        await asyncio.gather(*self._polls, return_exceptions=True)
        await self._outcomes.stop()
        self._runner.stop()
        await asyncio.to_thread(self._renewal.stop)


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _tell(callback: Callable[..., object], *arguments: object) -> None:
    """Call what a user gave us; its errors are its own."""
    try:
        callback(*arguments)
    except Exception:
        logger.exception("%r failed", callback)

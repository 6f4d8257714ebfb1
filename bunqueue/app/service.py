"""A running app: one worker for each of its queues, and what has to be done before and after."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from bunqueue.app.functions import declaration
from bunqueue.client.connection.caller import AsyncCaller
from bunqueue.client.connection.options import Duration, reconnect_delay
from bunqueue.client.interrupts import is_cancelled, is_ctrl_c
from bunqueue.client.options import checks
from bunqueue.errors import OptionError, ShardUnavailable
from bunqueue.protocol.commands import Reply
from bunqueue.worker.fetching.order import checked_order
from bunqueue.worker.routes import ByQueue, Work
from bunqueue.worker.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bunqueue.app.bunqueue import Bunqueue
    from bunqueue.worker.options import WorkerOptions

logger = logging.getLogger("bunqueue.app")

HOOKS_PATIENCE = 5.0  # seconds to wait for hooks that still run when all jobs have ended
MAX_DELAY = 5.0  # seconds between attempts to declare schedules and limits
AWAY = (ConnectionError, TimeoutError, ShardUnavailable)
"""The errors of a server that cannot be reached at the moment."""


class Service:
    """One run of an app, from its start to its end; made and used in one event loop."""

    def __init__(
        self, app: Bunqueue, queues: Sequence[str] = (), options: WorkerOptions | None = None
    ) -> None:
        """`queues` restricts the run to these queues of the app. `options` override those of the app."""
        self._app = app
        self._options: WorkerOptions = {**app._worker_options, **(options or {})}
        checks.whole("concurrency", self._options.get("concurrency", 1))
        found = {name: config for name, config in app._queue_configs.items() if config.handlers}
        if not found:
            raise OptionError(f"{app!r} has no jobs to run; declare some with @app.job or @app.route")
        if strange := [name for name in queues if name not in found]:
            raise OptionError(f"{app!r} has no queue {strange[0]!r} to work; it has {', '.join(found)}")
        chosen = dict.fromkeys(queues or found)
        self._queue_configs = [found[name] for name in chosen]
        self._order: Any = self._options.pop("order", "even")
        if not (options and "order" in options):  # the order names all queues; fewer may run here
            self._order = _order_of(self._order, chosen, found)
        if self._order != "even":
            self._check_order(list(chosen))
        self._workers: list[Worker] = []
        # Kept open while the app works: an in-memory engine forgets everything once no client uses it.
        self._caller = AsyncCaller(app._endpoint)
        self._declaring: asyncio.Task[None] | None = None
        self._started = self._over = False

    def describe(self) -> list[str]:
        """A description for people, with a line for each queue."""
        return [line for worker in self._make_workers() for line in worker.describe()]

    @property
    def recycle_reason(self) -> str | None:
        """See `Worker.recycle_reason`."""
        return next((worker.recycle_reason for worker in self._workers if worker.recycle_reason), None)

    @property
    def asked_to_stop(self) -> bool:
        """See `Worker.asked_to_stop`."""
        return any(worker.asked_to_stop for worker in self._workers)

    # -- as a part of a program

    async def start(self) -> None:
        """See `Bunqueue.start`."""
        try:
            await self._prepare()
            for worker in self._workers:
                await worker.start()
        except BaseException:
            await self.stop(0)
            raise

    async def stop(self, grace: Duration | None = None) -> None:
        """See `Bunqueue.stop`."""
        await asyncio.gather(*[worker.stop(grace=grace) for worker in self._workers])
        await self.finish()

    # -- as the main task of a program, for `run_forever`

    async def serve(self) -> BaseException | None:
        """Work until `stop_soon`, or until a worker cannot continue. Return the reason in that case."""
        try:
            await self._prepare()
            if self._over:
                return None
            problems = await asyncio.gather(*map(self._serve, self._workers))
        finally:
            await self.finish()
        return next((problem for problem in problems if problem is not None), None)

    async def _serve(self, worker: Worker) -> BaseException | None:
        if self._over:  # `stop_soon` was called after the check above, before this worker could receive it
            return None
        try:
            return await worker.serve()
        finally:
            self.stop_soon(drain=worker.drains)  # when one worker stops, all stop

    def stop_soon(self, *, hurry: bool = False, drain: bool = False) -> None:
        """Have `serve` return. With `hurry` the grace period ends at once, with `drain` it has no end."""
        self._over = True
        for worker in self._workers:
            worker.stop_soon(hurry=hurry, drain=drain)

    # -- before and after

    async def _prepare(self) -> None:
        if self._started:
            return
        await self.begin()
        commands = self.declarations()
        try:
            await self._declare(commands)
        except AWAY as error:
            logger.warning("%r: schedules, limits and functions are declared later: %s", self._app, error)
            self._declaring = asyncio.create_task(self._declare_later(commands))

    async def begin(self) -> list[Worker]:
        """Run the startup hooks, and return the workers, which are not yet started."""
        self._started = True
        for config in self._queue_configs:
            for task in config.tasks.values():
                task.check()
        self._workers = self._make_workers()
        await self._app._hooks.call("startup")
        return self._workers

    async def finish_hooks(self) -> None:
        """Wait for the hooks that run in the background."""
        await self._app._hooks.finish(HOOKS_PATIENCE)

    async def finish(self) -> None:
        """Clean up after the workers have stopped."""
        if not self._started:
            return
        self._started = False
        if self._declaring is not None:
            self._declaring.cancel()
        try:
            await self.finish_hooks()
            await self._end_dependencies()
            await self._app._hooks.call("shutdown")
        finally:
            await self._caller.close()

    async def _end_dependencies(self) -> None:
        try:
            await self._app._dependencies.close()
        except BaseException as error:
            if is_ctrl_c(error) or (type(error) is asyncio.CancelledError and is_cancelled()):
                raise
            logger.exception("%r: a dependency that is per worker failed when it was ended", self._app)

    def _check_order(self, queues: list[str]) -> None:
        """Raise OptionError for an order that does not fit these queues."""
        checked_order(self._order, tuple(queues))
        for config in self._queue_configs:
            if config.has_own_concurrency:
                raise OptionError(
                    f"queue {config.queue!r}: concurrency={config.concurrency} of its own does not go with "
                    f"order={self._order!r}, by which the queues share the places of the app"
                )

    def _make_workers(self) -> list[Worker]:
        """One worker for each queue; with an order, one for all of them."""
        configs, concurrency = self._queue_configs, self._options.get("concurrency")
        if self._order == "even":
            return [
                self._worker(config.queue, config.handlers, config.slots(concurrency)) for config in configs
            ]
        queues = [config.queue for config in configs]
        places = self._app._concurrency if concurrency is None else concurrency
        batches = sum(config.slots(0) for config in configs)
        handlers = ByQueue({config.queue: config.handlers for config in configs})
        return [self._worker(queues, handlers, places + batches, order=self._order)]

    def _worker(self, queue: str | list[str], handlers: Work, concurrency: int, **more: Any) -> Worker:
        app, hooks = self._app, self._app._hooks
        options: dict[str, Any] = {**self._options, **app._endpoint_options, **more}
        options["concurrency"] = concurrency
        if hooks.has("completed"):
            options["on_completed"] = lambda job, result: hooks.fire("completed", job, result)
        if hooks.has("failed", "exhausted"):
            options["on_failed"] = hooks.failed
        if hooks.has("stopped"):
            options["on_stopped"] = lambda job, error: hooks.fire("stopped", job, error)
        if hooks.has("error"):
            options["on_error"] = lambda error: hooks.fire("error", error)
        return Worker(
            queue,
            handlers,
            middleware=app._middleware,
            **options,
        )

    # -- schedules and limits

    def declarations(self, *, schedules: bool = True) -> list[Any]:
        """Schedules, limits and functions, as commands that may be repeated."""
        app, given = self._app, self._app._default_job_options
        defaults = given or {}
        declared = self._app._schedules.values() if schedules else ()
        return [
            *[schedule.command(defaults, self._app.name) for schedule in declared],
            *[command for config in self._app._queue_configs.values() for command in config.commands()],
            *[declaration(app.name, given, config) for config in self._queue_configs],
        ]

    async def _declare(self, commands: list[Any]) -> None:
        """Send all commands. Each one that was sent is removed from `commands`."""
        while commands:
            await self._caller.call(commands[0], Reply)
            del commands[0]

    async def _declare_later(self, commands: list[Any]) -> None:
        failures = 0
        while commands:
            failures += 1
            await asyncio.sleep(min(reconnect_delay(failures, random.random()), MAX_DELAY))
            try:
                await self._declare(commands)
            except AWAY:
                continue
            except Exception:
                logger.exception("%r: the server refuses its schedules, limits or functions", self._app)
                return


def _order_of(order: Any, chosen: Collection[str], found: Collection[str]) -> Any:
    """The order of an app's queues, restricted to those that run here."""
    if len(chosen) == len(found):
        return order
    if len(chosen) == 1:
        return "even"
    return (
        {queue: order[queue] for queue in chosen if queue in order} if isinstance(order, Mapping) else order
    )

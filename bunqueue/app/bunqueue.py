"""`Bunqueue`: queues, workers, schedules and routes in one object."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack, cast, get_args

from bunqueue.app.hooks import Hook, Hooks, Occasion
from bunqueue.app.queue_config import RateLimit
from bunqueue.app.scheduling import Scheduling
from bunqueue.app.service import Service
from bunqueue.client.connection.endpoint_options import EndpointOptions
from bunqueue.client.connection.options import Duration, shown, unknown_option
from bunqueue.client.options import checks
from bunqueue.client.options.job import JobOptions, default_fields
from bunqueue.client.worker.active_job import ActiveJob
from bunqueue.client.worker.middleware import CallNext, Middleware, checked
from bunqueue.client.worker.options import WorkerOptions
from bunqueue.client.worker.routes import Handlers
from bunqueue.client.worker.service import run_forever
from bunqueue.errors import OptionError
from bunqueue.logs import FORM_VARIABLE, Form, Level, log_for_people

K = TypeVar("K", bound=Hook)
RunMiddleware = Callable[[ActiveJob, CallNext], Awaitable[Any]]
"""What `Bunqueue.use` takes instead of an object: a coroutine function around runs."""
M = TypeVar("M", bound=Middleware | RunMiddleware)
_OWN = (
    "concurrency",
    "rate_limit",
    "global_concurrency",
    "default_job_options",
    "middleware",
    "worker",
)


class Bunqueue(Scheduling):
    """Queues, workers, schedules and routes in one object.

        app = Bunqueue("emails")

        @app.job(max_attempts=5)
        async def welcome(to: str) -> bool: ...

        @app.cron("0 9 * * *", tz="Europe/Rome")
        async def digest() -> None: ...

        welcome.add("ada@example.com")  # here, or in any other program that imports this
        app.run()  # works until SIGTERM or SIGINT

    `name` is the app's own queue, in which its jobs are unless they say otherwise. `concurrency` is how many
    jobs of a queue this process runs at a time; `rate_limit` and `global_concurrency` hold for all workers of
    the app's own queue together (`add_queue` says it for others). `default_job_options` and `middleware` are
    for all of its queues, `worker` is for what `Worker` can be told besides. Where the server is, or
    `embedded=True`, is said as in `EndpointOptions`. docs/app.md tells more.
    """

    def __init__(
        self,
        name: str = "default",
        *,
        concurrency: int = 10,
        rate_limit: RateLimit | None = None,
        global_concurrency: int | None = None,
        default_job_options: JobOptions | None = None,
        middleware: Iterable[Middleware] = (),
        worker: WorkerOptions | None = None,
        **place: Unpack[EndpointOptions],
    ) -> None:
        default_fields(default_job_options)
        for option in place:
            if option not in EndpointOptions.__annotations__:
                raise unknown_option("an app", option, [*_OWN, *EndpointOptions.__annotations__])
        super().__init__(checks.queue_name(name), default_job_options, list(checked(middleware)), place)
        self._concurrency = checks.whole("concurrency", concurrency)
        self._worker_options: WorkerOptions = worker or {}
        self._stations = {}
        self._schedules = {}
        self._hooks = Hooks()
        self._service: Service | None = None
        self.add_queue(name, rate_limit=rate_limit, global_concurrency=global_concurrency)

    def __repr__(self) -> str:
        return f"Bunqueue({self.name!r} at {self._endpoint.address})"

    @property
    def handlers(self) -> Mapping[str, Handlers]:
        """What runs the jobs: by queue, and by the name of the job."""
        return {name: station.handlers for name, station in self._stations.items() if station.handlers}

    # -- what is around

    def on(self, occasion: Occasion) -> Callable[[K], K]:
        """Have a function called at an occasion, see `Occasion`: `@app.on("exhausted")`."""

        hooks = self._hooks.of(occasion)

        def enter(hook: K) -> K:
            if not callable(hook):
                raise OptionError(f"on: {shown(hook)} cannot be called; give a function")
            hooks.append(hook)
            return hook

        return enter

    def use(self, middleware: M) -> M:
        """Add middleware, inside of that which is there: an object, or a coroutine function around runs.

            @app.use
            async def timing(job: ActiveJob, call_next: CallNext) -> Any: ...

        Before the first job is added, and before the app works. Gives back what it got.
        """
        if self._queues or self._async_queues or self._flows or self._async_flows or self._service:
            raise OptionError("use: jobs were added already, without this middleware; use it before")
        self._middleware += checked(
            [middleware if isinstance(middleware, Middleware) else _Function(middleware)]
        )
        return middleware

    # -- working

    async def start(self) -> None:
        """Begin to work, and return; an app that works goes on.

        Hooks of "startup" have run and the server knows the schedules when this returns; if it cannot be
        reached, it is told later.
        """
        if self._service is None:
            self._service = Service(self)
            try:
                await self._service.start()
            except BaseException:
                self._service = None
                raise

    async def stop(self, *, grace: Duration | None = None) -> None:
        """Take no more jobs, let those that run end within `grace`, and run the hooks of "shutdown"."""
        service, self._service = self._service, None
        if service is not None:
            await service.stop(grace)

    def run(self, *, log_format: Form | None = None, log_level: Level = "info") -> None:
        """Work until SIGTERM or SIGINT, which let running jobs end; a second signal ends the grace.

        With a `log_format`, or one in BUNQUEUE_LOG_FORMAT, records from `log_level` on go to standard error
        as with `bunqueue worker`, unless logging is configured already. OptionError.
        """
        checks.one_of("log_level", log_level, get_args(Level))
        name, form = "log_format", log_format
        if form is None and FORM_VARIABLE in os.environ:
            name, form = FORM_VARIABLE, cast(Form, os.environ[FORM_VARIABLE])
        if form is not None:
            checks.one_of(name, form, get_args(Form))
            log_for_people(log_level, form)
        run_forever(Service(self))

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
        await self.close_async()

    def __bunqueue_workers__(
        self, queues: Sequence[str] = (), options: WorkerOptions | None = None
    ) -> list[Service]:
        """For `bunqueue worker module:app`, with what its flags say."""
        return [Service(self, queues, options)]


class _Function(Middleware):
    """A coroutine function around runs."""

    def __init__(self, function: RunMiddleware) -> None:
        if not callable(function):
            raise TypeError(f"use: {function!r} is neither middleware nor a coroutine function")
        self._function = function

    async def running(self, job: ActiveJob, call_next: CallNext) -> Any:
        return await self._function(job, call_next)

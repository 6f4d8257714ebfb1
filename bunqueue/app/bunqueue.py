"""`Bunqueue`: queues, workers, schedules and routes in one object."""

from __future__ import annotations

import os
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack, cast, get_args, overload

from bunqueue.app.clients import Clients
from bunqueue.app.decorators import CronDecorator, JobDecorator, SchedulePolicy
from bunqueue.app.dependencies import Dependencies
from bunqueue.app.hooks import Hook, Hooks, Occasion
from bunqueue.app.queue_config import QueueConfig
from bunqueue.app.queue_settings import AppOptions, QueueSettings
from bunqueue.app.schedules import Schedule, stale_of
from bunqueue.app.service import Service
from bunqueue.app.task import AsyncTask, PlainTask, Task
from bunqueue.app.task_options import TaskOptions, check_names, listed, rules_of
from bunqueue.app.workflow import AsyncWorkflow, PlainWorkflow, WorkflowDecorator
from bunqueue.client.admin import AsyncAdmin
from bunqueue.client.blocking.admin import Admin
from bunqueue.client.blocking.events import QueueEvents
from bunqueue.client.blocking.flow import FlowProducer
from bunqueue.client.blocking.queue import JobHandle, Queue
from bunqueue.client.callables import finished, is_async, name_of, runnable
from bunqueue.client.connection.endpoint_options import EndpointOptions, endpoint_of
from bunqueue.client.connection.options import Duration, refused, shown, span, unfit, unknown_option
from bunqueue.client.events import AsyncQueueEvents, EventType
from bunqueue.client.flow import AsyncFlowProducer
from bunqueue.client.flow_plan import FlowJob
from bunqueue.client.options import checks
from bunqueue.client.options.breaker import breaker_of
from bunqueue.client.options.job import JobOptions, default_fields
from bunqueue.client.queue import AsyncJobHandle, AsyncQueue
from bunqueue.errors import OptionError
from bunqueue.logs import FORM_VARIABLE, Form, Level, log_for_people
from bunqueue.protocol.commands import Reply
from bunqueue.protocol.commands.cron import CronView
from bunqueue.protocol.commands.functions import DeclareFunctions
from bunqueue.worker.active_job import ActiveJob, Handler
from bunqueue.worker.batches import Batch, BatchHandler
from bunqueue.worker.fetching.order import Order, checked_kind
from bunqueue.worker.log_context import JobLogFilter
from bunqueue.worker.middleware import CallNext, Middleware, checked
from bunqueue.worker.options import WorkerOptions, endpoint_options_of
from bunqueue.worker.retry_rules import RetryRules, checked_rules
from bunqueue.worker.routes import ANY, Handlers, Route, RunIn
from bunqueue.worker.service import run_forever
from bunqueue.workflow.blocking import BlockingFlow
from bunqueue.workflow.flow import Flow

P = ParamSpec("P")
R = TypeVar("R")
H = TypeVar("H", bound=Handler)
B = TypeVar("B", bound=BatchHandler)
K = TypeVar("K", bound=Hook)
RunMiddleware = Callable[[ActiveJob, CallNext], Awaitable[Any]]
"""A coroutine function that runs around each job: `Bunqueue.use` takes it instead of an object."""
M = TypeVar("M", bound=Middleware | RunMiddleware)
_OWN = ("concurrency", "default_job_options", "middleware", "order", "wait_if_full", "worker")


class Bunqueue:
    """Queues, workers, schedules and routes in one object.

        app = Bunqueue("emails")

        @app.job(max_attempts=5)
        async def welcome(to: str) -> bool: ...

        @app.cron("0 9 * * *", tz="Europe/Rome")
        async def digest() -> None: ...

        welcome.add("ada@example.com")  # here, or in any other program that imports this
        app.run()  # works until SIGTERM or SIGINT

    `name` is the app's own queue. Its jobs are there unless they name another one. `concurrency` is the
    number of jobs of a queue that this process runs at a time. With an `order`, "strict" or weights, the
    queues share these slots instead: docs/app.md#order-of-queues. `QueueSettings`, such as `rate_limit` and
    `group_concurrency`, apply to all workers of the app's own queue together (use `add_queue` for other
    queues). `default_job_options` and `middleware` apply to all queues of the app; `worker` has further
    options of `Worker`. Adding to a full queue is retried for up to `wait_if_full`. Give the server's
    address, or `embedded=True`, as in `EndpointOptions`. See docs/app.md.
    """

    def __init__(
        self,
        name: str = "default",
        *,
        concurrency: int = 10,
        order: Order | None = None,
        default_job_options: JobOptions | None = None,
        middleware: Iterable[Middleware] = (),
        worker: WorkerOptions | None = None,
        wait_if_full: Duration = 0,
        **options: Unpack[AppOptions],
    ) -> None:
        default_fields(default_job_options)
        settings, endpoint = _sorted(options)
        self.name = checks.queue_name(name)
        self._default_job_options = default_job_options
        self._middleware = list(checked(middleware))
        self._endpoint_options = endpoint
        self._endpoint = endpoint_of(endpoint)
        span(wait_if_full, "wait_if_full")
        self._clients = Clients(name, default_job_options, self._middleware, endpoint, wait_if_full)
        self._concurrency = checks.whole("concurrency", concurrency)
        self._worker_options: WorkerOptions = worker or {}
        endpoint_options_of(self._worker_options)
        if order is not None:
            self._worker_options = {**self._worker_options, "order": checked_kind(order)}
        self._queue_configs: dict[str, QueueConfig] = {}
        self._schedules: dict[str, Schedule] = {}
        self._hooks = Hooks()
        self._dependencies = Dependencies()
        self._service: Service | None = None
        self.add_queue(name, **settings)

    def __repr__(self) -> str:
        return f"Bunqueue({self.name!r} at {self._endpoint.address})"

    @property
    def handlers(self) -> Mapping[str, Handlers]:
        """The functions that run the jobs, by queue and by job name."""
        return {name: config.handlers for name, config in self._queue_configs.items() if config.handlers}

    @property
    def dependency_overrides(self) -> dict[Callable[..., Any], Callable[..., Any]]:
        """Functions that replace those of `Depends`, for tests: `app.dependency_overrides[session] =
        fake_session`."""
        return self._dependencies.overrides

    # -- queues

    def add_queue(
        self, name: str, *, concurrency: int | None = None, **settings: Unpack[QueueSettings]
    ) -> None:
        """Declare how a queue is processed. A queue that jobs name without being declared is processed like
        the app's own.

        `concurrency` is the number of its jobs that this process runs at a time. The settings apply to all
        workers together, and are sent to the server when this app starts to work.
        """
        config = self._queue_config(name)
        if concurrency is not None:
            config.concurrency = checks.whole("concurrency", concurrency)
            config.has_own_concurrency = True
        config.declare(settings)

    def _queue_config(self, name: str | None) -> QueueConfig:
        name = name or self.name
        if name not in self._queue_configs:
            self._queue_configs[name] = QueueConfig(checks.queue_name(name), self._concurrency)
        return self._queue_configs[name]

    # -- what runs jobs

    @overload
    def job(  # type: ignore[overload-overlap]  # the first that fits counts, as it should
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def job(self, function: Callable[P, R], /) -> PlainTask[P, R]: ...
    @overload
    def job(
        self,
        *,
        name: str | None = None,
        queue: str | None = None,
        aliases: Iterable[str] = (),
        unrecoverable: Iterable[type[BaseException]] = (),
        run_in: RunIn | None = None,
        at_most_once: bool = False,
        **options: Unpack[TaskOptions],
    ) -> JobDecorator: ...

    def job(  # type: ignore[misc]  # mypy does not see that it takes what the third overload does
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        queue: str | None = None,
        aliases: Iterable[str] = (),
        unrecoverable: Iterable[type[BaseException]] = (),
        run_in: RunIn | None = None,
        at_most_once: bool = False,
        **options: Unpack[TaskOptions],
    ) -> Any:
        """Make a function a job; with or without options: `@app.job`, `@app.job(max_attempts=5)`.

        The job has the name of the function, unless `name` says otherwise; `aliases` are names under which it
        was added earlier. Its queue is the app's own unless `queue` names another one. An exception listed in
        `unrecoverable` makes the job a dead letter without another attempt. A plain function runs in a
        thread, or with `run_in="process"` in a process of its own. With `at_most_once` a job is completed
        before the function is called: it never runs twice, and its result is not kept. All other options are
        `TaskOptions`.

        Raises TypeError for functions with *args, **kwargs or positional-only parameters, and for types that
        jobs cannot carry (docs/types.md); the error names the parameter. Types that are defined further down
        are checked when the app starts, or when a job is added.
        """

        make = partial(
            self._task,
            name=name,
            queue=queue,
            aliases=listed("aliases", aliases, str),
            unrecoverable=listed("unrecoverable", unrecoverable, type),
            run_in=run_in,
            at_most_once=at_most_once,
            options=options,
        )
        return make if function is None else make(function)

    @overload
    def workflow(
        self, function: Callable[Concatenate[Flow, P], Coroutine[Any, Any, R]], /
    ) -> AsyncWorkflow[P, R]: ...
    @overload
    def workflow(self, function: Callable[Concatenate[BlockingFlow, P], R], /) -> PlainWorkflow[P, R]: ...
    @overload
    def workflow(
        self,
        *,
        name: str | None = None,
        queue: str | None = None,
        aliases: Iterable[str] = (),
        unrecoverable: Iterable[type[BaseException]] = (),
        signals: Mapping[str, Any] | None = None,
        **options: Unpack[TaskOptions],
    ) -> WorkflowDecorator: ...

    def workflow(  # type: ignore[misc]  # mypy does not see that it takes what the third overload does
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        queue: str | None = None,
        aliases: Iterable[str] = (),
        unrecoverable: Iterable[type[BaseException]] = (),
        signals: Mapping[str, Any] | None = None,
        **options: Unpack[TaskOptions],
    ) -> Any:
        """Make a function a workflow: a job whose steps are stored as they finish.

            @app.workflow(max_attempts=5)
            async def order(flow: Flow, order: Order) -> Receipt:
                charge = await flow.step("charge", pay, order, undo=refund)
                await flow.sleep("cooling-off", days=1)
                return await flow.step("ship", ship, charge)

            order.start(Order(...), id="order-7")

        Its first parameter is the flow, a `Flow` in a coroutine function and a `BlockingFlow` in a plain one,
        which runs in a thread. `signals` declares the types of the data of its signals, `{"approval": bool}`.
        A client that sends other data gets an error, whether or not the workflow already waits for the
        signal. The other options are as for `job`. See docs/workflows.md for the guarantees.
        """

        make = partial(
            self._task,
            name=name,
            queue=queue,
            aliases=listed("aliases", aliases, str),
            unrecoverable=listed("unrecoverable", unrecoverable, type),
            at_most_once=False,
            options=options,
            signals=signals,
            kinds=(AsyncWorkflow, PlainWorkflow),
        )
        return make if function is None else make(function)

    def _task(
        self,
        function: Callable[..., Any],
        /,
        *,
        name: str | None,
        queue: str | None,
        run_in: RunIn | None = None,
        options: TaskOptions,
        kinds: tuple[type[Task[..., Any]], type[Task[..., Any]]] = (AsyncTask, PlainTask),
        **given: Any,
    ) -> Task[..., Any]:
        config = self._queue_config(queue)
        kind = kinds[0 if _is_coroutine(function) else 1]
        if run_in is not None and kind is kinds[0]:
            raise refused("run_in", function, "is a coroutine function, which runs in the event loop")
        check_names(options)
        if kind is PlainTask and run_in is None and options.get("timeout") is not None:
            text = (
                f"job {name_of(function)!r}: a timeout cannot stop a plain function, which keeps its slot "
                'until it returns; run_in="process" can stop it, run_in="thread" says that you know'
            )
            warnings.warn(text, stacklevel=2)
        retry, own = rules_of(config.declare_for_task(options))
        breaker = own.pop("breaker", None)
        task: Task[..., Any] = kind(
            self._clients,
            function,
            name=name_of(function) if name is None else name,
            queue=config.queue,
            run_in=run_in,
            retry=retry,
            dependencies=self._dependencies,
            options=own,
            **given,
        )
        for each in (task.name, *task.aliases):
            config.enter(config.tasks, each, task)
            if breaker is not None:
                config.breakers[each] = breaker_of(breaker, "breaker")
        return task

    def broadcast(self, signal: str, key: str, data: object = None, *, keep: Duration | None = None) -> int:
        """Send a signal to every workflow that waits for it with this key. See `Admin.broadcast`."""
        return self.admin.broadcast(signal, key, data, keep=keep)

    async def broadcast_async(
        self, signal: str, key: str, data: object = None, *, keep: Duration | None = None
    ) -> int:
        """Like `broadcast`, for coroutines."""
        return await self.async_admin.broadcast(signal, key, data, keep=keep)

    def route(
        self, name: str = ANY, *, queue: str | None = None, retry: RetryRules | None = None
    ) -> Callable[[H], H]:
        """Have a function run the jobs of a name, for jobs that other programs add. It gets the whole
        `ActiveJob`.

        Without a name, it runs all jobs that no other function runs. `retry` says what its exceptions mean.
        """
        rules = checked_rules(retry)

        def enter(handler: H) -> H:
            config = self._queue_config(queue)
            called = self._dependencies.around(handler, "route")
            route = called if rules is None else Route(called, retry=rules)
            config.enter(config.routes, name if name == ANY else checks.job_name(name), route)
            return handler

        return enter

    def batch(
        self,
        name: str,
        *,
        size: int = 10,
        min_size: int | None = None,
        max_wait: Duration = 1_000,
        queue: str | None = None,
        retry: RetryRules | None = None,
    ) -> Callable[[B], B]:
        """Have a function run the jobs of a name together: it gets a list of up to `size` of them.

        It is called as soon as there are `min_size` jobs, with all that are there, or when the first job has
        waited for `max_wait`. Unless given, `min_size` is `size`. It returns a list with a result for each
        job, in their order, or None. An exception in the list fails only that job; an exception that it
        raises fails all of them. `retry` says what exceptions mean.
        """
        rules, called = checked_rules(retry), checks.job_name(name)

        def enter(handler: B) -> B:
            config = self._queue_config(queue)
            batch = Batch(handler, size=size, min_size=min_size, max_wait=max_wait)
            config.enter(config.batches, called, Route(batch, retry=rules))
            return handler

        return enter

    # -- schedules

    def cron(
        self,
        expression: str | None = None,
        /,
        *,
        every: Duration | None = None,
        tz: str | None = None,
        name: str | None = None,
        data: Mapping[str, Any] | None = None,
        **policy: Unpack[SchedulePolicy],
    ) -> CronDecorator:
        """Run a job at every time of a cron expression, in the time zone `tz` (UTC), or once per `every`.

            @app.cron("0 9 * * mon-fri", tz="Europe/Rome")
            async def report() -> None: ...

        `data` are its arguments. `name` is the name of the schedule, unique on the whole server; unless
        given, it is made of the names of queue and job. The app sends the schedule to the server when it
        starts to work. After that the server follows it, even while no worker runs. The name belongs to this
        app and queue: an app that declares a name of another app does not start, and raises ScheduleConflict.
        Raises ArgumentsError when `data` lacks an argument or has an unknown one; types are checked when a
        job runs.
        """

        def enter(job: Any) -> Any:
            task: Task[..., Any] = job if isinstance(job, Task) else self.job(job)
            given = {**(data or {})}
            task.check_names(given)
            planned: FlowJob[Any] = FlowJob(task.name, given, queue=task.queue, **task.options_of((), given))
            self.add_schedule(planned, expression, every=every, tz=tz, name=name, **policy)
            return task

        return cast(CronDecorator, enter)

    def add_schedule(
        self,
        job: FlowJob[Any],
        expression: str | None = None,
        /,
        *,
        every: Duration | None = None,
        tz: str | None = None,
        name: str | None = None,
        **policy: Unpack[SchedulePolicy],
    ) -> None:
        """Run a job by the clock, with its arguments: `app.add_schedule(send.job("ada"), "@daily")`.

        For the other parameters see `cron`. Raises OptionError.
        """
        schedule = Schedule(
            name=name or f"{job.queue}:{job.name}",
            queue=job.queue,
            job=job.name,
            data=cast(Mapping[str, Any], job.data),
            expression=expression,
            every=every,
            tz=tz,
            options=job.options,
            policy=policy,
        )
        schedule.command({}, self.name)  # raises for a mistake here, where the schedule is declared
        if schedule.name in self._schedules and self._schedules[schedule.name] != schedule:
            raise OptionError(
                f"there is a schedule {schedule.name!r} already; give one of them another name="
            )
        self._schedules[schedule.name] = schedule

    # -- schedules on the server

    def run_schedule(self, name: str) -> JobHandle[Any]:
        """Add the job of a schedule now; see `Admin.run_cron`."""
        return self.admin.run_cron(name)

    async def run_schedule_async(self, name: str) -> AsyncJobHandle[Any]:
        """Like `run_schedule`, for coroutines."""
        return await self.async_admin.run_cron(name)

    def stale_schedules(self) -> list[CronView]:
        """Schedules that this app once declared and declares no longer. They still run. An app is identified
        by its name."""
        return stale_of(self.name, self._schedules, self.admin.list_crons())

    async def stale_schedules_async(self) -> list[CronView]:
        """Like `stale_schedules`, for coroutines."""
        return stale_of(self.name, self._schedules, await self.async_admin.list_crons())

    def prune_schedules(self) -> list[CronView]:
        """Remove the schedules that `stale_schedules` returns, and no others. Return those that were removed.
        Their jobs stay.

        Call it once the last program with the old declarations has ended: each program declares them again
        when it starts.
        """
        admin = self.admin
        return [each for each in self.stale_schedules() if admin.delete_cron(each.name, app=self.name)]

    async def prune_schedules_async(self) -> list[CronView]:
        """Like `prune_schedules`, for coroutines."""
        admin, stale = self.async_admin, await self.stale_schedules_async()
        return [each for each in stale if await admin.delete_cron(each.name, app=self.name)]

    # -- hooks and middleware

    def on(self, occasion: Occasion) -> Callable[[K], K]:
        """Call a function at an occasion, see `Occasion`: `@app.on("exhausted")`."""

        hooks = self._hooks.of(occasion)

        def enter(hook: K) -> K:
            if hook is None:
                raise refused("on", hook, "cannot be called; give a function")
            hooks.append(checks.function("on", hook))
            return hook

        return enter

    def use(self, middleware: M) -> M:
        """Add middleware inside the existing middleware: an object, or a coroutine function around runs.

            @app.use
            async def timing(job: ActiveJob, call_next: CallNext) -> Any: ...

        Call it before the first job is added, and before the app works. Returns its argument.
        """
        if self._clients.add_jobs or self._service:
            raise unfit("use", "jobs were added already, without this middleware; use it before")
        self._middleware += checked(
            [middleware if isinstance(middleware, Middleware) else _Function(middleware)]
        )
        return middleware

    # -- its clients, made on first use

    @property
    def queue(self) -> Queue:
        """The app's own queue: counts, pausing, dead letters and so on."""
        return self._clients.get_queue()

    @property
    def async_queue(self) -> AsyncQueue:
        """The app's own queue, for coroutines."""
        return self._clients.get_async_queue()

    def get_queue(self, name: str | None = None) -> Queue:
        """One of the app's queues; None: its own."""
        return self._clients.get_queue(name)

    def get_async_queue(self, name: str | None = None) -> AsyncQueue:
        """Like `get_queue`, for coroutines."""
        return self._clients.get_async_queue(name)

    @property
    def flows(self) -> FlowProducer:
        """Adds flows: `app.flows.add(report.job("May").after(fetch.job("a"), fetch.job("b")))`."""
        return self._clients.flows

    @property
    def async_flows(self) -> AsyncFlowProducer:
        """Like `flows`, for coroutines."""
        return self._clients.async_flows

    @property
    def admin(self) -> Admin:
        """The server as a whole: figures, workers, schedules of all queues and so on."""
        return self._clients.admin

    @property
    def async_admin(self) -> AsyncAdmin:
        """Like `admin`, for coroutines."""
        return self._clients.async_admin

    def events(
        self,
        queue: str | None = None,
        *,
        types: EventType | Iterable[EventType] | None = None,
        job_ids: str | Iterable[str] | None = None,
    ) -> QueueEvents:
        """The events of one of the app's queues. See `QueueEvents`."""
        return QueueEvents(queue or self.name, types=types, job_ids=job_ids, **self._endpoint_options)

    def events_async(
        self,
        queue: str | None = None,
        *,
        types: EventType | Iterable[EventType] | None = None,
        job_ids: str | Iterable[str] | None = None,
    ) -> AsyncQueueEvents:
        """Like `events`, for coroutines."""
        return AsyncQueueEvents(queue or self.name, types=types, job_ids=job_ids, **self._endpoint_options)

    # -- adding

    def add(self, name: str, data: object = None, **options: Unpack[JobOptions]) -> JobHandle[Any]:
        """Add a job of any name to the app's own queue, as `Queue.add` does. If a function of the app runs
        it, the job has its options, unless other ones are given."""
        return self.queue.add(name, data, **self._with_options_of(name, options))

    async def add_async(
        self, name: str, data: object = None, **options: Unpack[JobOptions]
    ) -> AsyncJobHandle[Any]:
        """Like `add`, for coroutines."""
        return await self.async_queue.add(name, data, **self._with_options_of(name, options))

    def _with_options_of(self, name: str, options: JobOptions) -> JobOptions:
        """Options on top of those of the function that runs the jobs of a name, if there is one."""
        task = self._queue_configs[self.name].tasks.get(name)
        return options if task is None else cast(JobOptions, {**task.own_options, **options})

    def add_bulk(self, jobs: Iterable[FlowJob[R]]) -> list[JobHandle[R]]:
        """Add jobs, `[send.job("ada"), send.job("bob")]`. Those of one queue are added together, all or none.

        The handles are in the order of the jobs.
        """
        handles: dict[int, JobHandle[R]] = {}
        for name, some in _by_queue(jobs).items():
            queue = self.get_queue(name)
            for (index, job), handle in zip(some, queue.add_bulk(job for _, job in some), strict=True):
                handle.result_type = job.result_type
                handles[index] = handle
        return [handles[index] for index in range(len(handles))]

    async def add_bulk_async(self, jobs: Iterable[FlowJob[R]]) -> list[AsyncJobHandle[R]]:
        """Like `add_bulk`, for coroutines."""
        handles: dict[int, AsyncJobHandle[R]] = {}
        for name, some in _by_queue(jobs).items():
            queue = self.get_async_queue(name)
            for (index, job), handle in zip(some, await queue.add_bulk(job for _, job in some), strict=True):
                handle.result_type = job.result_type
                handles[index] = handle
        return [handles[index] for index in range(len(handles))]

    # -- working

    def declare(self) -> None:
        """Send what the app declares, without working: its functions, schedules, and the settings of its
        queues. It also does so whenever it starts to work."""
        self._declare_over(self.admin)

    async def declare_async(self) -> None:
        """Like `declare`, for coroutines."""
        for command in Service(self).declarations():
            await self.async_admin._caller.call(command, Reply)

    def _declare_over(self, admin: Admin) -> int:
        """`declare` at the server of `admin`; returns the number of functions."""
        commands = Service(self).declarations()
        for command in commands:
            admin._caller.call(command, Reply)
        return sum(len(each.functions) for each in commands if isinstance(each, DeclareFunctions))

    async def start(self) -> None:
        """Start to work, and return. Does nothing if the app already works.

        When this returns, the "startup" hooks have run and the server has the schedules. If the server cannot
        be reached, they are sent later.
        """
        if self._service is None:
            self._service = Service(self)
            try:
                await self._service.start()
            except BaseException:
                self._service = None
                raise

    async def stop(self, *, grace: Duration | None = None) -> None:
        """Take no more jobs, let running jobs end within `grace`, and run the "shutdown" hooks."""
        service, self._service = self._service, None
        if service is not None:
            await service.stop(grace)

    def run(self, *, log_format: Form | None = None, log_level: Level = "info") -> None:
        """Work until SIGTERM or SIGINT, then let running jobs end; a second signal ends the grace period.

        With a `log_format`, here or in BUNQUEUE_LOG_FORMAT, records from `log_level` up go to standard error
        as with `bunqueue worker`, unless logging is configured already. Raises OptionError.
        """
        checks.one_of("log_level", log_level, get_args(Level))
        name, form = "log_format", log_format
        if form is None and FORM_VARIABLE in os.environ:
            name, form = FORM_VARIABLE, cast(Form, os.environ[FORM_VARIABLE])
        if form is not None:
            checks.one_of(name, form, get_args(Form))
            with log_for_people(log_level, form, JobLogFilter()):
                pass
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
        """The workers for `bunqueue worker module:app`, with the options of its flags."""
        return [Service(self, queues, options)]

    # -- the end

    def close(self) -> None:
        """Close the connections of the blocking clients. Later calls open new ones."""
        self._clients.close()

    async def close_async(self) -> None:
        """Close all connections. Later calls open new ones."""
        await self._clients.close_async()


class _Function(Middleware):
    """A coroutine function around runs."""

    def __init__(self, function: RunMiddleware) -> None:
        if not callable(function):
            raise TypeError(f"use: {function!r} is neither middleware nor a coroutine function")
        self._function = runnable(function, "use")

    async def running(self, job: ActiveJob, call_next: CallNext) -> Any:
        return await finished(self._function(job, call_next))


def _sorted(options: AppOptions) -> tuple[QueueSettings, EndpointOptions]:
    """Split options into the settings of the app's own queue and the server's address. Raises OptionError for
    any other."""
    settings: dict[str, Any] = {}
    endpoint: dict[str, Any] = {}
    for name, value in options.items():
        if name not in AppOptions.__annotations__:
            raise unknown_option("an app", name, [*_OWN, *AppOptions.__annotations__])
        (settings if name in QueueSettings.__annotations__ else endpoint)[name] = value
    return cast(QueueSettings, settings), cast(EndpointOptions, endpoint)


def _is_coroutine(function: Any) -> bool:
    if not callable(function):
        raise TypeError(f"job: {shown(function)} is no function; write @app.job, or @app.job(max_attempts=5)")
    return is_async(runnable(function, "job"))


def _by_queue(jobs: Iterable[FlowJob[R]]) -> dict[str, list[tuple[int, FlowJob[R]]]]:
    """Jobs with their indexes, by queue."""
    groups: dict[str, list[tuple[int, FlowJob[R]]]] = {}
    for index, job in enumerate(jobs):
        if job.children:
            raise OptionError(f"{job!r}: jobs that wait for others are added with app.flows")
        groups.setdefault(job.queue, []).append((index, job))
    return groups

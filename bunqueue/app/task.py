"""A function as a job: called as before, or added to its queue with the same arguments, which are checked."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar, Unpack, cast

from bunqueue.app.arguments import Arguments
from bunqueue.app.dependencies import Dependencies, check_dependencies, needs_of, without_dependencies
from bunqueue.app.many_calls import KEY, calls_of, pieces, rows_of
from bunqueue.app.per_call import PerCall
from bunqueue.app.task_options import TaskOptions
from bunqueue.client.callables import finished, is_async
from bunqueue.client.conversion.converter import Converter
from bunqueue.client.conversion.raised import is_a
from bunqueue.client.flow_plan import FlowJob
from bunqueue.client.options import checks
from bunqueue.client.options.job import JobOptions, wire_fields
from bunqueue.errors import OptionError
from bunqueue.worker.active_job import ActiveJob
from bunqueue.worker.reporting.failures import made_final
from bunqueue.worker.retry_rules import RetryRules, raise_as
from bunqueue.worker.routes import Route, RunIn, checked_run_in

if TYPE_CHECKING:
    from bunqueue.app.clients import Clients
    from bunqueue.client.blocking.queue import JobHandle
    from bunqueue.client.queue import AsyncJobHandle

P = ParamSpec("P")
R = TypeVar("R", covariant=True)
T = TypeVar("T")


class Task(Generic[P, R]):
    """The result of `@app.job` on a function. P are its parameters, R is what it returns.

    Calling it calls the function, here and now. `add` has a worker call it, and blocks until the job is safe;
    `add_async` is the same for coroutines. `__wrapped__` is the function itself.
    """

    __wrapped__: Callable[..., Any]
    __qualname__: str
    signals: Mapping[str, Converter] | None = None
    """The declared signals of a workflow; None: this is not a workflow."""

    def __init__(
        self,
        clients: Clients,
        function: Callable[..., Any],
        *,
        name: str,
        queue: str,
        aliases: tuple[str, ...],
        unrecoverable: tuple[type[BaseException], ...],
        run_in: RunIn | None,
        at_most_once: bool,
        retry: RetryRules,
        dependencies: Dependencies,
        options: TaskOptions,
    ) -> None:
        update_wrapper(cast(Callable[..., Any], self), function)
        self.name = checks.job_name(name)
        self.queue = queue
        self.aliases = tuple(checks.job_name(alias) for alias in aliases)
        self._clients = clients
        self._run_in = checked_run_in(run_in)
        self._at_most_once = checks.switch("at_most_once", at_most_once)
        self._unrecoverable = unrecoverable
        self._retry = retry
        self._dependencies = dependencies
        self._check_dependencies(function)
        self._has_needs = bool(needs_of(function).dependencies)
        self._arguments = Arguments(self._without_job(function), name)
        self._arguments.check_known()
        self._declared = self
        self._changed: dict[str, Any] = {}  # options that differ from those of the declaration
        self._set_options(options)

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Pickle and copy it by the name that it has in its module."""
        if not self._changed:
            return str(self.__qualname__)
        return _with_options, (self._declared, self._changed)

    def __repr__(self) -> str:
        return f"<job {self.name!r} of queue {self.queue!r}>"

    # -- adding

    def add(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Add a job that calls the function with these arguments. When this returns, the job is safe.

        Raises ArgumentsError for a call that could not be made, and the errors of `Queue.add`.
        """
        data = self._arguments.data(args, kwargs)
        queue = self._clients.get_queue(self.queue)
        handle = queue.add(self.name, data, **self.options_of(args, kwargs))
        handle.result_type = self._arguments.result_type
        return handle

    async def add_async(self, *args: P.args, **kwargs: P.kwargs) -> AsyncJobHandle[R]:
        """Like `add`, for coroutines."""
        data = self._arguments.data(args, kwargs)
        queue = self._clients.get_async_queue(self.queue)
        handle = await queue.add(self.name, data, **self.options_of(args, kwargs))
        handle.result_type = self._arguments.result_type
        return handle

    def job(self, *args: P.args, **kwargs: P.kwargs) -> FlowJob[R]:
        """The job that `add` would add, for `app.add_bulk`, flows and schedules. Raises ArgumentsError."""
        data = self._arguments.data(args, kwargs)
        job: FlowJob[R] = FlowJob(self.name, data, queue=self.queue, **self.options_of(args, kwargs))
        job.result_type = self._arguments.result_type
        return job

    def starmap(self, rows: Iterable[Iterable[Any]]) -> FlowJob[list[R]]:
        """One job that calls the function for each row of positional arguments, one after the other. Its
        result is the list of their results. If a call raises, the job is retried from the first call.

        Raises ArgumentsError for a call that could not be made. Raises OptionError when options are computed
        from arguments, because there are several sets of arguments.
        """
        if self._per_call.computed:
            names = " and ".join(self._per_call.computed)
            raise OptionError(f"{names}: not possible for many calls in one job, as it is that of one call")
        calls = [self._arguments.data(row, {}) for row in rows_of(rows)]
        job: FlowJob[list[R]] = FlowJob(self.name, {KEY: calls}, queue=self.queue, **self._options)
        job.result_type = list[self._arguments.result_type]  # type: ignore[name-defined]
        return job

    def chunks(self, rows: Iterable[Iterable[Any]], size: int) -> list[FlowJob[list[R]]]:
        """Like `starmap`, but split into several jobs of at most `size` rows, which may run concurrently:
        `app.flows.chord(resize.chunks(pairs, 100), index.job())`."""
        return [self.starmap(piece) for piece in pieces(rows, checks.whole("size", size))]

    def options(self, **options: Unpack[TaskOptions]) -> Self:
        """The same job with other options: `send.options(delay=5_000).add("ada@example.com")`."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._changed = {**self._changed, **options}
        other._set_options(cast(TaskOptions, {**self._per_call.computed, **self._options, **options}))
        return other

    def _set_options(self, options: TaskOptions) -> None:
        """Set options of every job of this type. Raises for a mistake here, where it is written."""
        self._per_call = PerCall(self._without_job(self.__wrapped__), self.name, options, self._clients.codec)
        computed = self._per_call.computed
        self._options = cast(
            JobOptions, {name: each for name, each in options.items() if name not in computed}
        )
        wire_fields({**self._options, **self._per_call.sample}, {})

    def handle(self, job_id: str) -> JobHandle[R]:
        """A handle for a job of this type with a known id. The server is not asked whether it exists."""
        return self._clients.get_queue(self.queue).handle(job_id, self._arguments.result_type)

    def handle_async(self, job_id: str) -> AsyncJobHandle[R]:
        """Like `handle`, for coroutines."""
        return self._clients.get_async_queue(self.queue).handle(job_id, self._arguments.result_type)

    # -- running

    @staticmethod
    def _without_job(function: Callable[..., Any]) -> Callable[..., Any]:
        """The function with only those parameters that come from the data of the job."""
        return without_dependencies(function)

    def _check_dependencies(self, function: Callable[..., Any]) -> None:
        """Raise TypeError for impossible dependencies."""
        check_dependencies(function, f"job {self.name!r}", in_process=self._run_in == "process")

    def options_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> JobOptions:
        """The options of a job with these arguments, which have been checked. Raises OptionError."""
        return cast(JobOptions, {**self._options, **self._per_call.options(args, kwargs)})

    @property
    def own_options(self) -> JobOptions:
        """The options of its jobs that do not depend on arguments."""
        return self._options

    @property
    def arguments(self) -> tuple[Mapping[str, inspect.Parameter], Mapping[str, Converter]]:
        """Its parameters that come from the data of a job, and the converters of those with annotations."""
        return self._arguments.declared

    def check(self) -> None:
        """Raise TypeError if its annotations cannot be used."""
        self._arguments.check_annotations()

    def check_names(self, data: Mapping[str, Any]) -> None:
        """Check that data has the arguments that the function takes. Raises ArgumentsError."""
        self._arguments.check_names(data)

    def check_data(self, data: object) -> None:
        """Check that a job with this data could run. Raises ArgumentsError or PayloadError."""
        self._arguments.of(data)

    @property
    def handler(self) -> Callable[[ActiveJob], Any]:
        """The function that a worker calls: a coroutine function or a plain one, like the function itself."""
        return self._run_coroutine if is_async(self.__wrapped__) else self._run

    @property
    def route(self) -> Route:
        """The entry for a worker's table of handlers."""
        return Route(self.handler, self._run_in, self._at_most_once)

    def __bunqueue_handler__(self) -> Callable[[ActiveJob], Any]:
        """The handler for other processes, which find this object under the name of the function."""
        return self.handler

    async def _run_coroutine(self, job: ActiveJob) -> Any:
        try:
            if (calls := calls_of(job.data)) is not None:
                return [await self._call_async(each, job) for each in calls]
            return await self._call_async(job.data, job)
        except BaseException as error:
            self._judge(job, error)
            raise

    async def _call_async(self, data: object, job: ActiveJob) -> Any:
        """One call."""
        arguments = self._arguments.of(data)
        if self._has_needs:
            result = await self._dependencies.call_async(self.__wrapped__, arguments, job)
        else:
            result = await self.__wrapped__(**arguments)
        self._arguments.check_result(result)
        return result

    def _run(self, job: ActiveJob) -> Any:
        try:
            if (calls := calls_of(job.data)) is not None:
                found: Any = [self._call(each, job) for each in calls]
                waits = any(map(inspect.isawaitable, found))
            else:
                found = self._call(job.data, job)
                waits = inspect.isawaitable(found)
        except BaseException as error:
            self._judge(job, error)
            raise
        return self._finished(found, job) if waits else found

    def _call(self, data: object, job: ActiveJob) -> Any:
        """One call. Returns its result, or an awaitable that gives it."""
        arguments = self._arguments.of(data)
        if self._has_needs:
            result = self._dependencies.call(self.__wrapped__, arguments, job)
        else:
            result = self.__wrapped__(**arguments)
        if not inspect.isawaitable(result):
            self._arguments.check_result(result)
        return result

    async def _finished(self, found: Any, job: ActiveJob) -> Any:
        """The results of the calls. Some still have to be awaited, as with a plain decorator around a
        coroutine function."""
        try:
            results = [await finished(each) for each in (found if isinstance(found, list) else [found])]
            for result in results:
                self._arguments.check_result(result)
        except BaseException as error:
            self._judge(job, error)
            raise
        return results if isinstance(found, list) else results[0]

    def _judge(self, job: ActiveJob, error: BaseException) -> None:
        """Raise the error in a form that applies its retry rules, if there are any."""
        if is_a(error, *self._unrecoverable):
            raise_as(made_final(error), error)
        if self._retry:
            raise_as(self._retry.applied(job, error), error)


def _with_options(task: Task[P, R], options: TaskOptions) -> Task[P, R]:
    return task.options(**options)


class AsyncTask(Task[P, R]):
    """The result of `@app.job` on a coroutine function."""

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function here and now, without any queue."""
        return cast(R, await self.__wrapped__(*args, **kwargs))


class PlainTask(Task[P, R]):
    """The result of `@app.job` on a plain function."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function here and now, without any queue."""
        return cast(R, self.__wrapped__(*args, **kwargs))

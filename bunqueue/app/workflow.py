"""A function as a workflow: the result of `@app.workflow`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, NoReturn, ParamSpec, Protocol, TypeVar, overload

from msgspec import Raw

from bunqueue.app.dependencies import needs_of
from bunqueue.app.task import Task
from bunqueue.app.task_options import TaskOptions
from bunqueue.client.connection.options import refused, shown
from bunqueue.client.conversion.converter import Converter
from bunqueue.client.conversion.raised import cause_of, is_a, is_final, made_final
from bunqueue.client.flow_plan import FlowJob
from bunqueue.client.options import checks
from bunqueue.client.options.job import JobOptions, job_data
from bunqueue.errors import StepFailed
from bunqueue.worker.active_job import ActiveJob
from bunqueue.worker.retry_rules import raise_as
from bunqueue.workflow.blocking import BlockingFlow, run_blocking
from bunqueue.workflow.drive import drive
from bunqueue.workflow.flow import Flow
from bunqueue.workflow.plans import check_wait
from bunqueue.workflow.run import Run

if TYPE_CHECKING:
    from bunqueue.client.blocking.queue import WorkflowHandle
    from bunqueue.client.queue import AsyncWorkflowHandle

P = ParamSpec("P")
R = TypeVar("R", covariant=True)


class Workflow(Task[P, R]):
    """The result of `@app.workflow` on a function. P are its parameters except the flow, R is what it
    returns.

    `start` has a worker run it, and blocks until it is safe; `start_async` is the same for coroutines. An
    `id` of your own makes that idempotent: while a workflow with this id has not ended, `start` returns its
    handle. `__wrapped__` is the function itself.
    """

    def __init__(self, *args: Any, signals: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.signals = _declared(signals or {}, f"workflow {self.name!r}")
        """The converters of its signals by name, as far as they are declared."""

    def __repr__(self) -> str:
        return f"<workflow {self.name!r} of queue {self.queue!r}>"

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise TypeError: workflows are not called, they need a worker that keeps their steps."""
        raise TypeError(
            f"workflow {self.name!r} cannot be called; {self.name}.start(...) has a worker run it, and in a "
            f"workflow `await flow.run({self.name}, ...)` does"
        )

    def starmap(self, rows: Iterable[Iterable[Any]]) -> NoReturn:
        """A workflow has steps of its own: start each, or have one workflow run the others."""
        raise TypeError(f"workflow {self.name!r} cannot be many calls in one job; start one for each")

    # -- starting

    @overload
    def start(self, *args: P.args, **kwargs: P.kwargs) -> WorkflowHandle[R]: ...
    @overload
    def start(self, *args: Any, id: str, **kwargs: Any) -> WorkflowHandle[R]: ...

    def start(self, *args: Any, **kwargs: Any) -> WorkflowHandle[R]:
        """Start it with these arguments. When this returns, the workflow is safe.

        Raises ArgumentsError for a call that could not be made, and the errors of `Queue.add`.
        """
        options, given = self._options_for(args, kwargs)
        queue = self._clients.get_queue(self.queue)
        added = queue.add(self.name, self._arguments.data(args, given), **options)
        handle: WorkflowHandle[R] = queue.workflow(added.id, self._arguments.result_type)
        handle.created = added.created
        return handle

    @overload
    async def start_async(self, *args: P.args, **kwargs: P.kwargs) -> AsyncWorkflowHandle[R]: ...
    @overload
    async def start_async(self, *args: Any, id: str, **kwargs: Any) -> AsyncWorkflowHandle[R]: ...

    async def start_async(self, *args: Any, **kwargs: Any) -> AsyncWorkflowHandle[R]:
        """Like `start`, for coroutines."""
        options, given = self._options_for(args, kwargs)
        queue = self._clients.get_async_queue(self.queue)
        added = await queue.add(self.name, self._arguments.data(args, given), **options)
        handle: AsyncWorkflowHandle[R] = queue.workflow(added.id, self._arguments.result_type)
        handle.created = added.created
        return handle

    def _options_for(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[JobOptions, dict[str, Any]]:
        """The options, and the arguments without the `id`, unless the function has a parameter of that
        name."""
        given = dict(kwargs)
        own_id = given.pop("id", None) if "id" not in self._arguments.names else None
        self._arguments.data(args, given)  # a group may be computed from them
        options = self.options_of(args, given)
        return (options if own_id is None else {**options, "job_id": checks.own_id(own_id, "id")}), given

    def add(self, *args: P.args, **kwargs: P.kwargs) -> WorkflowHandle[R]:
        """Like `start`."""
        return self.start(*args, **kwargs)

    async def add_async(self, *args: P.args, **kwargs: P.kwargs) -> AsyncWorkflowHandle[R]:
        """Like `start_async`."""
        return await self.start_async(*args, **kwargs)

    def job(self, *args: P.args, **kwargs: P.kwargs) -> FlowJob[R]:
        """The job that `start` would add, for `flow.run`, `app.add_bulk`, flows and schedules. Raises
        ArgumentsError."""
        return super().job(*args, **kwargs)

    def handle(self, job_id: str) -> WorkflowHandle[R]:
        """A handle for a workflow with a known id. The server is not asked whether it exists."""
        return self._clients.get_queue(self.queue).workflow(job_id, self._arguments.result_type)

    def handle_async(self, job_id: str) -> AsyncWorkflowHandle[R]:
        """Like `handle`, for coroutines."""
        return self._clients.get_async_queue(self.queue).workflow(job_id, self._arguments.result_type)

    # -- running

    @staticmethod
    def _without_job(function: Callable[..., Any]) -> Callable[..., Any]:
        return _without_flow(function)

    def _check_dependencies(self, function: Callable[..., Any]) -> None:
        if found := needs_of(function).dependencies:
            raise TypeError(
                f"workflow {self.name!r}: its parameter {next(iter(found))!r} is a dependency, which "
                f"workflows do not have: they run again from their steps; a job that it starts may have it"
            )

    def _set_options(self, options: TaskOptions) -> None:
        super()._set_options({**options, "workflow": True})

    def _encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Raw:
        """Encode arguments as the data of a job. Raises ArgumentsError or PayloadError."""
        data = self._arguments.data(args, kwargs)
        return job_data(data, f"the data of workflow {self.name!r}", declared=True)

    async def _run_coroutine(self, job: ActiveJob) -> Any:
        arguments = self._arguments.of(job.data)
        run = Run(job, self._encode)
        flow = Flow(run, self.signals)
        try:
            result = await drive(run, lambda: self.__wrapped__(flow, **arguments))
        except BaseException as error:
            self._judge(job, error)
            raise
        self._arguments.check_result(result)
        return result

    def _run(self, job: ActiveJob) -> Any:
        arguments = self._arguments.of(job.data)
        try:
            result = run_blocking(
                job, self._encode, lambda flow: self.__wrapped__(flow, **arguments), self.signals
            )
        except BaseException as error:
            self._judge(job, error)
            raise
        self._arguments.check_result(result)
        return result

    def _judge(self, job: ActiveJob, error: BaseException) -> None:
        """Raise the error in a form that applies its retry rules, which also cover what a step raised."""
        cause = cause_of(error) if is_a(error, StepFailed) else None
        if any(each is not None and is_a(each, *self._unrecoverable) for each in (error, cause)):
            raise_as(made_final(error), error)
        if self._retry and cause is None:
            raise_as(self._retry.applied(job, error), error)
        if self._retry and cause is not None and is_final(self._retry.applied(job, cause)):
            raise_as(made_final(error), error)


def _declared(signals: Mapping[str, Any], what: str) -> dict[str, Converter]:
    """Converters for the declared data of signals. Raises OptionError, and TypeError for types that jobs
    cannot carry."""
    if not isinstance(signals, Mapping):
        raise refused("signals", signals, "is not allowed; give a dict of types by the names of signals")
    for name in signals:
        check_wait("timeout", signal=name)
    return {name: Converter(kind, f"{what}: its signal {name!r}") for name, kind in signals.items()}


def _without_flow(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function with the parameters except the first, the flow. Raises TypeError if it has no
    parameters."""
    signature = inspect.signature(function)
    first = next(iter(signature.parameters.values()), None)
    if first is None or first.kind not in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD):
        raise TypeError(f"workflow: {shown(function)} has no first parameter, which would be the flow")

    @wraps(function)
    def stub(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError

    own = dict(getattr(function, "__annotations__", {}))
    own.pop(first.name, None)
    stub.__annotations__ = own
    stub.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])  # type: ignore[attr-defined]
    return stub


class AsyncWorkflow(Workflow[P, R]):
    """The result of `@app.workflow` on a coroutine function."""


class PlainWorkflow(Workflow[P, R]):
    """The result of `@app.workflow` on a plain function."""


class WorkflowDecorator(Protocol):
    """The type of `app.workflow(...)`."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[Flow, P], Coroutine[Any, Any, R]], /
    ) -> AsyncWorkflow[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[BlockingFlow, P], R], /) -> PlainWorkflow[P, R]: ...

"""Middleware: user code that wraps the adding and the running of jobs.

Queues and workers without middleware pay nothing for it: they check once, when they are made.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    contextmanager,
    nullcontext,
)
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from bunqueue.client.callables import runnable
from bunqueue.client.connection.background_loop import portal
from bunqueue.client.connection.options import refused
from bunqueue.errors import BunqueueError

if TYPE_CHECKING:
    from bunqueue.client.models.workflows import Step
    from bunqueue.client.options.job import NewJob
    from bunqueue.worker.active_job import ActiveJob
    from bunqueue.workflow.channel import AroundStep
    from bunqueue.workflow.context import StepRun


class CallNext(Protocol):
    """Runs the job through the inner middleware; returns its result, or raises."""

    def __call__(self, job: ActiveJob, /) -> Awaitable[Any]: ...


class CallStep(Protocol):
    """Runs the attempt of a step through the inner middleware."""

    def __call__(self) -> Awaitable[Any]: ...


class Middleware:
    """Inherit from it, and override what you need.

        class Timing(Middleware):
            async def running(self, job: ActiveJob, call_next: CallNext) -> Any:
                start = time.perf_counter()
                try:
                    return await call_next(job)
                finally:
                    print(job.name, time.perf_counter() - start)

    The first middleware of a list is the outermost.
    """

    def adding(self, job: NewJob) -> AbstractContextManager[Any] | AbstractAsyncContextManager[Any]:
        """Wrap the adding of a job: a method with `@contextmanager` or `@asynccontextmanager`.

        Before its `yield` it may set `job.name`, `job.data` and `job.options`, or raise, so nothing is added.
        After the `yield` `job.id` is set; exceptions from adding are raised at the `yield`. `job.data` is the
        caller's own object: replace it, do not change it. `job.queue` is the target queue.
        """
        return nullcontext()

    async def running(self, job: ActiveJob, call_next: CallNext) -> Any:
        """Wrap the run of a job: return the result of `call_next` or something else, and see its exceptions.

        It runs in the worker's event loop, wherever the handler runs. It may set `job.data`. An exception
        that it raises fails the attempt, as if the handler had raised it.
        """
        return await call_next(job)

    async def stepping(self, job: ActiveJob, step: StepRun, call_next: CallStep) -> Any:
        """Wrap each attempt of a step of a workflow or a job: return the result of `call_next`, and see its
        exceptions. Its own exceptions fail the attempt. It is not called for finished steps of earlier runs.
        """
        return await call_next()

    def starting(self, job: ActiveJob, headers: dict[str, str]) -> None:
        """A workflow starts a child: add to the headers sent with it. Runs in the worker's event loop, in the
        context in which the workflow asked for the child.
        """

    def waited(self, job: ActiveJob, step: Step) -> None:
        """A workflow continues after a wait: `step.kind` is sleep, signal or child, `step.status` how it
        ended. Called in the worker's event loop, once for each wait, by the run that continues.
        """


class AsyncAround:
    """Wraps the adding of jobs by coroutines."""

    def __init__(self, middleware: Sequence[Middleware]) -> None:
        self._middleware = middleware

    async def add(self, jobs: Sequence[NewJob], send: Callable[[], Awaitable[None]]) -> list[str]:
        """The ids of `jobs`, which `send` adds and sets, wrapped by all middleware."""
        async with AsyncExitStack() as stack:
            for job in jobs:
                job.id = None
                for each in self._middleware:
                    context = each.adding(job)
                    if isinstance(context, AbstractContextManager):
                        stack.enter_context(context)
                    else:
                        await stack.enter_async_context(context)
            await send()
        return [_id_of(job) for job in jobs]


class Around:
    """The blocking twin: asynchronous middleware runs in the background loop, all other in this thread."""

    def __init__(self, middleware: Sequence[Middleware]) -> None:
        self._middleware = middleware

    def add(self, jobs: Sequence[NewJob], send: Callable[[], None]) -> list[str]:
        """The ids of `jobs`, which `send` adds and sets, wrapped by all middleware."""
        with ExitStack() as stack:
            for job in jobs:
                job.id = None
                for each in self._middleware:
                    context = each.adding(job)
                    if not isinstance(context, AbstractContextManager):
                        context = _blocking(context)
                    stack.enter_context(context)
            send()
        return [_id_of(job) for job in jobs]


def _id_of(job: NewJob) -> str:
    if job.id is None:
        raise BunqueueError(
            f"job {job.name!r} was not added: middleware swallowed the reason; let it raise instead",
            queue=job.queue,
        )
    return job.id


@contextmanager
def _blocking(context: AbstractAsyncContextManager[Any]) -> Iterator[None]:
    portal().run(_enter(context))
    try:
        yield
    except BaseException as error:
        if not portal().run(_leave(context, error)):
            raise
    else:
        portal().run(_leave(context, None))


async def _enter(context: AbstractAsyncContextManager[Any]) -> None:
    await context.__aenter__()


async def _leave(context: AbstractAsyncContextManager[Any], error: BaseException | None) -> bool | None:
    if error is None:
        return await context.__aexit__(None, None, None)
    return await context.__aexit__(type(error), error, error.__traceback__)


def checked(middleware: Iterable[Middleware]) -> tuple[Middleware, ...]:
    """The middleware as a tuple. Raises OptionError for anything but a list of middleware."""
    if isinstance(middleware, Middleware) or not isinstance(middleware, Iterable):
        raise refused("middleware", middleware, "is no list; give one, such as [Timing()]")
    found = tuple(middleware)
    for each in found:
        if not isinstance(each, Middleware):
            raise refused("middleware", each, "is not allowed; give objects of subclasses of Middleware")
        for name in ("running", "stepping", "starting", "waited"):
            runnable(getattr(each, name), f"middleware: {name}")
    return found


def around_adding(middleware: Iterable[Middleware]) -> tuple[Middleware, ...]:
    """The middleware that wraps the adding of jobs."""
    return tuple(each for each in checked(middleware) if type(each).adding is not Middleware.adding)


def around_running(middleware: Iterable[Middleware], run: CallNext) -> CallNext:
    """`run`, wrapped by the middleware that wraps running."""
    for each in reversed(checked(middleware)):
        if type(each).running is not Middleware.running:
            run = _inside(each, run)
    return run


def around_steps(middleware: Sequence[Middleware]) -> AroundStep | None:
    """Wraps attempts of steps with the middleware for steps; None without any."""
    own = [each for each in middleware if type(each).stepping is not Middleware.stepping]
    if not own:
        return None

    def around(job: ActiveJob, step: StepRun, call: CallStep) -> Awaitable[Any]:
        for each in reversed(own):
            call = partial(each.stepping, job, step, call)
        return call()

    return around


def observing(middleware: Sequence[Middleware]) -> tuple[Middleware, ...]:
    """The middleware that observes the waits of workflows."""
    plain = Middleware
    return tuple(
        each
        for each in middleware
        if type(each).starting is not plain.starting or type(each).waited is not plain.waited
    )


def _inside(middleware: Middleware, call_next: CallNext) -> CallNext:
    def run(job: ActiveJob) -> Awaitable[Any]:
        return middleware.running(job, call_next)

    return run

"""`BlockingFlow`: the argument of a workflow that is a plain function, which runs in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextvars import copy_context
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NoReturn, ParamSpec, TypeVar, overload
from uuid import UUID

from bunqueue.client.callables import runnable
from bunqueue.client.connection.options import Duration, refused
from bunqueue.client.conversion.converter import Converter
from bunqueue.client.flow_plan import FlowJob
from bunqueue.workflow.branches import one_way
from bunqueue.workflow.drive import drive
from bunqueue.workflow.exits import Exit, contained
from bunqueue.workflow.flow import Flow
from bunqueue.workflow.plans import Runs, Undo
from bunqueue.workflow.retry import RetryRule
from bunqueue.workflow.run import RAISE, Encode, Run
from bunqueue.workflow.threads import Thread, in_new_thread, thread_var

if TYPE_CHECKING:
    from bunqueue.worker.active_job import ActiveJob

R = TypeVar("R")
T = TypeVar("T")
Call = Callable[[], T]
D = TypeVar("D")
T1 = TypeVar("T1")
T2 = TypeVar("T2")
T3 = TypeVar("T3")
P = ParamSpec("P")
Branch = Callable[[], Any]
_ALLOWED = "functions without arguments, as partial(flow.run, pack, item)"


class BlockingFlow:
    """`Flow` for plain functions: the same operations, which return when they are done.

        @app.workflow
        def order(flow: BlockingFlow, order: Order) -> Receipt:
            charge = flow.step("charge", pay, order, undo=refund)
            flow.sleep("cooling-off", days=1)
            return flow.step("ship", ship, charge)

    Branches of `gather`, `race` and `first` are functions without arguments: `partial(flow.run, pack, item)`,
    or functions of your own, each of which runs in its own thread.
    """

    def __init__(self, flow: Flow, run: Run) -> None:
        self._flow, self._run = flow, run

    def __repr__(self) -> str:
        return repr(self._flow)

    @property
    def job(self) -> ActiveJob[Any]:
        """The job of the workflow: its id, queue, attempts, and so on."""
        return self._flow.job

    @property
    def id(self) -> str:
        """The id of the workflow, which is that of its job."""
        return self._flow.id

    @property
    def undoing(self) -> bool:
        """See `Flow.undoing`."""
        return self._flow.undoing

    @property
    def key(self) -> str:
        """See `Flow.key`."""
        return self._flow.key

    @property
    def state(self) -> Any:
        """See `Flow.state`."""
        return self._flow.state

    @state.setter
    def state(self, value: Any) -> None:
        self._here(lambda: setattr(self._flow, "state", value))

    def now(self, name: str = "now") -> datetime:
        """See `Flow.now`."""
        return self._here(lambda: self._flow.now(name))

    def random(self, name: str = "random") -> float:
        """See `Flow.random`."""
        return self._here(lambda: self._flow.random(name))

    def uuid(self, name: str = "uuid") -> UUID:
        """See `Flow.uuid`."""
        return self._here(lambda: self._flow.uuid(name))

    def patched(self, name: str) -> bool:
        """See `Flow.patched`."""
        return self._here(lambda: self._flow.patched(name))

    def continue_as_new(self, *args: Any, **kwargs: Any) -> NoReturn:
        """See `Flow.continue_as_new`."""
        self._here(lambda: self._flow.continue_as_new(*args, **kwargs))
        raise AssertionError("it does not return")

    def progress(self, value: float, message: str | None = None) -> None:
        """Report the progress of the workflow, 0 to 100."""
        self._flow.job.progress(value, message)

    # -- waiting operations

    def step(
        self,
        name: str,
        function: Callable[..., R],
        /,
        *args: Any,
        undo: Callable[[R], Any] | Undo | None = None,
        retry: RetryRule | None = None,
        timeout: Duration | None = None,
        **kwargs: Any,
    ) -> R:
        """See `Flow.step`. The function is called in this thread; a `timeout` is noticed when it returns."""
        flow = self._flow
        return self._do(
            lambda: flow.step(name, function, *args, undo=undo, retry=retry, timeout=timeout, **kwargs)
        )

    def sleep(
        self,
        name: str | Duration | datetime = "sleep",
        duration: Duration | datetime | None = None,
        /,
        **parts: float,
    ) -> None:
        """See `Flow.sleep`."""
        self._do(lambda: self._flow.sleep(name, duration, **parts))

    @overload
    def wait_for(
        self,
        signal: str,
        kind: type[T],
        /,
        *,
        key: str | None = None,
        timeout: Duration | None = None,
        name: str | None = None,
    ) -> T: ...
    @overload
    def wait_for(
        self,
        signal: str,
        kind: type[T],
        /,
        *,
        key: str | None = None,
        timeout: Duration | None = None,
        default: D,
        name: str | None = None,
    ) -> T | D: ...
    @overload
    def wait_for(
        self,
        signal: str,
        kind: Any = Any,
        /,
        *,
        key: str | None = None,
        timeout: Duration | None = None,
        default: Any = RAISE,
        name: str | None = None,
    ) -> Any: ...

    def wait_for(
        self,
        signal: str,
        kind: Any = Any,
        /,
        *,
        key: str | None = None,
        timeout: Duration | None = None,
        default: Any = RAISE,
        name: str | None = None,
    ) -> Any:
        """See `Flow.wait_for`."""
        flow = self._flow
        return self._do(
            lambda: flow.wait_for(signal, kind, key=key, timeout=timeout, default=default, name=name)
        )

    def run(
        self,
        what: Runs[..., R] | FlowJob[R],
        /,
        *args: Any,
        child_id: str | None = None,
        step: str | None = None,
        **kwargs: Any,
    ) -> R:
        """See `Flow.run`."""
        flow: Any = self._flow
        return self._do(lambda: flow.run(what, *args, child_id=child_id, step=step, **kwargs))  # type: ignore[no-any-return]

    def start(
        self,
        what: Runs[..., R] | FlowJob[R],
        /,
        *args: Any,
        child_id: str | None = None,
        step: str | None = None,
        **kwargs: Any,
    ) -> str:
        """See `Flow.start`."""
        flow: Any = self._flow
        return self._do(lambda: flow.start(what, *args, child_id=child_id, step=step, **kwargs))  # type: ignore[no-any-return]

    @overload
    def map(
        self,
        what: Runs[[T], R],
        items: Iterable[T],
        /,
        *,
        step: str | None = None,
        return_exceptions: Literal[False] = False,
    ) -> list[R]: ...
    @overload
    def map(
        self,
        what: Runs[[T], R],
        items: Iterable[T],
        /,
        *,
        step: str | None = None,
        return_exceptions: bool,
    ) -> list[R | BaseException]: ...

    def map(
        self, what: Any, items: Iterable[Any], /, *, step: str | None = None, return_exceptions: bool = False
    ) -> list[Any]:
        """See `Flow.map`."""
        flow, given = self._flow, list(items)
        return self._do(lambda: flow.map(what, given, step=step, return_exceptions=return_exceptions))

    # -- concurrent branches

    @overload
    def gather(self, b1: Call[T1], b2: Call[T2], /) -> tuple[T1, T2]: ...
    @overload
    def gather(self, b1: Call[T1], b2: Call[T2], b3: Call[T3], /) -> tuple[T1, T2, T3]: ...
    @overload
    def gather(self, *branches: Call[T], return_exceptions: Literal[False] = False) -> list[T]: ...
    @overload
    def gather(self, *branches: Call[T], return_exceptions: bool) -> list[T | BaseException]: ...

    def gather(self, *branches: Branch, return_exceptions: bool = False) -> Any:
        """See `Flow.gather`: `flow.gather(*(partial(flow.run, pack, item) for item in items))`."""
        flow = self._flow
        _check("gather", branches)
        return self._do(
            lambda: flow.gather(*map(self._branch, branches), return_exceptions=return_exceptions)
        )

    @overload
    def race(self, b1: Call[T1], b2: Call[T2], /) -> T1 | T2: ...
    @overload
    def race(self, b1: Call[T1], b2: Call[T2], b3: Call[T3], /) -> T1 | T2 | T3: ...
    @overload
    def race(self, *branches: Call[T]) -> T: ...
    @overload
    def race(self, **branches: Branch) -> tuple[str, Any]: ...

    def race(self, *branches: Branch, **named: Branch) -> Any:
        """See `Flow.race`."""
        _check("race", one_way("race", branches, named))
        return self._do(lambda: self._flow.race(*map(self._branch, branches), **self._named(named)))

    @overload
    def first(self, b1: Call[T1], b2: Call[T2], /) -> T1 | T2: ...
    @overload
    def first(self, b1: Call[T1], b2: Call[T2], b3: Call[T3], /) -> T1 | T2 | T3: ...
    @overload
    def first(self, *branches: Call[T]) -> T: ...
    @overload
    def first(self, **branches: Branch) -> tuple[str, Any]: ...

    def first(self, *branches: Branch, **named: Branch) -> Any:
        """See `Flow.first`."""
        _check("first", one_way("first", branches, named))
        return self._do(lambda: self._flow.first(*map(self._branch, branches), **self._named(named)))

    def _named(self, branches: dict[str, Branch]) -> dict[str, Awaitable[Any]]:
        return {name: self._branch(branch) for name, branch in branches.items()}

    def _branch(self, branch: Branch) -> Awaitable[Any]:
        """In the loop: run an operation of this flow as that of its twin, anything else in a thread."""
        function = branch.func if isinstance(branch, partial) else branch
        if getattr(function, "__self__", None) is self and isinstance(branch, partial):
            thread_var.set(None)  # detach from this thread: steps of several branches run in separate threads
            return getattr(self._flow, function.__name__)(*branch.args, **branch.keywords)  # type: ignore[no-any-return]
        return in_new_thread(self._run, branch)

    # -- implementation

    def _do(self, begin: Callable[[], Awaitable[T]]) -> T:
        thread = thread_var.get()
        if thread is None or thread.owner is not self._run:
            thread = Thread(self._run)
        return thread.do(begin)  # type: ignore[no-any-return]

    def _here(self, function: Callable[[], T]) -> T:
        """Run a function that needs no waiting in the loop, because others use the flow there."""

        async def call() -> T:
            return function()

        return self._do(call)


def _check(what: str, branches: Sequence[Branch]) -> None:
    """Raise OptionError for branches that cannot be called, before any branch begins."""
    for branch in branches:
        if not callable(branch):
            raise refused(what, branch, f"cannot be called; give {_ALLOWED}", _ALLOWED)
        runnable(branch, what)


def run_blocking(
    job: ActiveJob[Any],
    encode: Encode,
    body: Callable[[BlockingFlow], Any],
    signals: Mapping[str, Converter] | None = None,
) -> Any:
    """Run the function of a workflow in this thread; like `drive`."""
    loop = job.channel.loop
    run = asyncio.run_coroutine_threadsafe(_made(job, encode), loop).result()
    thread = Thread(run)
    context = copy_context()

    async def begin() -> Any:
        thread.go()
        return await thread.ended

    driving = asyncio.run_coroutine_threadsafe(contained(drive(run, begin)), loop)
    driving.add_done_callback(lambda _: thread.leave())
    job.halt = driving.cancel
    try:
        if thread.is_to_run():
            context.run(thread.run, lambda: body(BlockingFlow(Flow(run, signals), run)))
        return driving.result()
    except Exit as error:
        found = error.raised
    finally:
        job.halt = None
    raise found


async def _made(job: ActiveJob[Any], encode: Encode) -> Run:
    return Run(job, encode)

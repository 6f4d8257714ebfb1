"""`Flow`: the argument of a workflow that is a coroutine function."""

from __future__ import annotations

import random as chance
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, NoReturn, ParamSpec, TypeVar, overload
from uuid import UUID, uuid4

from bunqueue.client.connection.options import Duration, refused, span
from bunqueue.client.conversion.converter import Converter
from bunqueue.client.flow_plan import FlowJob
from bunqueue.model.workflow import CHILD, COMPLETED, SIGNAL, SLEEP, STEP
from bunqueue.workflow import values
from bunqueue.workflow.attempts import Attempts
from bunqueue.workflow.branches import Branch, Race, gather, one_way
from bunqueue.workflow.context import step_var
from bunqueue.workflow.many import Many
from bunqueue.workflow.outcomes import ContinueRun, Unwind
from bunqueue.workflow.plans import (
    Order,
    Plan,
    Runs,
    Undo,
    check_wait,
    name_and_span,
    order_of,
    plan_of,
    sleep_span,
)
from bunqueue.workflow.retry import RetryRule
from bunqueue.workflow.run import PATCH, RAISE, Ended, Run
from bunqueue.workflow.run_log import Claim, Conflict, checked_name

if TYPE_CHECKING:
    from bunqueue.worker.active_job import ActiveJob

R = TypeVar("R")
T = TypeVar("T")
D = TypeVar("D")
T1 = TypeVar("T1")
T2 = TypeVar("T2")
T3 = TypeVar("T3")
P = ParamSpec("P")

Op = Coroutine[Any, Any, T]


class Flow:
    """A workflow as its function sees it. docs/workflows.md lists the guarantees.

    @app.workflow
    async def order(flow: Flow, order: Order) -> Receipt:
        charge = await flow.step("charge", pay, order, undo=refund)
        await flow.sleep("cooling-off", days=1)
        return await flow.step("ship", ship, charge)
    """

    def __init__(self, run: Run, signals: Mapping[str, Converter] | None = None) -> None:
        """`signals`: what the workflow declares of the data of its signals."""
        self._run = run
        self._declared = signals or {}

    def __repr__(self) -> str:
        return f"<workflow {self._run.job.name!r}, job {self._run.job.id}>"

    # -- identity

    @property
    def job(self) -> ActiveJob[Any]:
        """The job that it is: its id, queue, attempts, and so on."""
        return self._run.job

    @property
    def id(self) -> str:
        """The id of the workflow, which is that of its job."""
        return self._run.job.id

    @property
    def undoing(self) -> bool:
        """Whether this run only undoes what earlier ones have done: finished steps return their results, and
        nothing new begins.
        """
        return self._run.undoing

    @property
    def key(self) -> str:
        """The idempotency key of the current step: the same in each of its attempts and runs, and different
        for every other step. Raises LookupError outside of steps.
        """
        step = step_var.get()
        if step is None:
            raise LookupError("flow.key: no step runs here; each step has a key of its own")
        return step.key

    # -- values decided once

    def now(self, name: str = "now") -> datetime:
        """The time, in UTC: the same in every run."""
        found: datetime = self._run.decided(
            name, lambda: datetime.fromtimestamp(self._run.server_ms() / 1000, UTC), datetime
        )
        return found

    def random(self, name: str = "random") -> float:
        """A random number from 0 to 1: the same in every run."""
        found: float = self._run.decided(name, chance.random, float)
        return found

    def uuid(self, name: str = "uuid") -> UUID:
        """A random UUID: the same in every run."""
        found: UUID = self._run.decided(name, uuid4, UUID)
        return found

    def patched(self, name: str) -> bool:
        """Whether this workflow should take the new path of a code change: True if it had not passed this
        line when the change was deployed. The answer is the same in every run.
        """
        new = self._run.log.at_end  # before this line claims a step itself
        found: bool = self._run.decided(f"patched:{name}", lambda: new, bool, PATCH)
        return found

    @property
    def state(self) -> Any:
        """The workflow's visible state, read with `handle.query()` during and after the run: any value that
        can be stored in 64 KB. It is sent soon, at the latest with the next step.
        """
        return self._run.state

    @state.setter
    def state(self, value: Any) -> None:
        self._run.state = value

    def continue_as_new(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Start the workflow again with these arguments and without its steps, for long-running workflows.
        Its id and the signals that it has not waited for yet stay. Does not return. Raises ArgumentsError.
        """
        self._run.check()
        self._run.stop(ContinueRun(self._run.encode(args, kwargs)))
        raise Unwind

    # -- steps

    @overload
    def step(
        self,
        name: str,
        function: Callable[..., Coroutine[Any, Any, R]],
        /,
        *args: Any,
        undo: Callable[[R], Any] | Undo | None = None,
        retry: RetryRule | None = None,
        timeout: Duration | None = None,
        **kwargs: Any,
    ) -> Op[R]: ...
    @overload
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
    ) -> Op[R]: ...

    def step(
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        undo: Callable[[Any], Any] | Undo | None = None,
        retry: RetryRule | None = None,
        timeout: Duration | None = None,
        **kwargs: Any,
    ) -> Op[Any]:
        """Call a function once: its result is stored, and returned at once in every later run.

        A plain function is called in a thread. `retry` is the number of attempts, 1 by default, or a `Retry`;
        `timeout` applies to each attempt. `undo` is called with the result if the workflow fails for good or
        is cancelled. Raises StepFailed or StepChanged.
        """
        self._run.check()
        plan = plan_of(function, args, kwargs, retry, timeout, undo)
        claim = self._run.claim(name, STEP, plan.arguments)
        return self._run.operation(self._step(claim, plan), claim)

    async def _step(self, given: Claim | Conflict, plan: Plan) -> Any:
        claim = await self._run.resolved(given)
        known = claim.known
        if known is not None and (not known.is_open or (self._run.undoing and known.has_failed)):
            if known.has_failed:
                raise self._run.step_failed(known.name, known.error or "", known.attempts)
            value = values.value_of(await self._run.raw(known), plan.converting, known.name)
            if plan.undo is not None and self._run.undoing:
                self._run.undos.append((known, plan.undo, value))
                self._run.saw(known.name)
            return value
        if self._run.undoing and (known is None or known.name not in self._run.unseen or plan.undo is None):
            await self._run.pending_waits.never()
        self._run.check()
        return await Attempts(self._run, claim.name, plan, known).run()

    # -- waiting

    def sleep(
        self,
        name: str | Duration | datetime = "sleep",
        duration: Duration | datetime | None = None,
        /,
        **parts: float,
    ) -> Op[None]:
        """Wait without occupying a worker: `sleep("cooling-off", days=1)`, `sleep("cooling-off", until)`.

        The duration is in ms, a timedelta, a text such as "1h30m", or a moment, or its parts: weeks, days,
        hours, minutes, seconds, milliseconds. With a moment that has passed it returns at once.
        """
        self._run.check()
        called, given = name_and_span(name, duration, parts)
        left = sleep_span(given, parts)
        claim = self._run.claim(called, SLEEP, None)
        return self._run.operation(self._sleep(claim, left), claim, waits=True)

    async def _sleep(self, claim: Claim | Conflict, ms: float) -> None:
        await self._run.waited(claim, kind=SLEEP, delay=ms)

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
    ) -> Op[T]: ...
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
    ) -> Op[T | D]: ...
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
    ) -> Op[Any]: ...

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
    ) -> Op[Any]:
        """Wait for a signal without occupying a worker; returns its data as a `kind`. A signal that came
        before is taken at once.

        With a `key` a broadcast for this signal and key also counts. After `timeout` the `default` is
        returned, or SignalTimeout raised. The step has the name of the signal unless `name` is given.
        """
        self._run.check()
        converting = self._signal_converter(signal, kind)
        left = None if timeout is None else span(timeout, "timeout")
        called = checked_name(name or signal, "signal" if name is None else "name")
        check_wait("timeout", signal=signal, key=key, delay=left)
        # A name unrelated to the signal may also name waits for other signals.
        what = (signal,) if key is None and called != signal else () if key is None else (key,)
        arguments = values.fingerprint(what, {}) if what else None
        claim = self._run.claim(called, SIGNAL, arguments)
        fields = {
            "signal": signal,
            "key": key,
            "delay": left,
            "arguments": arguments,
            "schema": values.schema_for(converting),
        }
        return self._run.operation(self._wait_for(claim, fields, converting, default), claim, waits=True)

    def _signal_converter(self, signal: str, kind: Any) -> Converter | None:
        """The converter from a signal's data to the type that the code expects. Raises OptionError if the
        workflow has declared another type.
        """
        declared = self._declared.get(signal)
        if declared is None:
            return values.converter_of(kind, f"the data of signal {signal!r}")
        if kind not in (Any, declared.hint):
            why = f"is not what the workflow declares for signal {signal!r}, which is {declared.hint!r}"
            raise refused("kind", kind, why, repr(declared.hint))
        return declared

    async def _wait_for(
        self, claim: Claim | Conflict, fields: dict[str, Any], converting: Any, default: Any
    ) -> Any:
        def judge(ended: Ended) -> str | None:
            if ended.status != COMPLETED:
                return None
            return values.misfit_of(ended.raw, converting, fields["signal"])

        ended = await self._run.waited(claim, kind=SIGNAL, judge=judge, **fields)
        if ended.status == COMPLETED:
            return values.value_of(ended.raw, converting, ended.name)
        if default is RAISE:
            raise self._run.signal_timeout(fields["signal"], ended.name)
        return default

    # -- children

    @overload
    def run(self, what: Runs[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Op[R]: ...
    @overload
    def run(
        self, what: Runs[..., R], /, *args: Any, child_id: str, step: str | None = None, **kwargs: Any
    ) -> Op[R]: ...
    @overload
    def run(self, what: Runs[..., R], /, *args: Any, step: str, **kwargs: Any) -> Op[R]: ...
    @overload
    def run(self, what: FlowJob[R], /, *, child_id: str | None = None, step: str | None = None) -> Op[R]: ...

    def run(  # type: ignore[misc]  # arguments may have these names
        self, what: Any, /, *args: Any, child_id: str | None = None, step: str | None = None, **kwargs: Any
    ) -> Op[Any]:
        """Run a job or workflow of any queue, and wait for its result: `flow.run(pack, item)`.

        `what` is a function decorated with `@app.job` or `@app.workflow`, or the result of its `job(...)`. It
        is started once, and cancelled if this workflow ends first. `child_id` is an id of your own, `step`
        the name of the step; the default is the job's name. Raises ChildFailed.
        """
        self._run.check()
        order = order_of(what, args, kwargs, child_id=child_id, name=step)
        claim = self._run.claim(order.name, CHILD, order.arguments)
        return self._run.operation(self._run_child(claim, order), claim, waits=True)

    async def _run_child(self, claim: Claim | Conflict, order: Order) -> Any:
        ended = await self._run.waited(claim, kind=CHILD, child=order.job, arguments=order.arguments)
        return self._run.child_result(ended, order)

    @overload
    def start(self, what: Runs[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Op[str]: ...
    @overload
    def start(
        self, what: Runs[..., R], /, *args: Any, child_id: str, step: str | None = None, **kwargs: Any
    ) -> Op[str]: ...
    @overload
    def start(self, what: Runs[..., R], /, *args: Any, step: str, **kwargs: Any) -> Op[str]: ...
    @overload
    def start(
        self, what: FlowJob[R], /, *, child_id: str | None = None, step: str | None = None
    ) -> Op[str]: ...

    def start(  # type: ignore[misc]  # arguments may have these names
        self, what: Any, /, *args: Any, child_id: str | None = None, step: str | None = None, **kwargs: Any
    ) -> Op[str]:
        """Start a job or workflow without waiting for it; returns its id. It survives this workflow. Raises
        ChildFailed if it cannot be started.
        """
        self._run.check()
        order = order_of(what, args, kwargs, child_id=child_id, name=step, detached=True)
        claim = self._run.claim(order.name, CHILD, order.arguments)
        return self._run.operation(self._start(claim, order), claim, waits=True)

    async def _start(self, claim: Claim | Conflict, order: Order) -> str:
        ended = await self._run.waited(claim, kind=CHILD, child=order.job, arguments=order.arguments)
        if ended.status != COMPLETED:
            self._run.child_result(ended, order)
        return ended.child or ""

    @overload
    async def map(
        self,
        what: Runs[[T], R],
        items: Iterable[T],
        /,
        *,
        step: str | None = None,
        return_exceptions: Literal[False] = False,
    ) -> list[R]: ...
    @overload
    async def map(
        self,
        what: Runs[[T], R],
        items: Iterable[T],
        /,
        *,
        step: str | None = None,
        return_exceptions: bool,
    ) -> list[R | BaseException]: ...

    async def map(
        self, what: Any, items: Iterable[Any], /, *, step: str | None = None, return_exceptions: bool = False
    ) -> list[Any]:
        """Run a job or workflow for each item, with the item as its argument; returns the results in the
        order of the items. For thousands of items this is cheaper than `gather` and `run`.

        At the first failure the others are cancelled, and ChildFailed is raised; with `return_exceptions`
        failures are among the results.
        """
        self._run.check()
        if not isinstance(items, Iterable):
            raise refused("items", items, "is no list; give one, with the argument of each child")
        orders = [order_of(what, (item,), {}, name=step) for item in items]
        claims = [self._run.claim(order.name, CHILD, order.arguments) for order in orders]
        return await Many(self._run, orders, claims).results(return_exceptions=return_exceptions)

    # -- concurrent branches

    @overload
    async def gather(self, b1: Awaitable[T1], b2: Awaitable[T2], /) -> tuple[T1, T2]: ...
    @overload
    async def gather(
        self, b1: Awaitable[T1], b2: Awaitable[T2], b3: Awaitable[T3], /
    ) -> tuple[T1, T2, T3]: ...
    @overload
    async def gather(self, *branches: Awaitable[T], return_exceptions: Literal[False] = False) -> list[T]: ...
    @overload
    async def gather(self, *branches: Awaitable[T], return_exceptions: bool) -> list[T | BaseException]: ...

    async def gather(self, *branches: Branch, return_exceptions: bool = False) -> Any:
        """The results of all branches, in order; an empty list without branches. A branch is a step, a wait,
        a child, or a coroutine made of these. Raises OptionError for anything else.

        At the first failure the others are cancelled, and it is raised; with `return_exceptions` failures are
        among the results.
        """
        return await gather(self._run, branches, return_exceptions=return_exceptions)

    @overload
    def race(self, b1: Awaitable[T1], b2: Awaitable[T2], /) -> Op[T1 | T2]: ...
    @overload
    def race(self, b1: Awaitable[T1], b2: Awaitable[T2], b3: Awaitable[T3], /) -> Op[T1 | T2 | T3]: ...
    @overload
    def race(self, *branches: Awaitable[T]) -> Op[T]: ...
    @overload
    def race(self, **branches: Branch) -> Op[tuple[str, Any]]: ...

    def race(self, *branches: Branch, **named: Branch) -> Op[Any]:
        """The result of the first branch to end; the others are cancelled. Raises its exception if it failed.

        who, answer = await flow.race(
            human=flow.wait_for("approval"), nobody=flow.sleep(days=3)
        )
        """
        return self._race(branches, named, "race", errors_count=True)

    @overload
    def first(self, b1: Awaitable[T1], b2: Awaitable[T2], /) -> Op[T1 | T2]: ...
    @overload
    def first(self, b1: Awaitable[T1], b2: Awaitable[T2], b3: Awaitable[T3], /) -> Op[T1 | T2 | T3]: ...
    @overload
    def first(self, *branches: Awaitable[T]) -> Op[T]: ...
    @overload
    def first(self, **branches: Branch) -> Op[tuple[str, Any]]: ...

    def first(self, *branches: Branch, **named: Branch) -> Op[Any]:
        """The result of the first branch to succeed; the others are cancelled. Raises an ExceptionGroup if
        all have failed. With named branches it returns the name and the result.
        """
        return self._race(branches, named, "first", errors_count=False)

    def _race(
        self, branches: tuple[Branch, ...], named: dict[str, Branch], what: str, *, errors_count: bool
    ) -> Op[Any]:
        self._run.check()
        race = Race(self._run, what, one_way(what, branches, named), errors_count=errors_count)
        claim = race.claim
        return self._run.operation(_won(race, list(named)), claim)

    # -- what others see

    def progress(self, value: float, message: str | None = None) -> Awaitable[None]:
        """Report the progress of the workflow, 0 to 100. Await it."""
        return self._run.job.progress(value, message)

    # -- information about an operation, if it is used as a branch


async def _won(race: Race, names: list[str]) -> Any:
    place, value = await race.run()
    return (names[place], value) if names else value

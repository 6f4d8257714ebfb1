"""Values that handlers need and jobs do not carry: `session: Annotated[Session, Depends(open_session)]`.

A function makes the value. It is a plain or a coroutine function, or a generator of either kind, whose
remaining part runs when the value is no longer needed. It may have dependencies of its own, and receive the
job.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial, wraps
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from bunqueue.client.callables import as_async, is_async
from bunqueue.client.connection.options import refused, shown
from bunqueue.errors import OptionError
from bunqueue.worker.active_job import ActiveJob

PER_JOB, PER_WORKER = "job", "worker"


@dataclass(frozen=True, slots=True)
class Dependency:
    """The result of `Depends`: the function that makes a value, and how long the value is kept."""

    function: Callable[..., Any]
    per: str = PER_JOB


def Depends(function: Callable[..., Any], *, per: Literal["job", "worker"] = "job") -> Any:
    """Fill a parameter of a job's function with the value that `function` makes. See docs/dependencies.md.

        async def order(id: int, db: Annotated[Session, Depends(session)]) -> None: ...
        async def order(id: int, db: Session = Depends(session)) -> None: ...  # which type checkers follow

    The value is made once for each job, however many parameters need it. With `per="worker"` it is made when
    a job first needs it, and kept until the app stops.
    """
    if not callable(function):
        raise OptionError(f"Depends: {shown(function)} cannot be called; give the function that makes it")
    if per not in (PER_JOB, PER_WORKER):
        raise refused("per", per, "is not allowed; give 'job' or 'worker'")
    return Dependency(function, per)


@dataclass(frozen=True, slots=True)
class Needs:
    """The parameters of a function that do not come from the caller's arguments."""

    dependencies: Mapping[str, Dependency]
    job: str | None
    """The parameter that receives the job. Only functions that make values have it."""
    other: tuple[str, ...]
    """The parameters without a default, which would have to come from the data of a job."""


@lru_cache(maxsize=10_000)
def needs_of(function: Callable[..., Any]) -> Needs:
    """What a function needs. Raises TypeError if an annotation with Depends cannot be read."""
    dependencies, job, other = {}, None, []
    for parameter in _parameters(function):
        hint = _hint(function, parameter)
        found = parameter.default if isinstance(parameter.default, Dependency) else _annotated(hint)
        if found is not None:
            dependencies[parameter.name] = found
        elif hint is ActiveJob or get_origin(hint) is ActiveJob:
            job = job or parameter.name
        elif parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        ):
            other.append(parameter.name)
    return Needs(dependencies, job, tuple(other))


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # some functions written in C have no signature
        return []


def _hint(function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """The annotation of one parameter. If it cannot be read yet, its source text."""
    written = parameter.annotation
    if not isinstance(written, str):
        return written
    owner = function.func if isinstance(function, partial) else inspect.unwrap(function)
    code = getattr(owner, "__init__", owner) if inspect.isclass(owner) else owner
    known = getattr(code, "__globals__", None) or vars(sys.modules.get(owner.__module__, sys))
    holder = type("holder", (), {"__annotations__": {parameter.name: written}})
    try:
        return get_type_hints(holder, known, include_extras=True)[parameter.name]
    except Exception as error:  # it names something defined further down, or only for type checkers
        if "Depends" in written:
            raise TypeError(
                f"{_name(function)}: the annotation of {parameter.name!r} cannot be read ({error}): what it "
                f"names must be defined above, at the top of the module"
            ) from None
        return written


def _annotated(hint: Any) -> Dependency | None:
    if get_origin(hint) is not Annotated:
        return None
    return next((each for each in get_args(hint)[1:] if isinstance(each, Dependency)), None)


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", None) or shown(function)


def without_dependencies(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function with the other parameters only; the same function if it has no dependencies."""
    given = needs_of(function).dependencies
    if not given:
        return function

    @wraps(function)
    def stub(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError

    signature = inspect.signature(function)
    kept = [each for name, each in signature.parameters.items() if name not in given]
    annotations = getattr(function, "__annotations__", {})
    stub.__annotations__ = {name: hint for name, hint in annotations.items() if name not in given}
    stub.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
    return stub


# -- checks when a handler is declared


def check_dependencies(function: Callable[..., Any], what: str, *, in_process: bool = False) -> None:
    """Raise TypeError, with a text that begins with `what`, for impossible dependencies."""
    for name, dependency in needs_of(function).dependencies.items():
        _check(dependency, f"{what}: its parameter {name!r}", (), is_async(function), in_process)


def _check(
    dependency: Dependency, what: str, above: tuple[Dependency, ...], in_loop: bool, in_process: bool
) -> None:
    function, name = dependency.function, _name(dependency.function)
    if any(each.function == function for each in above):
        raise TypeError(f"{what} depends on {name}, which depends on itself")
    if is_awaited(function) and not in_loop:
        raise TypeError(f"{what} depends on {name}, which is async: make the function a coroutine function")
    kept = dependency.per == PER_WORKER
    if kept and in_process and inspect.isgeneratorfunction(function):
        raise TypeError(
            f"{what} depends on {name}, whose end nothing would run in a process of its own: with "
            f"run_in='process' a generator can be per job"
        )
    needs = needs_of(function)
    if needs.other:
        raise TypeError(
            f"{what} depends on {name}, and its parameter {needs.other[0]!r} would be given by nobody: give "
            f"it a default, a Depends, or annotate it as ActiveJob"
        )
    if kept and needs.job:
        raise TypeError(f"{what} depends on {name}, which is kept for many jobs and cannot be given one")
    for each in needs.dependencies.values():
        if kept and each.per == PER_JOB:
            raise TypeError(
                f"{what} depends on {name}, which is kept for many jobs, and needs {_name(each.function)}, "
                f"which is made for each: make both per='worker'"
            )
        _check(each, what, (*above, dependency), in_loop, in_process)


def is_awaited(function: Callable[..., Any]) -> bool:
    """Whether a coroutine function or an async generator makes the value."""
    called = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
    return any(
        inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each) for each in (function, called)
    )


# -- what happens when a job runs


@dataclass(slots=True)
class _Run:
    """One call of a handler."""

    job: ActiveJob[Any] | None
    stack: Any
    made: dict[Callable[..., Any], Any] = field(default_factory=dict)


class Dependencies:
    """The dependencies of an app: the overrides by function, and the values that are kept."""

    def __init__(self) -> None:
        self.overrides: dict[Callable[..., Any], Callable[..., Any]] = {}
        self._guard = threading.RLock()  # for plain functions, because handlers in threads need them as well
        self._begin()

    def _begin(self) -> None:
        self._plain = _Run(None, ExitStack())
        self._awaited = _Run(None, AsyncExitStack())
        self._lock = asyncio.Lock()  # bound to the event loop that first awaits it

    async def close(self) -> None:
        """Release the values that were kept, the last one first."""
        plain, awaited = self._plain, self._awaited
        self._begin()
        try:
            await awaited.stack.aclose()
        finally:
            plain.stack.close()

    # -- in a coroutine

    async def call_async(
        self, function: Callable[..., Any], arguments: Mapping[str, Any], job: ActiveJob[Any]
    ) -> Any:
        """Call a coroutine function with its arguments and its dependencies."""
        failure = None
        async with AsyncExitStack() as stack:
            try:
                given = await self._given_async(function, _Run(job, stack))
                result = await function(**arguments, **given)
            except BaseException as error:
                failure = error
                raise
        if failure is not None:  # a generator has swallowed the error, which it must not do
            raise failure
        return result

    async def _given_async(self, function: Callable[..., Any], run: _Run) -> dict[str, Any]:
        needs = needs_of(function)
        given = {name: await self._value_async(each, run) for name, each in needs.dependencies.items()}
        return given if needs.job is None else {**given, needs.job: run.job}

    async def _value_async(self, dependency: Dependency, run: _Run) -> Any:
        function = self.overrides.get(dependency.function, dependency.function)
        if dependency.per == PER_JOB:
            return await self._made_async(function, run)
        if not any(map(is_awaited, self._all(function))):
            return self._kept(function)
        if function not in self._awaited.made:
            async with self._lock:
                return await self._made_async(function, self._awaited, kept=True)
        return self._awaited.made[function]

    async def _made_async(self, function: Callable[..., Any], run: _Run, *, kept: bool = False) -> Any:
        if function in run.made:
            return run.made[function]
        if kept:  # the lock is held
            needs = needs_of(function).dependencies
            given = {name: await self._inside(each) for name, each in needs.items()}
        else:
            given = await self._given_async(function, run)
        if inspect.isasyncgenfunction(function):
            value = await run.stack.enter_async_context(asynccontextmanager(function)(**given))
        elif inspect.isgeneratorfunction(function):
            value = run.stack.enter_context(contextmanager(function)(**given))
        else:
            value = function(**given)
            value = await value if inspect.isawaitable(value) else value
        run.made[function] = value
        return value

    async def _inside(self, dependency: Dependency) -> Any:
        """A value that a kept value needs, while the lock is held."""
        function = self.overrides.get(dependency.function, dependency.function)
        if not any(map(is_awaited, self._all(function))):
            return self._kept(function)
        return await self._made_async(function, self._awaited, kept=True)

    # -- in a thread

    def call(self, function: Callable[..., Any], arguments: Mapping[str, Any], job: ActiveJob[Any]) -> Any:
        """Like `call_async`, for a plain function. If the function returns an awaitable, so does this."""
        failure = None
        with ExitStack() as stack:
            try:
                result = function(**arguments, **self._given(function, _Run(job, stack)))
            except BaseException as error:
                failure = error
                raise
            if inspect.isawaitable(result):
                return self._awaited_with(result, stack.pop_all())
        if failure is not None:
            raise failure
        return result

    async def _awaited_with(self, result: Awaitable[Any], stack: ExitStack) -> Any:
        """Release the dependencies once the result has been awaited."""
        failure = None
        with stack:
            try:
                value = await result
            except BaseException as error:
                failure = error
                raise
        if failure is not None:
            raise failure
        return value

    def _given(self, function: Callable[..., Any], run: _Run) -> dict[str, Any]:
        needs = needs_of(function)
        given = {name: self._value(each, run) for name, each in needs.dependencies.items()}
        return given if needs.job is None else {**given, needs.job: run.job}

    def _value(self, dependency: Dependency, run: _Run) -> Any:
        function = self.overrides.get(dependency.function, dependency.function)
        return self._made(function, run) if dependency.per == PER_JOB else self._kept(function)

    def _kept(self, function: Callable[..., Any]) -> Any:
        with self._guard:
            return self._made(function, self._plain)

    def _made(self, function: Callable[..., Any], run: _Run) -> Any:
        if function not in run.made:
            if is_awaited(function):
                raise TypeError(f"{_name(function)} is async, and the function that needs it is not")
            given = self._given(function, run)
            is_generator = inspect.isgeneratorfunction(function)
            run.made[function] = (
                run.stack.enter_context(contextmanager(function)(**given))
                if is_generator
                else function(**given)
            )
        return run.made[function]

    def _all(self, function: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
        """A function, and all functions that make what it needs."""
        yield function
        for each in needs_of(function).dependencies.values():
            yield from self._all(self.overrides.get(each.function, each.function))

    # -- handlers that are given the whole job

    def around(self, handler: Callable[..., Any], what: str) -> Callable[..., Any]:
        """A handler that also receives its dependencies. Without any, the same handler."""
        if not needs_of(handler).dependencies:
            return handler
        check_dependencies(handler, what)
        visible = without_dependencies(handler)
        first = next(iter(inspect.signature(visible).parameters), None)
        if first is None:
            raise TypeError(f"{what}: {_name(handler)} has no parameter for the job")
        by_name = needs_of(handler).job is None  # otherwise the job is passed with the dependencies

        call = self.call_async if is_async(handler) else self.call

        @wraps(visible)
        def run(job: ActiveJob[Any]) -> Any:
            return call(handler, {first: job} if by_name else {}, job)

        found: Callable[..., Any] = as_async(run) if is_async(handler) else run
        found.__signature__ = inspect.signature(visible)  # type: ignore[attr-defined]
        return found

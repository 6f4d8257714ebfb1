"""What a step does, or which child to start, from the arguments in a workflow's code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ParamSpec, Protocol, TypeVar

from msgspec import Struct

from bunqueue.client.callables import runnable
from bunqueue.client.connection.options import Duration, refused, seconds, shown, span, unfit
from bunqueue.client.conversion.converter import Converter
from bunqueue.client.flow_plan import FlowJob
from bunqueue.client.options import checks
from bunqueue.client.options.job import job_data, wire_fields
from bunqueue.client.options.moments import time_left
from bunqueue.model.durations import span_ms
from bunqueue.protocol.commands.base import Delay
from bunqueue.protocol.commands.core import JobFields
from bunqueue.protocol.commands.workflows import ChildJob, SignalKey, SignalName
from bunqueue.workflow import values
from bunqueue.workflow.retry import UNDO, Policy, RetryRule, policy_of
from bunqueue.workflow.run_log import checked_name

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)


class Runs(Protocol[P, R_co]):
    """What a workflow can run as a child: a function decorated with `@app.job` or `@app.workflow`."""

    def job(self, *args: P.args, **kwargs: P.kwargs) -> FlowJob[R_co]:
        """The job to add."""


class _Wait(Struct):
    signal: SignalName | None = None
    key: SignalKey | None = None
    delay: Delay | None = None


def check_wait(called: str, **fields: object) -> None:
    """Check the fields of a wait; `called` is the users' name for its time. Raises OptionError."""
    checks.wire(_Wait, fields, delay=called)


@dataclass(frozen=True, slots=True)
class Undo:
    """How to undo a step, if a function alone is not enough: `undo=Undo(refund, retry=20)`.

    The function gets the result of the step. It has five attempts unless `retry` is given.
    """

    function: Callable[[Any], Any]
    retry: RetryRule = UNDO
    timeout: Duration | None = None


@dataclass(slots=True)
class Plan:
    """What a step does."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    policy: Policy
    timeout: float | None  # seconds
    undo: Undo | None
    converting: Converter | None
    arguments: str | None  # their fingerprint


def plan_of(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    retry: RetryRule | None,
    timeout: Duration | None,
    undo: Callable[[Any], Any] | Undo | None,
) -> Plan:
    """The plan of a step. Raises OptionError, or TypeError for things that cannot be called or stored."""
    if hasattr(function, "__bunqueue_handler__"):  # a typed job: use its function
        function = function.__wrapped__  # type: ignore[attr-defined]
    runnable(function, "step")
    if undo is not None and not isinstance(undo, Undo):
        undo = Undo(undo)
    if undo is not None:
        _check_undo(undo)
    return Plan(
        function,
        args,
        kwargs,
        policy_of(retry),
        _limit(timeout, "timeout"),
        undo,
        values.converter(function),
        values.fingerprint(args, kwargs),
    )


def _check_undo(undo: Undo) -> None:
    """Check before the step runs: later nobody could undo it."""
    runnable(undo.function, "undo")
    policy_of(undo.retry)
    _limit(undo.timeout, "undo: timeout")


def _limit(timeout: Duration | None, name: str) -> float | None:
    """The timeout of each attempt, in seconds. Raises OptionError."""
    if timeout is None:
        return None
    limit = seconds(timeout, name)
    if limit <= 0:
        raise refused(name, timeout, "is not allowed; give a time above 0")
    return limit


def undo_plan(undo: Undo, value: Any) -> Plan:
    """The plan that undoes a step with this result."""
    limit = _limit(undo.timeout, "undo: timeout")
    return Plan(undo.function, (value,), {}, policy_of(undo.retry), limit, None, None, None)


@dataclass(slots=True)
class Order:
    """A child to start."""

    name: str
    job: ChildJob
    arguments: str
    converting: Converter | None


def order_of(
    what: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    child_id: str | None = None,
    name: str | None = None,
    detached: bool = False,
) -> Order:
    """The order for a typed job or workflow with its arguments, or for the result of its `job(...)`. Raises
    TypeError or ArgumentsError.
    """
    made = what.job(*args, **kwargs) if hasattr(what, "__bunqueue_handler__") else what
    if not all(hasattr(made, each) for each in ("name", "data", "queue", "options")):
        raise TypeError(
            f"child: {shown(what)} is no job; give a function that @app.job or @app.workflow has made one, "
            f"and its arguments after it, or a FlowJob"
        )
    if made is what and (args or kwargs):
        raise TypeError(f"child: {shown(what)} has its arguments already")
    if getattr(made, "children", None):
        raise refused("child", made, "consists of several jobs; start them one by one")
    options = dict(made.options) if child_id is None else {**made.options, "job_id": child_id}
    data = job_data(made.data, f"the data of job {made.name!r}", declared=True)
    checks.queue_name(made.queue)
    checks.job_name(made.name)
    fields = JobFields(name=made.name, data=data, **wire_fields(options, {}))
    converting = values.converter_of(getattr(made, "result_type", Any), f"the result of job {made.name!r}")
    job = ChildJob(queue=made.queue, input=fields, detached=detached)
    arguments = values.fingerprint((made.queue, made.name, bytes(data)), {})
    return Order(checked_name(name or made.name, "step"), job, arguments, converting)


def name_and_span(
    name: str | Duration | datetime, duration: Duration | datetime | None, parts: Mapping[str, float]
) -> tuple[str, Duration | datetime | None]:
    """The name and the duration of a sleep. A text on its own is the duration, such as "5m"."""
    alone = duration is None and not parts
    if isinstance(name, str) and not (alone and span_ms(name) is not None):
        return name, duration
    return "sleep", name


def sleep_span(given: Duration | datetime | None, parts: Mapping[str, float]) -> float:
    """The ms of a duration, of days, hours and so on, or until a moment. Raises OptionError."""
    left = _sleep_span(given, parts)
    check_wait("sleep", delay=left)
    return left


def _sleep_span(given: Duration | datetime | None, parts: Mapping[str, float]) -> float:
    if given is not None and parts:
        raise unfit("sleep", f"give a duration, or {', '.join(parts)}, not both")
    if isinstance(given, datetime):
        return time_left(given, "sleep")
    if given is not None:
        return span(given, "sleep")
    if not parts:
        raise unfit("sleep", "give a duration: days=1, milliseconds, a timedelta, or a datetime")
    try:
        return span(timedelta(**parts), "sleep")
    except TypeError:
        raise refused(
            "sleep",
            dict(parts),
            "is not allowed; give numbers of weeks, days, hours, minutes, seconds or milliseconds",
        ) from None

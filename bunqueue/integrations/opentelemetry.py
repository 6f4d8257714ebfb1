"""Traces: which program added a job, and how the job ended, with the names of OpenTelemetry's conventions.

The trace context travels in the job's headers in W3C format (`traceparent`, `tracestate`), so workers and
clients in other languages take part: they read and write the same headers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Literal

from bunqueue.errors import JobSuspended
from bunqueue.integrations import missing
from bunqueue.model.workflow import CHILD, FAILED, SIGNAL, UNDO_MARK
from bunqueue.worker.middleware import CallNext, CallStep, Middleware

try:
    from opentelemetry import context, propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags
except ImportError as error:
    raise missing("opentelemetry", error) from None

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from bunqueue.client.models.jobs import Job
    from bunqueue.client.models.workflows import Step
    from bunqueue.client.options.job import NewJob
    from bunqueue.worker.active_job import ActiveJob
    from bunqueue.workflow.context import StepRun

SYSTEM = "bunqueue"
MAX_VALUE = 1024  # characters of a header
_WAITS = {SIGNAL: "wait for", CHILD: "child"}  # prefixes of wait spans, if not the kind of wait


class OpenTelemetry(Middleware):
    """Middleware for queues, flows and workers.

        tracing = OpenTelemetry()
        Queue("emails", middleware=[tracing])
        Worker("emails", send, middleware=[tracing])

    Adding a job is a span of kind PRODUCER, "add emails"; each attempt is one of kind CONSUMER, "process
    emails". The first attempt continues the trace of the program that added the job, unless
    `first_attempt="link"`. Every other attempt begins a trace of its own, with a link to the first, so a
    trace does not stretch over days.

    All runs of a workflow are in one trace, whichever workers they are on, with a span for each attempt of a
    step ("step charge", "undo charge") and for each wait ("sleep cooling-off", "wait for approval", "child
    pack"). A child continues the trace of the run that started it.

    Without a `tracer_provider` the global one is used. Spans that the SDK does not record cost next to
    nothing.
    """

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        first_attempt: Literal["child", "link"] = "child",
    ) -> None:
        if first_attempt not in ("child", "link"):
            raise ValueError(f"first_attempt: {first_attempt!r} is not allowed; give 'child' or 'link'")
        self._tracer = trace.get_tracer("bunqueue", tracer_provider=tracer_provider)
        self._first_is_child = first_attempt == "child"

    @contextmanager
    def adding(self, job: NewJob) -> Iterator[None]:
        """A span around the adding. Its context travels with the job."""
        attributes = _attributes(job.queue, job.name, "add", "send")
        span = self._tracer.start_span(f"add {job.queue}", kind=SpanKind.PRODUCER, attributes=attributes)
        carrier: dict[str, str] = {}
        propagate.inject(carrier, trace.set_span_in_context(span))
        if fitting := _fitting(carrier):
            job.options["headers"] = {**(job.options.get("headers") or {}), **fitting}
        with _ending(span):
            yield
            span.set_attribute("messaging.message.id", job.id or "")

    async def running(self, job: ActiveJob, call_next: CallNext) -> Any:
        """A span around an attempt. It is the current span for the handler."""
        known = job.job()
        attributes: dict[str, Any] = {
            **_attributes(job.queue, job.name, "process", "process"),
            "messaging.message.id": job.id,
            "bunqueue.job.attempt": job.attempts + 1,
        }
        with self._tracer.start_as_current_span(
            f"process {job.queue}",
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            record_exception=False,
            set_status_on_exception=False,
            **self._relation(known),
        ) as span:
            carrier: dict[str, str] = {}
            propagate.inject(carrier)
            if carrier:
                job.carry(f"{__name__}:{continued.__name__}", carrier=carrier)
            with _failing(span):
                return await call_next(job)

    async def stepping(self, job: ActiveJob, step: StepRun, call_next: CallStep) -> Any:
        """A span around an attempt of a step. It is the current span for the step's function."""
        is_undo = step.name.startswith(UNDO_MARK)
        attributes = {
            **_of_step(job, step.name, "undo" if is_undo else "step"),
            "bunqueue.step.key": step.key,
            "bunqueue.step.attempt": step.attempt,
        }
        name = f"undo {step.name.removeprefix(UNDO_MARK)}" if is_undo else f"step {step.name}"
        with self._tracer.start_as_current_span(
            name, attributes=attributes, record_exception=False, set_status_on_exception=False
        ) as span:
            with _failing(span):
                return await call_next()

    def starting(self, job: ActiveJob, headers: dict[str, str]) -> None:
        """Have the child continue the trace of the run that starts it."""
        carrier: dict[str, str] = {}
        propagate.inject(carrier)
        headers.update({name: value for name, value in _fitting(carrier).items() if name not in headers})

    def waited(self, job: ActiveJob, step: Step) -> None:
        """A span from the beginning of a wait to its end, separate from the runs."""
        attributes: dict[str, Any] = {
            **_of_step(job, step.name, step.kind),
            "bunqueue.step.status": step.status,
            **({"bunqueue.signal.name": step.signal} if step.signal is not None else {}),
            **({"bunqueue.child.id": step.child} if step.child is not None else {}),
            **({"bunqueue.child.queue": step.child_queue} if step.child_queue is not None else {}),
        }
        span = self._tracer.start_span(
            f"{_WAITS.get(step.kind, step.kind)} {step.name}",
            context=self._trace_of(job.job()),
            attributes=attributes,
            start_time=_nanoseconds(step.started_at_ms),
        )
        if step.status == FAILED:
            span.set_status(Status(StatusCode.ERROR, step.error))
        span.end(_nanoseconds(step.ended_at_ms or step.started_at_ms))

    def _relation(self, job: Job) -> Mapping[str, Any]:
        """How the span of a run is related to the span of adding the job."""
        producer = propagate.extract(job.headers)
        added = trace.get_current_span(producer).get_span_context()
        links = [Link(added)] if added.is_valid else []
        if job.workflow is not None:
            return {"context": self._trace_of(job), "links": [] if self._first_is_child else links}
        if self._first_is_child and not (job.attempts or job.stall_count):
            return {"context": producer}
        return {"context": trace.set_span_in_context(trace.INVALID_SPAN), "links": links}

    def _trace_of(self, job: Job) -> Context:
        """The trace that all runs of a workflow share: that of the program that started it. Without it, each
        worker derives the same trace from the workflow's id."""
        producer = propagate.extract(job.headers)
        added = trace.get_current_span(producer).get_span_context()
        if self._first_is_child and added.is_valid:
            return producer
        digest = blake2b(f"{job.id} {job.created_at_ms:.0f}".encode(), digest_size=24).digest()
        trace_id, span_id = int.from_bytes(digest[:16]) or 1, int.from_bytes(digest[16:]) or 1
        flags = added.trace_flags if added.is_valid else self._decided(trace_id)
        common = SpanContext(trace_id, span_id, is_remote=True, trace_flags=flags)
        return trace.set_span_in_context(trace.NonRecordingSpan(common), Context())

    def _decided(self, trace_id: int) -> TraceFlags:
        """Whether the sampler of the SDK wants a trace, decided as for its first span."""
        sampler = getattr(self._tracer, "sampler", None)
        wanted = sampler is None or sampler.should_sample(None, trace_id, "bunqueue").decision.is_sampled()
        return TraceFlags(TraceFlags.SAMPLED if wanted else TraceFlags.DEFAULT)


@contextmanager
def continued(carrier: Mapping[str, str]) -> Iterator[OpenTelemetry]:
    """In a process of a handler: restore the context of its worker, above all the span of the run. Spans of
    steps come from the provider that the handler's module has set up for its process."""
    token = context.attach(propagate.extract(carrier))
    try:
        yield OpenTelemetry()
    finally:
        context.detach(token)


def _attributes(queue: str | None, name: str, operation: str, kind: str) -> dict[str, Any]:
    return {
        "messaging.system": SYSTEM,
        "messaging.destination.name": queue or "",
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
        "bunqueue.job.name": name,
    }


def _of_step(job: ActiveJob, name: str, kind: str) -> dict[str, Any]:
    return {
        "messaging.message.id": job.id,
        "bunqueue.job.name": job.name,
        "bunqueue.step.name": name,
        "bunqueue.step.kind": kind,
    }


def _fitting(carrier: Mapping[str, str]) -> dict[str, str]:
    """The part of a carrier that may travel as headers of a job."""
    return {name: value for name, value in carrier.items() if len(value) <= MAX_VALUE}


def _nanoseconds(ms: float) -> int:
    return int(ms * 1_000_000)


@contextmanager
def _ending(span: Span) -> Iterator[None]:
    try:
        with _failing(span):
            yield
    finally:
        span.end()


@contextmanager
def _failing(span: Span) -> Iterator[None]:
    """Record an exception, and raise it again. A run of a workflow that has ended to wait has not failed."""
    try:
        yield
    except JobSuspended as suspended:
        span.set_attribute("bunqueue.workflow.suspended", str(suspended))
        raise
    except BaseException as error:
        kind = type(error)
        span.set_attribute("error.type", f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins."))
        span.set_status(Status(StatusCode.ERROR, f"{kind.__name__}: {error}"))
        span.record_exception(error)
        raise

"""Traces: who added a job, and what became of it, under the names of OpenTelemetry's conventions.

The trace context travels in the job's headers as W3C has it (`traceparent`, `tracestate`), so workers and
clients in other languages take part: they read and write the same words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from bunqueue.client.worker.middleware import CallNext, Middleware
from bunqueue.integrations import missing

try:
    from opentelemetry import context, propagate, trace
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode
except ImportError as error:
    raise missing("opentelemetry", error) from None

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import TracerProvider

    from bunqueue.client.options.job import NewJob
    from bunqueue.client.worker.active_job import ActiveJob

SYSTEM = "bunqueue"
MAX_VALUE = 1024  # characters of a header


class OpenTelemetry(Middleware):
    """Middleware for queues, flows and workers.

        tracing = OpenTelemetry()
        Queue("emails", middleware=[tracing])
        Worker("emails", send, middleware=[tracing])

    Adding a job is a span of kind PRODUCER, "add emails"; each attempt is one of kind CONSUMER, "process
    emails". The first attempt continues the trace of who added the job, unless `first_attempt="link"`; every
    other one begins a trace of its own, with a link to it, so that a trace is not drawn out over days.

    Without a `tracer_provider` the global one is used. What an SDK does not record costs next to nothing.
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
        """A span around the adding; its context goes with the job."""
        attributes = _attributes(job.queue, job.name, "add", "send")
        span = self._tracer.start_span(f"add {job.queue}", kind=SpanKind.PRODUCER, attributes=attributes)
        carrier: dict[str, str] = {}
        propagate.inject(carrier, trace.set_span_in_context(span))
        fitting = {name: value for name, value in carrier.items() if len(value) <= MAX_VALUE}
        if fitting:
            job.options["headers"] = {**(job.options.get("headers") or {}), **fitting}
        with _ending(span):
            yield
            span.set_attribute("messaging.message.id", job.id or "")

    async def running(self, job: ActiveJob, call_next: CallNext) -> Any:
        """A span around an attempt, which is the current one for the handler."""
        known = job.job()
        producer = propagate.extract(known.headers)
        attributes: dict[str, Any] = {
            **_attributes(job.queue, job.name, "process", "process"),
            "messaging.message.id": job.id,
            "bunqueue.job.attempt": job.attempts + 1,
        }
        again = job.attempts > 0 or known.stall_count > 0
        with self._tracer.start_as_current_span(
            f"process {job.queue}",
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            record_exception=False,
            set_status_on_exception=False,
            **self._relation(producer, again=again),
        ) as span:
            carrier: dict[str, str] = {}
            propagate.inject(carrier)
            if carrier:
                job.carry(f"{__name__}:{continued.__name__}", carrier=carrier)
            with _failing(span):
                return await call_next(job)

    def _relation(self, producer: Context, *, again: bool) -> Mapping[str, Any]:
        """How a span goes together with that of who added the job."""
        if self._first_is_child and not again:
            return {"context": producer}
        added = trace.get_current_span(producer).get_span_context()
        nobody = trace.set_span_in_context(trace.INVALID_SPAN)
        return {"context": nobody, "links": [Link(added)] if added.is_valid else []}


@contextmanager
def continued(carrier: Mapping[str, str]) -> Iterator[None]:
    """In a process of a handler: what was current in its worker is so here, the span of the run above all."""
    token = context.attach(propagate.extract(carrier))
    try:
        yield
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


@contextmanager
def _ending(span: Span) -> Iterator[None]:
    try:
        with _failing(span):
            yield
    finally:
        span.end()


@contextmanager
def _failing(span: Span) -> Iterator[None]:
    """What is raised is noted, and goes on."""
    try:
        yield
    except BaseException as error:
        kind = type(error)
        span.set_attribute("error.type", f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins."))
        span.set_status(Status(StatusCode.ERROR, f"{kind.__name__}: {error}"))
        span.record_exception(error)
        raise

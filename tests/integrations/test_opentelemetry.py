"""Traces of jobs, on a server and in a sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, SpanKind, StatusCode
from support import traced
from support.server import Server
from support.waiting import eventually
from support.wire import Wire

from bunqueue import ActiveJob, AsyncQueue, NewJob, Queue, Worker
from bunqueue.integrations.opentelemetry import OpenTelemetry
from bunqueue.integrations.structlog import JobContext
from bunqueue.testing import Sandbox


def identity(context: SpanContext | None) -> tuple[int, int]:
    """Which span it is, on whichever side of the wire."""
    assert context is not None
    return context.trace_id, context.span_id


class Traces:
    """What was traced."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("test")

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]


@pytest.fixture
def traces() -> Iterator[Traces]:
    traces = Traces()
    yield traces
    traces.provider.shutdown()


def traceparent(span: ReadableSpan) -> str:
    context = span.get_span_context()
    assert context is not None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def test_adding_is_a_span_whose_context_goes_with_the_job(bunqueue: Sandbox, traces: Traces) -> None:
    queue = Queue("emails", middleware=[OpenTelemetry(tracer_provider=traces.provider)])
    with traces.tracer.start_as_current_span("request") as request:
        job = queue.add("welcome", {"to": "ada"}, headers={"tenant": "acme"})
    (span,) = traces.named("add emails")
    assert span.kind is SpanKind.PRODUCER
    assert span.parent == request.get_span_context()
    assert dict(span.attributes or {}) == {
        "messaging.system": "bunqueue",
        "messaging.destination.name": "emails",
        "messaging.operation.name": "add",
        "messaging.operation.type": "send",
        "messaging.message.id": job.id,
        "bunqueue.job.name": "welcome",
    }
    assert job.job().headers == {"tenant": "acme", "traceparent": traceparent(span)}
    assert job.job().data == {"to": "ada"}


def test_the_spans_of_a_batch_stand_beside_each_other(bunqueue: Sandbox, traces: Traces) -> None:
    queue = Queue("emails", middleware=[OpenTelemetry(tracer_provider=traces.provider)])
    with traces.tracer.start_as_current_span("request") as request:
        jobs = queue.add_bulk([("a", 1), NewJob("b", 2)])
    spans = traces.named("add emails")
    assert [span.parent for span in spans] == [request.get_span_context()] * 2
    told = {(span.attributes or {})["messaging.message.id"]: traceparent(span) for span in spans}
    assert told == {job.id: job.job().headers["traceparent"] for job in jobs}


def test_the_first_attempt_continues_the_trace_and_others_are_linked_to_it(
    bunqueue: Sandbox, traces: Traces
) -> None:
    tracing = OpenTelemetry(tracer_provider=traces.provider)

    def flaky(job: ActiveJob) -> None:
        assert trace.get_current_span().is_recording()
        if not job.attempts:
            raise ConnectionError("no route")

    job = Queue("emails", middleware=[tracing]).add("welcome", max_attempts=2)
    bunqueue.drain(Worker("emails", flaky, middleware=[tracing]), within=60_000)
    (added,) = traces.named("add emails")
    first, second = traces.named("process emails")
    assert first.kind is second.kind is SpanKind.CONSUMER
    assert identity(first.parent) == identity(added.get_span_context())
    assert not first.links
    assert second.parent is None
    assert second.get_span_context().trace_id != added.get_span_context().trace_id  # type: ignore[union-attr]
    assert [identity(link.context) for link in second.links] == [identity(added.get_span_context())]
    assert (first.attributes or {})["error.type"] == "ConnectionError"
    assert first.status.status_code is StatusCode.ERROR
    assert [event.name for event in first.events] == ["exception"]
    assert second.status.status_code is StatusCode.UNSET
    assert {**(second.attributes or {})} == {
        "messaging.system": "bunqueue",
        "messaging.destination.name": "emails",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.message.id": job.id,
        "bunqueue.job.name": "welcome",
        "bunqueue.job.attempt": 2,
    }


def test_a_first_attempt_may_be_linked_too(bunqueue: Sandbox, traces: Traces) -> None:
    tracing = OpenTelemetry(tracer_provider=traces.provider, first_attempt="link")
    Queue("emails", middleware=[tracing]).add("welcome")
    with traces.tracer.start_as_current_span("test"):
        bunqueue.drain(Worker("emails", lambda job: None, middleware=[tracing]))
    (added,), (run,) = traces.named("add emails"), traces.named("process emails")
    assert run.parent is None
    assert [identity(link.context) for link in run.links] == [identity(added.get_span_context())]
    with pytest.raises(ValueError, match="first_attempt: 'both' is not allowed"):
        OpenTelemetry(first_attempt="both")  # type: ignore[arg-type]


def test_what_fails_to_be_added_is_told(bunqueue: Sandbox, traces: Traces) -> None:
    bunqueue.faults.refuse("add", "no")
    queue = Queue("emails", middleware=[OpenTelemetry(tracer_provider=traces.provider)])
    with pytest.raises(Exception, match="no"):
        queue.add("welcome")
    (span,) = traces.named("add emails")
    assert (span.attributes or {})["error.type"] == "bunqueue.errors.CommandFailed"


def test_without_a_provider_nothing_is_recorded_or_sent(bunqueue: Sandbox) -> None:
    tracing = OpenTelemetry()
    job = Queue("emails", middleware=[tracing]).add("welcome")
    assert job.job().headers == {}
    assert len(bunqueue.drain(Worker("emails", lambda job: 1, middleware=[tracing]))) == 1


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_over_a_server_with_a_client_of_another_language(
    server: Server, traces: Traces, kind: str
) -> None:
    """Which knows nothing of us but the wire: it reads the context of a job, and adds one with a context."""
    tracing = OpenTelemetry(tracer_provider=traces.provider)
    inside: list[Any] = []

    def look(job: ActiveJob) -> None:
        inside.append(trace.get_current_span().get_span_context())

    async def look_later(job: ActiveJob) -> None:
        await asyncio.sleep(0)
        look(job)

    async with (
        AsyncQueue("to-them", port=server.port, middleware=[tracing]) as queue,
        await Wire.open(server.address) as wire,
    ):
        await queue.add("n")
        pulled = await wire.ok("PULL", queue="to-them")
        assert pulled["job"]["headers"]["traceparent"] == traceparent(traces.spans[0])
        theirs = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
        await wire.ok("PUSH", queue="to-us", headers={"traceparent": theirs})
        handler = look if kind == "thread" else look_later
        async with Worker("to-us", handler, port=server.port, middleware=[tracing]):
            await eventually(lambda: traces.named("process to-us"), "it was worked")
    (span,) = traces.named("process to-us")
    assert span.parent is not None
    assert f"{span.parent.trace_id:032x}-{span.parent.span_id:016x}" == theirs[3:-3]
    assert inside == [span.get_span_context()]


async def test_handlers_in_processes_are_within_the_span_of_their_run(server: Server, traces: Traces) -> None:
    tracing = OpenTelemetry(tracer_provider=traces.provider)
    async with AsyncQueue("emails", port=server.port, middleware=[tracing]) as queue:
        job = await queue.add("n")
        worker = Worker("emails", traced.handler, run_in="process", port=server.port, middleware=[tracing])
        async with worker:
            seen = await job.result(60_000)
    (run,) = traces.named("process emails")
    trace_id, span_id = identity(run.get_span_context())
    assert seen == {"trace": f"{trace_id:032x}", "parent": f"{span_id:016x}"}


async def test_steps_in_processes_are_spans_within_their_run(server: Server, traces: Traces) -> None:
    tracing = OpenTelemetry(tracer_provider=traces.provider)
    async with AsyncQueue("emails", port=server.port, middleware=[tracing]) as queue:
        job = await queue.add("n")
        handler = traced.stepping_handler
        async with Worker("emails", handler, run_in="process", port=server.port, middleware=[tracing]):
            seen = await job.result(60_000)
    (run,) = traces.named("process emails")
    trace_id, span_id = identity(run.get_span_context())
    assert [(span["name"], span["status"]) for span in seen] == [
        ("step load", "UNSET"),
        ("step ship", "ERROR"),
        ("inside", "UNSET"),
        ("step ship", "UNSET"),
    ]
    assert {span["trace"] for span in seen} == {f"{trace_id:032x}"}
    assert {span["parent"] for span in seen if span["name"] != "inside"} == {f"{span_id:016x}"}
    assert seen[2]["parent"] == seen[3]["id"]


async def test_handlers_in_processes_have_what_structlog_binds(server: Server) -> None:
    async with AsyncQueue("emails", port=server.port) as queue:
        job = await queue.add("n", headers={"x-tenant": "acme"})
        around = JobContext(bind={"tenant": "x-tenant"})
        handler = traced.logging_handler
        async with Worker("emails", handler, run_in="process", port=server.port, middleware=[around]):
            seen = await job.result(60_000)
    assert seen == {"queue": "emails", "job": "n", "job_id": job.id, "attempt": 1, "tenant": "acme"}

"""A handler for a process of its own, with an SDK that its module sets up: it tells what it would export."""

from __future__ import annotations

from itertools import count

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from bunqueue import ActiveJob, Retry

provider = TracerProvider()


def handler(job: ActiveJob) -> dict[str, str]:
    """The span that it opens, and the one around it."""
    with provider.get_tracer("test").start_as_current_span("inside") as span:
        around = span.parent  # type: ignore[attr-defined]  # of the SDK's
        return {
            "trace": f"{span.get_span_context().trace_id:032x}",
            "parent": "" if around is None else f"{around.span_id:016x}",
        }


def stepping_handler(job: ActiveJob) -> list[dict[str, str]]:
    """The spans of its steps, one of which is tried twice."""
    exporter = InMemorySpanExporter()
    own = TracerProvider()
    own.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(own)  # of this process
    tries = count()

    def shaky() -> str:
        if next(tries) == 0:
            raise ConnectionError("away")
        with trace.get_tracer("test").start_as_current_span("inside"):
            return "there"

    job.step("load", str, "rows")
    job.step("ship", shaky, retry=Retry(1, max_attempts=2))
    return [
        {
            "name": span.name,
            "trace": f"{span.context.trace_id:032x}",
            "id": f"{span.context.span_id:016x}",
            "parent": "" if span.parent is None else f"{span.parent.span_id:016x}",
            "status": span.status.status_code.name,
        }
        for span in exporter.get_finished_spans()
    ]


def logging_handler(job: ActiveJob) -> dict[str, object]:
    """What is bound for the lines of its log."""
    from structlog.contextvars import get_contextvars

    assert trace.get_current_span() is trace.INVALID_SPAN
    return get_contextvars()

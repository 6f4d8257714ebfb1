"""A handler for a process of its own, with an SDK that its module sets up: it tells what it would export."""

from __future__ import annotations

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from bunqueue import ActiveJob

provider = TracerProvider()


def handler(job: ActiveJob) -> dict[str, str]:
    """The span that it opens, and the one around it."""
    with provider.get_tracer("test").start_as_current_span("inside") as span:
        around = span.parent  # type: ignore[attr-defined]  # of the SDK's
        return {
            "trace": f"{span.get_span_context().trace_id:032x}",
            "parent": "" if around is None else f"{around.span_id:016x}",
        }


def logging_handler(job: ActiveJob) -> dict[str, object]:
    """What is bound for the lines of its log."""
    from structlog.contextvars import get_contextvars

    assert trace.get_current_span() is trace.INVALID_SPAN
    return get_contextvars()

"""A traced app with a workflow, in the test's process or in one of its own that is killed:

    python -m support.traced_workflow URL FOLDER

There it writes each span that has ended as a line of the file `spans`, and never ends the step "ship".
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from bunqueue import AsyncWorkflow, Bunqueue, Flow
from bunqueue.integrations.opentelemetry import OpenTelemetry


def app_of(
    provider: TracerProvider, hang: Path | None = None, **where: Any
) -> tuple[Bunqueue, AsyncWorkflow[[int], str]]:
    """The app; with `hang` its last step writes that file, and goes no further."""
    app = Bunqueue("orders", middleware=[OpenTelemetry(tracer_provider=provider)], **where)

    async def pay(number: int) -> str:
        return f"charge {number}"

    async def refund(charge: str) -> None:
        """Give it back."""

    async def ship(parcel: str) -> str:
        if hang is not None:
            await asyncio.to_thread(hang.touch)
            await asyncio.Event().wait()
        return f"shipped {parcel}"

    @app.job(queue="parts")
    async def pack(number: int) -> str:
        return f"parcel {number}"

    @app.workflow(max_attempts=3)
    async def order(flow: Flow, number: int) -> str:
        await flow.step("charge", pay, number, undo=refund)
        await flow.sleep("cooling-off", seconds=1.2)
        await flow.wait_for("approval", str)
        parcel = await flow.run(pack, number)
        return await flow.step("ship", ship, parcel)

    return app, order


def as_line(span: ReadableSpan) -> dict[str, Any]:
    """What tests look at."""
    context = span.get_span_context()
    assert context is not None
    return {
        "name": span.name,
        "trace": f"{context.trace_id:032x}",
        "id": f"{context.span_id:016x}",
        "parent": None if span.parent is None else f"{span.parent.span_id:016x}",
        "links": [f"{link.context.span_id:016x}" for link in span.links],
        "ms": ((span.end_time or 0) - (span.start_time or 0)) / 1_000_000,
        "failed": not span.status.is_ok and span.status.status_code.name == "ERROR",
        "attributes": dict(span.attributes or {}),
    }


class Lines(SpanExporter):
    """Writes spans to a file as they end."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with self._path.open("a") as file:
            file.writelines(f"{json.dumps(as_line(span))}\n" for span in spans)
        return SpanExportResult.SUCCESS


def main(url: str, folder: str) -> None:
    """Work until killed."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(Lines(Path(folder) / "spans")))
    app, _ = app_of(provider, Path(folder) / "shipping", url=url)
    app.run()


if __name__ == "__main__":
    main(*sys.argv[1:])

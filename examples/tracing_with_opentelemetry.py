"""One trace from the request that adds a job to the job's run, with links for its retries; and one trace
for all runs of a workflow.

pip install 'bunqueue[opentelemetry]' opentelemetry-sdk
python examples/tracing_with_opentelemetry.py
"""

import asyncio

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

from bunqueue import ActiveJob, AsyncQueue, Bunqueue, Flow, Worker
from bunqueue.integrations.opentelemetry import OpenTelemetry


def one_line(span: ReadableSpan) -> str:
    context = span.get_span_context()
    links = "".join(f", linked to {link.context.trace_id:032x}" for link in span.links)
    return f"{context.trace_id if context else 0:032x} {span.kind.name:8} {span.name}{links}\n"


provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(formatter=one_line)))
trace.set_tracer_provider(provider)
tracer = trace.get_tracer("example")


async def send(job: ActiveJob) -> str:
    with tracer.start_as_current_span("talk to the mail server"):
        if job.attempts == 0:
            raise ConnectionError("no route to the mail server")
        return f"sent to {job.data['to']}"


async def main() -> None:
    tracing = OpenTelemetry()
    async with AsyncQueue("emails", embedded=True, middleware=[tracing]) as emails:
        with tracer.start_as_current_span("POST /sign-up"):
            job = await emails.add("welcome", {"to": "ada@example.com"}, backoff=10)
        print("headers of the job:", (await job.job()).headers)
        done = asyncio.Event()
        worker = Worker(
            "emails",
            send,
            embedded=True,
            middleware=[tracing],
            on_completed=lambda job, result: done.set(),
        )
        async with worker:
            await done.wait()
        print(await job.result())
    await order()


async def order() -> None:
    app = Bunqueue("orders", embedded=True, middleware=[OpenTelemetry()])

    @app.workflow
    async def order(flow: Flow, number: int) -> str:
        await flow.step("charge", lambda: f"charge {number}")
        await flow.sleep("cooling-off", seconds=1.5)  # ends the run; the next one is in the same trace
        return await flow.wait_for("approval", str)

    async with app:
        with tracer.start_as_current_span("POST /orders"):
            handle = await order.start_async(7)
        await handle.signal("approval", "by ada")
        print(await handle.result(timeout=20_000))


asyncio.run(main())

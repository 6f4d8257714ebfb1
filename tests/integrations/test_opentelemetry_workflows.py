"""One trace over all runs of a workflow: on a server, over the death of a worker, and in a sandbox."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from support.server import ROOT, Server
from support.traced_workflow import app_of, as_line
from support.waiting import eventually
from support.wire import Wire

from bunqueue import BlockingFlow, Bunqueue, Flow, Retry, current_step
from bunqueue.integrations.opentelemetry import OpenTelemetry
from bunqueue.testing import Sandbox

PATIENCE = 60_000


class Traces:
    """The spans of this process, and those that another one has written."""

    def __init__(self, **options: Any) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(**options)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("test")
        self.written = Path()

    @property
    def spans(self) -> list[dict[str, Any]]:
        lines = self.written.read_text().splitlines() if self.written.is_file() else []
        return [*map(json.loads, lines), *map(as_line, self._exporter.get_finished_spans())]

    def named(self, name: str) -> list[dict[str, Any]]:
        return [span for span in self.spans if span["name"] == name]

    def counts(self) -> Counter[str]:
        return Counter(span["name"] for span in self.spans)

    def only(self, name: str) -> dict[str, Any]:
        (span,) = self.named(name)
        return span


@pytest.fixture
def traces() -> Traces:
    return Traces()


async def test_one_trace_over_all_runs_and_the_death_of_a_worker(
    server: Server, traces: Traces, tmp_path: Path
) -> None:
    traces.written = tmp_path / "spans"
    app, order = app_of(traces.provider, host=server.host, port=server.port)
    command = [
        sys.executable,
        "-m",
        "support.traced_workflow",
        f"bunqueue://{server.host}:{server.port}",
        str(tmp_path),
    ]
    worker = await asyncio.create_subprocess_exec(*command, cwd=ROOT / "tests")
    try:
        with traces.tracer.start_as_current_span("POST /orders"):
            handle = await order.start_async(7, id="order-7")
        await eventually(lambda: traces.named("sleep cooling-off"), "it goes on after its sleep")
        await handle.signal("approval", "ada")
        await eventually((tmp_path / "shipping").exists, "the last step runs")
    finally:
        worker.kill()
        await worker.wait()
    async with app:
        assert await handle.result(timeout=PATIENCE) == "shipped parcel 7"
    await app.close_async()
    counts = traces.counts()
    runs = counts.pop("process orders")
    assert runs >= 3, "to the sleep, to the signal, to the end; one died, and has no span"
    assert counts == {
        "POST /orders": 1, "add orders": 1, "step charge": 1, "sleep cooling-off": 1, "wait for approval": 1,
        "child pack": 1, "process parts": 1, "step ship": 1,
    }  # fmt: skip
    assert len({span["trace"] for span in traces.spans}) == 1
    added = traces.only("add orders")
    assert {span["parent"] for span in traces.named("process orders")} == {added["id"]}
    assert traces.only("step charge")["parent"] in {span["id"] for span in traces.named("process orders")}
    slept, waited, child = map(traces.only, ("sleep cooling-off", "wait for approval", "child pack"))
    assert {slept["parent"], waited["parent"], child["parent"]} == {added["id"]}
    assert 1_100 < slept["ms"] < 30_000
    assert waited["attributes"]["bunqueue.signal.name"] == "approval"
    assert (
        child["attributes"]["bunqueue.child.id"]
        == traces.only("process parts")["attributes"]["messaging.message.id"]
    )
    assert child["attributes"]["bunqueue.child.queue"] == "parts"
    assert not any(span["failed"] for span in traces.spans)


async def test_a_workflow_that_nobody_traced_when_it_began_is_one_trace_all_the_same(
    server: Server, traces: Traces
) -> None:
    app, order = app_of(traces.provider, host=server.host, port=server.port)
    async with await Wire.open(server.address) as wire, app:
        pushed = await wire.ok("PUSH", queue="orders", name="order", workflow=True, data={"number": 3})
        handle = order.handle(pushed["id"])
        await wire.ok("SendSignal", id=pushed["id"], name="approval", data="ada")
        await wire.ok("WaitJob", id=pushed["id"], timeout=PATIENCE)
        await eventually(lambda: traces.named("step ship"), "it is done")
    assert handle.id == pushed["id"]
    assert len(traces.named("process orders")) >= 2
    assert len({span["trace"] for span in traces.spans}) == 1
    assert len({span["parent"] for span in traces.named("process orders")}) == 1


class TestInASandbox:
    def app(self, traces: Traces, **options: Any) -> Bunqueue:
        tracing = OpenTelemetry(tracer_provider=traces.provider, **options)
        return Bunqueue("orders", middleware=[tracing])

    def test_undo_and_what_failed(self, bunqueue: Sandbox, traces: Traces) -> None:
        app = self.app(traces)

        @app.workflow(max_attempts=1)
        async def order(flow: Flow) -> None:
            await flow.step("charge", lambda: "c", undo=lambda charge: None)
            await flow.step("ship", fail, retry=Retry(10, max_attempts=2))

        def fail() -> None:
            raise ConnectionError("no carrier")

        order.start()
        bunqueue.drain(app, within=PATIENCE)
        counts = traces.counts()
        assert counts["step charge"] == counts["undo charge"] == 1
        first, second = traces.named("step ship")
        assert first["failed"] and second["failed"]  # noqa: PT018
        assert [span["attributes"]["bunqueue.step.attempt"] for span in (first, second)] == [1, 2]
        assert first["attributes"]["error.type"] == "ConnectionError"
        assert len({span["trace"] for span in traces.spans}) == 1
        undo = traces.only("undo charge")
        assert undo["attributes"]["bunqueue.step.kind"] == "undo"
        assert undo["parent"] in {span["id"] for span in traces.named("process orders")}

    def test_waits_that_end_by_time_by_failure_and_by_losing(self, bunqueue: Sandbox, traces: Traces) -> None:
        app = self.app(traces)

        @app.job(queue="parts", max_attempts=1)
        def pack() -> None:
            raise ValueError("no box")

        @app.workflow(max_attempts=1)
        async def order(flow: Flow) -> str:
            await flow.wait_for("nothing", timeout=5_000, default=None)
            who, _ = await flow.race(signal=flow.wait_for("never"), time=flow.sleep("patience", seconds=9))
            await flow.gather(flow.run(pack), return_exceptions=True)
            await flow.map(pack.job, [], return_exceptions=True)
            await flow.sleep("first", seconds=2)
            await flow.sleep("second", seconds=2)
            return str(who)

        handle = order.start()
        bunqueue.drain(app, within=PATIENCE)
        assert handle.result() == "time"
        statuses = {
            span["name"]: span["attributes"].get("bunqueue.step.status")
            for span in traces.spans
            if "bunqueue.step.kind" in span["attributes"]
        }
        assert statuses == {
            "wait for nothing": "timed-out", "wait for never": "cancelled", "sleep patience": "completed",
            "child pack": "failed", "sleep first": "completed", "sleep second": "completed",
        }  # fmt: skip
        waits = [span for span in traces.spans if span["name"] in statuses]
        assert sorted(span["name"] for span in waits) == sorted(statuses), "each is told once"
        assert traces.only("child pack")["failed"]
        assert traces.only("sleep patience")["ms"] == pytest.approx(9_000, abs=1_000)

    def test_children_of_a_map(self, bunqueue: Sandbox, traces: Traces) -> None:
        app = self.app(traces)

        @app.job(queue="parts")
        def pack(number: int) -> int:
            return number

        @app.workflow
        async def order(flow: Flow) -> int:
            return sum(await flow.map(pack, range(5)))

        handle = order.start()
        bunqueue.drain(app, within=PATIENCE)
        assert handle.result() == 10
        assert traces.counts()["process parts"] == 5
        children = [span for span in traces.spans if span["name"].startswith("child pack")]
        assert len(children) == 5
        ids = {span["attributes"]["messaging.message.id"] for span in traces.named("process parts")}
        assert {span["attributes"]["bunqueue.child.id"] for span in children} == ids
        assert len({span["trace"] for span in traces.spans}) == 1

    def test_a_trace_of_its_own_that_is_linked(self, bunqueue: Sandbox, traces: Traces) -> None:
        app = self.app(traces, first_attempt="link")

        @app.workflow
        async def order(flow: Flow) -> None:
            await flow.sleep("a", seconds=5)
            await flow.step("b", lambda: None)

        order.start()
        bunqueue.drain(app, within=PATIENCE)
        added = traces.only("add orders")
        runs = traces.named("process orders")
        assert len(runs) == 2
        assert {span["trace"] for span in runs} == {traces.only("step b")["trace"]} != {added["trace"]}
        assert all(span["links"] == [added["id"]] for span in runs)

    def test_a_sampler_that_wants_nothing_gets_nothing(self, bunqueue: Sandbox) -> None:
        traces = Traces(sampler=ParentBased(ALWAYS_OFF))
        app = self.app(traces)

        @app.workflow
        async def order(flow: Flow) -> None:
            await flow.sleep("a", seconds=5)

        app.queue.add("order", {}, workflow=True)
        bunqueue.drain(app, within=PATIENCE)
        assert traces.spans == []

    def test_steps_of_plain_functions_are_within_their_spans(self, bunqueue: Sandbox, traces: Traces) -> None:
        app = self.app(traces)

        def work() -> str:
            with traces.tracer.start_as_current_span("inside"):
                return current_step().name

        @app.workflow
        def order(flow: BlockingFlow) -> str:
            return flow.step("work", work)

        handle = order.start()
        bunqueue.drain(app, within=PATIENCE)
        assert handle.result() == "work"
        assert traces.only("inside")["parent"] == traces.only("step work")["id"]

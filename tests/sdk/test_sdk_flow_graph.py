"""Flows with names through the client, over a server and embedded."""

from __future__ import annotations

import time

import pytest
from support.waiting import eventually

from bunqueue import (
    ActiveJob,
    AsyncFlowGraph,
    AsyncFlowProducer,
    BatchInfo,
    CommandFailed,
    FlowJob,
    JobNotFound,
    NotFound,
    OptionError,
    ResultError,
    Worker,
    WrongState,
)
from bunqueue.client.connection.endpoint_options import EndpointOptions


def diamond(queue: str) -> dict[str, FlowJob[object]]:
    first: FlowJob[object] = FlowJob("fetch", queue=queue, max_attempts=1)
    return {
        "fetch": first,
        "left": FlowJob("half", {"n": 1}, queue=f"{queue}-2", max_attempts=1).after("fetch"),
        "right": FlowJob("half", {"n": 2}, queue=queue, max_attempts=1).after(first),
        "total": FlowJob("total", queue=f"{queue}-2", max_attempts=1).after("left", "right"),
    }


async def in_state(graph: AsyncFlowGraph, state: str) -> None:
    async def is_so() -> bool:
        return (await graph.info()).state == state

    await eventually(is_so, f"{graph} is {state}")


async def test_a_diamond_with_results_by_name_grows_and_is_retried_from_a_job(
    flows: AsyncFlowProducer, where: EndpointOptions, name: str
) -> None:
    async def run(job: ActiveJob) -> object:
        if job.name == "fetch":
            return 100
        if job.name == "half":
            assert await flows.result_of("fetch", int) == 100
            return job.data["n"]
        with pytest.raises(ResultError, match="the result of job left is not what was expected"):
            await flows.result_of("left", str)
        return sum((await flows.results()).values())

    graph = await flows.add_graph(diamond(name), flow_id=name)
    assert {key: handle.id for key, handle in graph.jobs.items()} == {
        key: f"{name}:{key}" for key in ("fetch", "left", "right", "total")
    }
    async with Worker(name, run, **where), Worker(f"{name}-2", run, **where):
        assert await graph.jobs["total"].result(timeout=60_000) == 3
        again = flows.graph(name)
        await again.add({"more": FlowJob("half", {"n": 5}, queue=name).after("fetch")})
        assert await again.jobs["more"].result(timeout=60_000) == 5
        assert sorted(await graph.retry("left")) == ["left", "total"]
        await in_state(graph, "completed")
    info = await graph.info()
    assert (info["total"].after, info["total"].pending) == (["left", "right"], [])
    assert info.counts == {"completed": 5}
    with pytest.raises(KeyError):
        info["nobody"]


async def test_errors_come_by_name_and_a_failed_flow_is_retried(
    flows: AsyncFlowProducer, where: EndpointOptions, name: str
) -> None:
    broken = True

    async def run(job: ActiveJob) -> object:
        if job.name == "half" and job.data["n"] == 2 and broken:
            raise ValueError("it is down")
        return await flows.errors()

    jobs = diamond(name)
    jobs["late"] = FlowJob("late", queue=name, on_dead_dependency="ignore").after("right")
    graph = await flows.add_graph(jobs)
    async with Worker(name, run, **where), Worker(f"{name}-2", run, **where):
        assert await graph.jobs["late"].result(timeout=60_000) == {"right": "ValueError: it is down"}
        await in_state(graph, "failed")
        info = await graph.info()
        assert info["total"].error == f"Child job {graph.id}:right failed: ValueError: it is down"
        broken = False
        assert sorted(await graph.retry()) == ["right", "total"]
        await in_state(graph, "completed")


async def test_a_cancelled_flow_can_be_retried(flows: AsyncFlowProducer, name: str) -> None:
    graph = await flows.add_graph(diamond(name), flow_id=name)
    with pytest.raises(WrongState, match="has not ended"):
        await graph.retry("fetch")
    assert await graph.cancel("enough") == 4
    info = await graph.info()
    assert (info.state, info.counts) == ("cancelled", {"cancelled": 4})
    assert sorted(await graph.retry()) == ["fetch", "left", "right", "total"]
    assert (await graph.info()).counts == {"waiting": 1, "waiting-children": 3}
    with pytest.raises(JobNotFound):
        await graph.retry("nobody")


@pytest.mark.parametrize("fails", [False, True])
async def test_a_batch_grows_from_within_and_runs_its_callbacks_at_the_end(
    flows: AsyncFlowProducer, where: EndpointOptions, name: str, fails: bool
) -> None:
    async def run(job: ActiveJob) -> object:
        if job.name == "first":
            await flows.batch(name).add_all([FlowJob("more", {"n": 3}, queue=name, max_attempts=1)])
        if job.name == "more" and fails:
            raise ValueError("broken")
        if job.name in ("all", "good"):
            return sorted((await flows.results()).values()), list((await flows.errors()).values())
        return job.data["n"]

    batch = await flows.add_batch(
        on_complete=FlowJob("all", queue=name), on_success=FlowJob("good", queue=f"{name}-2"), flow_id=name
    )
    async with Worker(name, run, **where), Worker(f"{name}-2", run, **where):
        async with batch:
            first, _ = await batch.add_all(
                FlowJob(word, {"n": n}, queue=f"{name}-2") for n, word in enumerate(("first", "second"), 1)
            )
            await first.result(timeout=60_000)
            info = (await batch.info()).batch
            assert info is not None
            assert (info.open, info.jobs, info.waiting) == (True, 3, ["on-complete", "on-success"])
            (line,) = (await flows.list_flows(prefix=name, queue=name)).flows
            assert (line.id, line.state, line.open) == (name, "running", True)
        done = await batch.jobs["on-complete"].result(timeout=60_000)
        assert done == ([[1, 2], ["ValueError: broken"]] if fails else [[1, 2, 3], []])
        await in_state(batch, "failed" if fails else "completed")
    ended = await batch.info()
    assert ended.batch == BatchInfo(open=False, jobs=3, completed=3 - fails, failed=int(fails))
    assert {node.name: node.gathers for node in ended.nodes if node.gathers} == {
        "on-complete": "complete",
        "on-success": "success",
    }
    assert await batch.close() == 3
    with pytest.raises(CommandFailed, match="was closed: it takes no more jobs") as caught:
        await batch.add_all([FlowJob("late", queue=name)])
    assert caught.value.server_code == "FLOW_CLOSED"
    assert await batch.add_all([]) == []


async def test_a_batch_is_closed_unless_an_exception_ends_it(flows: AsyncFlowProducer, name: str) -> None:
    with pytest.raises(KeyError):
        async with await flows.add_batch(on_success=FlowJob("good", queue=name), flow_id=name):
            raise KeyError
    await flows.batch(name).add_all([FlowJob("one", queue=name)])
    for wrong in ({}, {"on_success": FlowJob("x", queue=name).after("y")}):
        with pytest.raises(OptionError):
            await flows.add_batch(**wrong)
    graph = await flows.add_graph({"a": FlowJob("a", queue=name)})
    with pytest.raises(CommandFailed, match="has no job that gathers"):
        await flows.batch(graph.id).close()


async def test_flows_are_listed_page_by_page(flows: AsyncFlowProducer, name: str) -> None:
    for number in range(3):
        await flows.add_graph({"a": FlowJob("a", queue=name)}, flow_id=f"{name}-{number}")
    first = await flows.list_flows(prefix=f"{name}-", limit=2)
    rest = await flows.list_flows(prefix=f"{name}-", after=first.cursor)
    assert [line.id for page in (first, rest) for line in page.flows] == [f"{name}-{n}" for n in range(3)]
    assert rest.cursor is None
    assert abs(rest.flows[0].created_at.timestamp() - time.time()) < 60
    for wrong in ({"limit": 101}, {"prefix": "a:b"}, {"queue": "a b"}):
        with pytest.raises(OptionError):
            await flows.list_flows(**wrong)  # type: ignore[arg-type]


async def test_what_is_wrong_is_refused_and_changes_nothing(flows: AsyncFlowProducer, name: str) -> None:
    nobody = flows.graph(f"{name}-nobody")
    for wrong in (
        nobody.info(),
        nobody.cancel(),
        nobody.retry(),
        nobody.add({"a": FlowJob("a", queue=name)}),
    ):
        with pytest.raises(NotFound, match="Flow not found"):
            await wrong
    await flows.add_graph({"a": FlowJob("a", queue=name)}, flow_id=name)
    with pytest.raises(CommandFailed, match="is there already") as caught:
        await flows.add_graph({"b": FlowJob("b", queue=name)}, flow_id=name)
    assert caught.value.server_code == "FLOW_EXISTS"
    with pytest.raises(CommandFailed, match="flow dependency not found"):
        await flows.graph(name).add({"b": FlowJob("b", queue=name).after("zz")})
    one = FlowJob("one", queue=name)
    for jobs, words in (
        ({}, "give a map of names and jobs"),
        ({"a:b": one}, "the name of a flow job: 'a:b' is not allowed"),
        ({"a": one, "b": one}, "one job stands under two names"),
        ({"a": FlowJob("x", queue=name).after(one)}, "which has no name; give it one in the map"),
        ({"a": FlowJob("x", queue=name, job_id="mine")}, "job_id: not possible under a name"),
        ({"a": FlowJob("x", queue=name, unique_key="k")}, "unique_key: not possible in a flow"),
    ):
        with pytest.raises(OptionError, match=words):
            await flows.graph(name).add(jobs)
    with pytest.raises(OptionError, match="flow_id: 7 is not allowed"):
        flows.graph(7)  # type: ignore[arg-type]
    assert (await flows.graph(name).info()).counts == {"waiting": 1}

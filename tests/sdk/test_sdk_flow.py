"""Flows through the client: over a server and embedded, added, run, read, and with children that fail."""

from __future__ import annotations

from typing import Any

import pytest
from support.waiting import eventually

from bunqueue import (
    ActiveJob,
    AsyncFlowProducer,
    AsyncJobHandle,
    CommandFailed,
    FlowJob,
    FlowProducer,
    OptionError,
    PayloadError,
    ResultError,
    Worker,
)
from bunqueue.client.connection.endpoint_options import EndpointOptions


@pytest.fixture
def queues(name: str) -> tuple[str, str]:
    """Two queues of the test's own; on a server of two shards they are on both, or not."""
    return f"{name}-a", f"{name}-b"


async def ended(handle: AsyncJobHandle, state: str = "completed") -> None:
    async def is_so() -> bool:
        return await handle.state() == state

    await eventually(is_so, f"{handle} is {state}")


async def test_the_data_of_a_flow_may_be_bounded(flows: AsyncFlowProducer, queues: tuple[str, str]) -> None:
    large = FlowJob("n", {"text": "x" * 100}, queue=queues[0], size_limit=50)
    with pytest.raises(PayloadError, match=r"the data of flow job 'n' has 108 bytes, its size_limit is 50"):
        await flows.add(FlowJob("m", queue=queues[1]).after(large))


async def test_a_parent_runs_after_its_children_and_gets_their_results_in_order(
    flows: AsyncFlowProducer, where: EndpointOptions, queues: tuple[str, str]
) -> None:
    first, second = queues
    seen: list[tuple[str, object]] = []

    async def run(job: ActiveJob) -> Any:
        if job.name == "sum":
            values = await flows.children_values()
            seen.append((job.name, [key.split(":")[0] for key in values]))
            assert list(values.values()) == await flows.children_results(int, job.id)
            with pytest.raises(ResultError, match=r"the result of job .* is not what was expected"):
                await flows.children_results(str)
            return sum(await flows.children_results(int))
        seen.append((job.name, job.data["n"]))
        return job.data["n"]

    node = await flows.add(
        FlowJob("sum", queue=first).after(
            FlowJob("part", {"n": 1}, queue=second, delay=50),
            FlowJob("part", {"n": 20}, queue=first),
            FlowJob("part", {"n": 300}, queue=second),
        )
    )
    assert [child.job.queue for child in node.children] == [second, first, second]
    async with Worker(first, run, **where), Worker(second, run, **where):
        await ended(node.job)
    assert await node.job.result() == 321
    assert seen[-1] == ("sum", [second, first, second])
    assert sorted(seen[:-1], key=str) == [("part", 1), ("part", 20), ("part", 300)]


async def test_a_chain_hands_results_on(
    flows: AsyncFlowProducer, where: EndpointOptions, queues: tuple[str, str]
) -> None:
    async def run(job: ActiveJob) -> Any:
        values = list((await flows.children_values(job.id)).values())
        return [*(values[0] if values else []), job.name]

    steps = [FlowJob(name, queue=queue) for name, queue in zip("abcd", queues * 2, strict=True)]
    handles = await flows.add_chain(steps)
    assert [handle.queue for handle in handles] == [*queues, *queues]
    assert not any(step.children for step in steps)
    async with Worker(queues[0], run, **where), Worker(queues[1], run, **where):
        await ended(handles[-1])
    assert [await handle.result() for handle in handles] == [["a"], ["a", "b"], ["a", "b", "c"], [*"abcd"]]
    assert await flows.add_chain([]) == []


async def test_a_fan_in_keeps_the_children_of_the_final_job(
    flows: AsyncFlowProducer, queues: tuple[str, str]
) -> None:
    first, second = queues
    final = FlowJob("final", queue=first, children=[FlowJob("own", queue=second)])
    node = await flows.add_bulk_then([FlowJob("p", queue=second), FlowJob("q", queue=second)], final)
    tree = await flows.get_flow(node.job.id)
    assert tree is not None
    assert [child.job.name for child in tree.children] == ["own", "p", "q"]
    assert len(final.children) == 1


async def test_a_flow_can_be_read(flows: AsyncFlowProducer, queues: tuple[str, str]) -> None:
    first, second = queues
    leaf = FlowJob("leaf", {"x": 1}, queue=second, priority=3, delay=60_000)
    node = await flows.add(FlowJob("root", queue=first).after(FlowJob("middle", queue=second).after(leaf)))
    tree = await flows.get_flow(node.job.id)
    assert tree is not None
    names = [(each.job.name, each.job.queue) for each in tree.walk()]
    assert names == [("root", first), ("middle", second), ("leaf", second)]
    assert [each.job.id for each in tree.walk()] == [each.job.id for each in node.walk()]
    job = tree.children[0].children[0].job
    assert (job.data, job.priority, job.state) == ({"x": 1}, 3, "delayed")
    shallow = await flows.get_flow(node.job.id, depth=2)
    assert shallow is not None
    assert [each.job.name for each in shallow.walk()] == ["root", "middle"]
    assert await flows.get_flow("nobody") is None


async def test_several_flows_are_added_or_none(flows: AsyncFlowProducer, queues: tuple[str, str]) -> None:
    first, _ = queues
    nodes = await flows.add_bulk([FlowJob("a", queue=first), FlowJob("b", queue=first)])
    assert [await node.job.state() for node in nodes] == ["waiting", "waiting"]
    assert await flows.add_bulk([]) == []
    with pytest.raises(OptionError, match=r"flow job 'c' of queue .*priority"):
        await flows.add_bulk([FlowJob("a", queue=first), FlowJob("c", queue=first, priority=10**7)])
    assert len(nodes) == 2


@pytest.mark.parametrize(
    ("policy", "state", "errors"),
    [("fail", "failed", 0), ("ignore", "waiting", 1), ("continue", "waiting", 1), ("remove", "waiting", 0)],
)
async def test_what_a_failed_child_means(
    flows: AsyncFlowProducer,
    where: EndpointOptions,
    queues: tuple[str, str],
    policy: Any,
    state: str,
    errors: int,
) -> None:
    first, second = queues

    async def run(job: ActiveJob) -> None:
        raise ValueError("out of paper")

    child = FlowJob("child", queue=second, on_failure=policy, max_attempts=1)
    node = await flows.add(FlowJob("parent", queue=first, children=[child]))
    async with Worker(second, run, on_failed=lambda job, error: None, **where):
        await ended(node.children[0].job, "failed")
        await ended(node.job, state)
    told = await flows.failed_children(node.job.id)
    with pytest.raises(LookupError, match="no job's handler runs here"):
        await flows.failed_children()
    assert len(told) == errors
    assert await node.job.failed_children() == told  # which means the same
    assert all("out of paper" in text for text in told.values())
    if policy == "fail":
        assert "out of paper" in ((await node.job.job()).error or "")


async def test_a_failure_climbs_a_chain(
    flows: AsyncFlowProducer, where: EndpointOptions, queues: tuple[str, str]
) -> None:
    async def run(job: ActiveJob) -> None:
        raise ValueError

    handles = await flows.add_chain([FlowJob(name, queue=queues[0], max_attempts=1) for name in "abc"])
    async with Worker(queues[0], run, on_failed=lambda job, error: None, **where):
        await ended(handles[-1], "failed")
    assert {await handle.state() for handle in handles} == {"failed"}


async def test_long_chains(flows: AsyncFlowProducer, queues: tuple[str, str]) -> None:
    handles = await flows.add_chain([FlowJob("n", queue=queues[0]) for _ in range(3000)])
    assert len({handle.id for handle in handles}) == 3000


async def test_default_options_hold_unless_said_otherwise(
    where: EndpointOptions, queues: tuple[str, str]
) -> None:
    async with AsyncFlowProducer(default_job_options={"max_attempts": 9}, **where) as flows:
        node = await flows.add(
            FlowJob("a", queue=queues[0]).after(FlowJob("b", queue=queues[1], max_attempts=2))
        )
        assert (await node.job.job()).max_attempts == 9
        assert (await node.children[0].job.job()).max_attempts == 2


def test_the_blocking_twin(where: EndpointOptions, queues: tuple[str, str]) -> None:
    with FlowProducer(**where) as flows:
        node = flows.add(FlowJob("a", queue=queues[0]).after(FlowJob("b", queue=queues[1])))
        assert node.children[0].job.state() == "waiting"
        tree = flows.get_flow(node.job.id)
        assert tree is not None
        assert [each.job.name for each in tree.walk()] == ["a", "b"]
        assert flows.children_values(node.job.id) == {}


@pytest.mark.parametrize(
    ("flow", "problem"),
    [
        (lambda: FlowJob("", queue="q"), "name: a job cannot be called ''"),
        (lambda: FlowJob("a", queue="a queue"), "'a queue'; give 1 to 256"),
        (lambda: FlowJob("a", queue="q", on_failure="explode"), "on_failure: 'explode' is not .*ignore"),  # type: ignore[arg-type]
        (lambda: FlowJob("a", [1], queue="q"), r"flow job 'a' of queue 'q': data: \[1\] is not a map"),
        (lambda: FlowJob("a", queue="q", unique_key="k"), "unique_key: not possible in a flow"),
        (lambda: FlowJob("a", queue="q", max_attempts=0), "flow job 'a' of queue 'q': .*at least 1.*not 0"),
    ],
)
async def test_what_cannot_be_a_flow_is_told(flows: AsyncFlowProducer, flow: Any, problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        await flows.add(flow())


async def test_policies_may_be_said_later(flows: AsyncFlowProducer) -> None:
    job = FlowJob("a", queue="q").if_it_fails("remove")
    assert job.on_failure == "remove"
    with pytest.raises(OptionError, match="on_failure: 'explode' is not allowed"):
        job.if_it_fails("explode")  # type: ignore[arg-type]


async def test_more_of_what_cannot_be_a_flow(flows: AsyncFlowProducer) -> None:
    with pytest.raises(PayloadError, match="the data of flow job 'a' cannot be encoded"):
        await flows.add(FlowJob("a", {"x": object()}, queue="q"))
    with pytest.raises(OptionError, match=r"waits for 'a'; names mean something in add_graph only"):
        await flows.add(FlowJob("b", queue="q").after("a"))
    ring = FlowJob("ring", queue="q")
    with pytest.raises(CommandFailed, match="flow contains a dependency cycle"):
        await flows.add(ring.after(FlowJob("b", queue="q").after(ring)))
    with pytest.raises(OptionError, match="at most 10000 jobs"):
        await flows.add_bulk(FlowJob("a", queue="q") for _ in range(10_001))


async def test_one_job_may_be_a_child_of_several_and_have_an_id_of_its_own(
    flows: AsyncFlowProducer, where: EndpointOptions, queues: tuple[str, str]
) -> None:
    ran: list[str] = []

    async def run(job: ActiveJob) -> str:
        ran.append(job.name)
        return job.name

    own = f"{queues[0]}-fetch"
    fetch = FlowJob("fetch", queue=queues[1], job_id=own)
    left, right = (FlowJob(name, queue=queues[0]).after(fetch) for name in ("left", "right"))
    node = await flows.add(FlowJob("join", queue=queues[1]).after(left, right))
    first, second = node.children
    assert first.children[0] is second.children[0]
    assert first.children[0].job.id == own
    tree = await flows.get_flow(node.job.id)
    assert tree is not None
    assert [each.job.name for each in tree.walk()] == ["join", "left", "fetch", "right"]
    async with Worker(queues[0], run, **where), Worker(queues[1], run, **where):
        await ended(node.job)
    assert (sorted(ran), ran[0], ran[-1]) == (["fetch", "join", "left", "right"], "fetch", "join")


@pytest.mark.parametrize(("policy", "state"), [("fail", "failed"), ("ignore", "completed")])
async def test_the_failure_of_a_shared_child_reaches_all_its_parents(
    flows: AsyncFlowProducer, where: EndpointOptions, queues: tuple[str, str], policy: str, state: str
) -> None:
    async def run(job: ActiveJob) -> None:
        if job.name == "fetch":
            raise ValueError("broken")

    fetch = FlowJob("fetch", queue=queues[1], max_attempts=1).if_it_fails(policy)  # type: ignore[arg-type]
    nodes = await flows.add_bulk(FlowJob(name, queue=queues[0]).after(fetch) for name in ("left", "right"))
    async with Worker(queues[0], run, **where), Worker(queues[1], run, **where):
        for node in nodes:
            await ended(node.job, state)

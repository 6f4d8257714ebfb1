"""Flows with ids, over one shard and several: any graph, grown while it runs, cancelled and retried."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine.properties.test_shards_together import QUEUES, World

from shardproc.engine.peers import flow_checks

DIAMOND = {"fetch": [], "left": ["fetch"], "right": ["fetch"], "join": ["left", "right"]}


@pytest.fixture(params=[1, 2, 4])
def world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    world = World(tmp_path, request.param, 11, crash_rate=0.0)
    yield world
    world.close()


def queue_of(name: str) -> str:
    """A queue for each node, so that with several shards they are spread."""
    return QUEUES[sum(name.encode()) % len(QUEUES)]


def nodes(graph: dict[str, list[str]], **fields: Any) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "queue": queue_of(name),
            "after": after,
            "input": {"data": {"node": name}, "name": name, "maxAttempts": 1, **fields},
        }
        for name, after in graph.items()
    ]


def add(world: World, graph: dict[str, list[str]], *, grow: bool = False, **fields: Any) -> dict[str, Any]:
    reply = world.ask(cmd="AddFlow", flow="f", nodes=nodes(graph, **fields), grow=grow)
    world.settle()
    return dict(reply or {})


def view(world: World) -> dict[str, Any]:
    reply = world.ask(cmd="GetFlow", flow="f")
    assert reply is not None
    assert reply["ok"], reply
    return dict(reply["data"])


def states(world: World) -> dict[str, str]:
    return {node["name"]: node["state"] for node in view(world)["nodes"]}


def pull(world: World, name: str) -> dict[str, Any]:
    reply = world.ask(cmd="PULL", queue=queue_of(name))
    assert reply is not None
    assert reply["job"] is not None, f"{name} is not ready: {states(world)}"
    assert reply["job"]["id"] == f"f:{name}"
    return dict(reply["job"])


def finish(world: World, name: str, result: object = None) -> None:
    pull(world, name)
    assert world.ask(cmd="ACK", id=f"f:{name}", result=result) == {"ok": True}
    world.settle()


def fail(world: World, name: str, error: str = "broken") -> None:
    pull(world, name)
    assert world.ask(cmd="FAIL", id=f"f:{name}", error=error) == {"ok": True}
    world.settle()


def retry(world: World, **which: Any) -> set[str]:
    reply = world.ask(cmd="RetryFlow", flow="f", **which)
    assert reply is not None
    assert reply["ok"], reply
    world.settle()
    return set(reply["data"]["names"])


# -- any graph


def test_a_diamond_runs_in_order_and_its_last_job_reads_both_results(world: World) -> None:
    assert add(world, DIAMOND) == {"ok": True, "data": {"ids": ["f:fetch", "f:left", "f:right", "f:join"]}}
    waits = "waiting-children"
    assert states(world) == {"fetch": "waiting", "left": waits, "right": waits, "join": waits}
    finish(world, "fetch")
    assert states(world) == {"fetch": "completed", "left": "waiting", "right": "waiting", "join": waits}
    finish(world, "right", 2)
    (join,) = [node for node in view(world)["nodes"] if node["name"] == "join"]
    assert (join["after"], join["pending"]) == (["left", "right"], ["left"])
    finish(world, "left", 1)
    found = world.ask(cmd="GetChildrenValues", id="f:join")
    assert found is not None
    assert found["data"]["values"] == {
        f"{queue_of('left')}:f:left": 1,
        f"{queue_of('right')}:f:right": 2,
    }
    assert view(world)["state"] == "running"
    finish(world, "join")
    assert (view(world)["state"], view(world)["counts"]) == ("completed", {"completed": 4})


@pytest.mark.parametrize(
    ("graph", "text"),
    [
        ({"a": ["b"], "b": ["a"]}, "flow contains a dependency cycle"),
        ({"a": ["a"]}, "flow job cannot depend on itself: f:a"),
        ({"a": ["nobody"]}, "flow dependency not found: f:nobody"),
    ],
)
def test_what_is_no_graph_is_refused_and_nothing_is_added(
    world: World, graph: dict[str, list[str]], text: str
) -> None:
    refusal = add(world, graph)
    assert refusal == {"ok": False, "error": text}
    assert (world.ask(cmd="GetFlow", flow="f") or {})["error"] == "Flow not found: f"


def test_jobs_that_wait_for_too_many_others_together_are_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow_checks, "MAX_EDGES", 3)
    refusal = add(world, DIAMOND)
    text = "the jobs of the flow wait for 4 others together, at most 3 are allowed"
    assert refusal == {"ok": False, "error": text}
    monkeypatch.setattr(flow_checks, "MAX_EDGES", 4)
    assert add(world, DIAMOND)["ok"]


def test_two_nodes_of_one_name_and_own_ids_are_refused(world: World) -> None:
    twice = [*nodes({"a": []}), *nodes({"a": []})]
    refusal = world.ask(cmd="AddFlow", flow="f", nodes=twice) or {}
    assert refusal["error"] == "duplicate flow job id: f:a"
    refusal = add(world, {"a": []}, jobId="mine")
    assert not refusal["ok"]
    assert "job_id is not possible in a flow with an id" in refusal["error"]


# -- growing


def test_a_running_flow_takes_more_jobs_which_wait_for_what_is_there(world: World) -> None:
    add(world, {"a": [], "b": ["a"]})
    finish(world, "a", 7)
    assert add(world, {"c": ["a"], "d": ["b", "c"]}, grow=True)["ok"]
    assert states(world) == {"a": "completed", "b": "waiting", "c": "waiting", "d": "waiting-children"}
    found = world.ask(cmd="GetChildrenValues", id="f:c") or {}
    assert list(found["data"]["values"].values()) == [7]
    finish(world, "c")
    finish(world, "b")
    finish(world, "d")
    assert view(world)["state"] == "completed"


def test_what_is_there_is_not_added_again_and_what_is_not_there_does_not_grow(world: World) -> None:
    assert add(world, {"a": []}, grow=True)["error"] == "Flow not found: f"
    add(world, {"a": []})
    assert add(world, {"b": []})["error"] == "Flow f is there already"
    finish(world, "a")
    assert (
        add(world, {"a": []}, grow=True)["error"] == "Flow job f:a already exists"
    )  # though it has completed
    assert add(world, {"b": ["zz"]}, grow=True)["error"] == "flow dependency not found: f:zz"
    assert states(world) == {"a": "completed"}


# -- policies


@pytest.mark.parametrize(
    ("policy", "state"),
    [
        ("fail", "failed"),
        ("ignore", "waiting"),
        ("continue", "waiting"),
        ("remove", "waiting"),
        ("wait", "waiting-children"),
    ],
)
@pytest.mark.parametrize("later", [False, True])
def test_a_dead_dependency_is_answered_by_the_policy_of_the_one_that_waits(
    world: World, policy: str, state: str, later: bool
) -> None:
    add(world, {"a": []})
    if not later:
        add(world, {"b": ["a"]}, grow=True, onDeadDependency=policy)
    fail(world, "a")
    if later:  # the dependency is dead already
        add(world, {"b": ["a"]}, grow=True, onDeadDependency=policy)
    assert states(world)["b"] == state
    errors = world.ask(cmd="GetIgnoredChildrenFailures", id="f:b") or {}
    assert bool(errors["values"]) == (policy == "ignore")


def test_a_plain_job_has_a_policy_for_its_dependencies_too(world: World) -> None:
    world.ask(cmd="PUSH", queue="alpha", jobId="first", data=1, maxAttempts=1)
    world.ask(cmd="PUSH", queue="alpha", jobId="then", data=1, dependsOn=["first"], onDeadDependency="fail")
    world.ask(cmd="PULL", queue="alpha")
    world.ask(cmd="FAIL", id="first", error="broken")
    world.settle()
    found = world.ask(cmd="GetJob", id="then") or {}
    assert (found["job"]["state"], found["job"]["failedReason"]) == (
        "failed",
        "Child job first failed: broken",
    )


def test_the_failure_of_a_job_reaches_all_that_follow_it(world: World) -> None:
    add(world, DIAMOND, failParentOnFailure=True)
    fail(world, "fetch")
    assert states(world) == dict.fromkeys(DIAMOND, "failed")
    assert view(world)["state"] == "failed"
    errors = {node["name"]: node["error"] for node in view(world)["nodes"]}
    assert errors["left"] == "Child job f:fetch failed: broken"


def test_a_dependency_that_is_removed_does_not_leave_a_job_waiting(world: World) -> None:
    add(world, {"a": [], "b": ["a"]}, failParentOnFailure=True)
    world.ask(cmd="Cancel", id="f:a")
    world.settle()
    assert states(world) == {"b": "failed"}


# -- lists


def listed(world: World, **which: Any) -> list[dict[str, Any]]:
    """All pages of a list."""
    found, cursor = [], ""
    while cursor is not None:
        page = world.ask(cmd="ListFlows", after=cursor, **which)["data"]  # type: ignore[index]
        assert len(page["flows"]) <= which.get("limit", 20)
        found += page["flows"]
        cursor = page["cursor"]
    return found


def test_flows_are_listed_once_and_in_order_whatever_shards_they_are_on(world: World) -> None:
    names = [f"f-{number}" for number in range(7)] + ["f", "g"]
    for place, name in enumerate(names):
        made = nodes({f"n{number}": [] for number in range(place + 1)})
        assert world.ask(cmd="AddFlow", flow=name, nodes=made)
        world.settle()
    for number in range(30):  # others with ids of their own, some of which look like those of flows
        world.ask(cmd="PUSH", queue=QUEUES[0], jobId=f"f-{number}{':' if number % 2 else '.'}x")
    for limit in (1, 2, 20):
        found = listed(world, limit=limit)
        assert [flow["id"] for flow in found] == sorted(names, key=lambda name: f"{name}:")
        assert {flow["id"]: flow["counts"]["waiting"] for flow in found} == {
            name: place + 1 for place, name in enumerate(names)
        }
        assert {(flow["state"], flow["open"], flow["more"]) for flow in found} == {("running", None, False)}
    assert [flow["id"] for flow in listed(world, prefix="f-", limit=3)] == names[:7]
    assert listed(world, prefix="f-9") == []
    assert [flow["id"] for flow in listed(world, queue=queue_of("n0"), limit=4)] == sorted(
        names, key=lambda name: f"{name}:"
    )
    assert listed(world, queue="nobody") == []
    assert world.ask(cmd="ListFlows", limit=101)["ok"] is False  # type: ignore[index]


def test_a_batch_says_whether_it_is_open_and_how_far_it_is(world: World) -> None:
    assert add(world, DIAMOND)["ok"]
    assert view(world)["batch"] is None
    both = [
        {**node, "gathers": node["name"].removeprefix("on-")}
        for node in nodes({"on-complete": [], "on-success": []})
    ]
    world.ask(cmd="AddFlow", flow="g", nodes=both)
    world.ask(cmd="AddFlow", flow="g", nodes=nodes({"a": [], "b": [], "c": []}), grow=True)
    world.settle()

    def batch() -> dict[str, Any]:
        return dict(world.ask(cmd="GetFlow", flow="g")["data"]["batch"])  # type: ignore[index]

    nothing_yet = {"jobs": 3, "completed": 0, "failed": 0, "waiting": ["on-complete", "on-success"]}
    assert batch() == {"open": True, **nothing_yet}
    assert [(flow["id"], flow["open"]) for flow in listed(world)] == [("f", None), ("g", True)]
    world.ask(cmd="CloseFlow", flow="g")
    assert batch() == {"open": False, **nothing_yet}
    world.ask(cmd="CancelFlow", flow="f")
    for name, cmd in (("a", "ACK"), ("b", "FAIL"), ("c", "ACK")):
        assert world.ask(cmd="PULL", queue=queue_of(name))["job"]["id"] == f"g:{name}"  # type: ignore[index]
        world.ask(cmd=cmd, id=f"g:{name}")
        world.settle()
    assert batch() == {"open": False, "jobs": 3, "completed": 2, "failed": 1, "waiting": ["on-complete"]}
    gathers = [node["gathers"] for node in world.ask(cmd="GetFlow", flow="g")["data"]["nodes"]]  # type: ignore[index]
    assert sorted(map(str, gathers)) == ["None", "None", "None", "complete", "success"]


# -- cancelling and retrying


def test_a_cancelled_flow_keeps_its_jobs_and_can_be_retried(world: World) -> None:
    add(world, DIAMOND, failParentOnFailure=True)
    finish(world, "fetch")
    pull(world, "left")
    reply = world.ask(cmd="CancelFlow", flow="f", reason="stop", grace=0)
    world.settle()
    assert reply == {"ok": True, "data": {"stopped": 3, "running": 0}}
    assert states(world) == {
        "fetch": "completed",
        "left": "cancelled",
        "right": "cancelled",
        "join": "cancelled",
    }
    assert view(world)["state"] == "cancelled"
    assert retry(world) == {"left", "right", "join"}
    finish(world, "left")
    finish(world, "right")
    finish(world, "join")
    assert view(world)["state"] == "completed"


def test_a_worker_has_time_to_stop_when_the_flow_is_cancelled(world: World) -> None:
    add(world, {"a": [], "b": ["a"]})
    pull(world, "a")
    reply = world.ask(cmd="CancelFlow", flow="f")
    assert reply == {"ok": True, "data": {"stopped": 1, "running": 1}}
    assert states(world)["a"] == "active"
    world.ask(cmd="FAIL", id="f:a", error="I stop")
    world.settle()
    assert states(world) == {"a": "cancelled", "b": "cancelled"}


def test_a_retried_flow_waits_again_and_runs_what_had_failed_with_its_dependencies(world: World) -> None:
    add(world, DIAMOND, failParentOnFailure=True)
    finish(world, "fetch")
    finish(world, "left")
    fail(world, "right")
    assert states(world)["join"] == "failed"
    assert retry(world) == {"right", "join"}
    assert (states(world)["right"], states(world)["join"]) == ("waiting", "waiting-children")
    finish(world, "right")
    finish(world, "join")
    assert view(world)["state"] == "completed"


def test_a_flow_is_retried_from_a_node_on(world: World) -> None:
    add(world, DIAMOND)
    assert (world.ask(cmd="RetryFlow", flow="f", node="fetch") or {})[
        "error"
    ] == "Flow job f:fetch is waiting: it has not ended"
    assert (world.ask(cmd="RetryFlow", flow="f", node="nobody") or {})["error"] == "Flow f has no job nobody"
    for name in DIAMOND:
        finish(world, name)
    assert retry(world, node="left") == {"left", "join"}
    assert (states(world)["left"], states(world)["join"]) == ("waiting", "waiting-children")
    finish(world, "left")
    finish(world, "join")
    assert view(world)["state"] == "completed"


def test_what_had_not_begun_waits_again_for_a_job_that_runs_again(world: World) -> None:
    add(world, {"a": [], "b": ["a"], "c": ["b"]})
    finish(world, "a")
    assert states(world)["b"] == "waiting"
    assert retry(world, node="a") == {"a"}
    assert states(world) == {"a": "waiting", "b": "waiting-children", "c": "waiting-children"}
    finish(world, "a")
    finish(world, "b")
    finish(world, "c")
    assert view(world)["state"] == "completed"


# -- batches: what gathers all others


def callbacks(**more: Any) -> list[dict[str, Any]]:
    return [
        {"name": f"on-{kind}", "queue": queue_of(kind), "gathers": kind, "input": {"data": {}, **more}}
        for kind in ("complete", "success")
    ]


def open_batch(world: World) -> None:
    assert (world.ask(cmd="AddFlow", flow="f", nodes=callbacks()) or {})["ok"]
    world.settle()


def close(world: World) -> dict[str, Any]:
    reply = world.ask(cmd="CloseFlow", flow="f") or {}
    world.settle()
    return dict(reply)


WAITS = "waiting-children"


def test_an_open_batch_grows_and_its_callbacks_run_when_it_is_closed_and_all_have_ended(world: World) -> None:
    open_batch(world)
    add(world, {"a": []}, grow=True)
    finish(world, "a", 1)
    assert states(world) == {"a": "completed", "on-complete": WAITS, "on-success": WAITS}
    add(world, {"b": [], "c": ["b"]}, grow=True)
    assert close(world) == {"ok": True, "data": {"ids": ["f:a", "f:b", "f:c"]}}
    assert add(world, {"d": []}, grow=True)["error"] == "Flow f was closed: it takes no more jobs"
    assert close(world)["ok"]  # again: it changes nothing
    finish(world, "b", 2)
    assert states(world)["on-complete"] == WAITS
    finish(world, "c", 3)
    assert (states(world)["on-complete"], states(world)["on-success"]) == ("waiting", "waiting")
    found = world.ask(cmd="GetChildrenValues", id="f:on-success") or {}
    assert sorted(found["data"]["values"].values()) == [1, 2, 3]


def test_a_failure_lets_one_callback_run_and_the_other_fail(world: World) -> None:
    open_batch(world)
    add(world, {"a": [], "b": []}, grow=True)
    close(world)
    fail(world, "a")
    assert (states(world)["on-complete"], states(world)["on-success"]) == (WAITS, "failed")
    finish(world, "b")
    assert states(world)["on-complete"] == "waiting"
    errors = world.ask(cmd="GetIgnoredChildrenFailures", id="f:on-complete") or {}
    assert list(errors["values"].values()) == ["broken"]
    assert retry(world) == {"a", "on-success"}
    finish(world, "a")
    assert states(world)["on-success"] == "waiting"


def test_an_empty_batch_runs_its_callbacks_when_it_is_closed(world: World) -> None:
    open_batch(world)
    assert close(world) == {"ok": True, "data": {"ids": []}}
    assert states(world) == {"on-complete": "waiting", "on-success": "waiting"}


def test_an_open_batch_that_is_cancelled_is_open_again_when_it_is_retried(world: World) -> None:
    open_batch(world)
    world.ask(cmd="CancelFlow", flow="f")
    retry(world)
    assert states(world) == {"on-complete": WAITS, "on-success": WAITS}
    assert add(world, {"a": []}, grow=True)["ok"]
    close(world)
    finish(world, "a")
    assert states(world)["on-complete"] == "waiting"


def test_an_open_batch_is_so_after_a_restart(world: World) -> None:
    open_batch(world)
    for number in range(world.count):
        world.crash(number)
    world.settle()
    assert states(world) == {"on-complete": WAITS, "on-success": WAITS}
    assert add(world, {"a": []}, grow=True)["ok"]
    close(world)
    for number in range(world.count):
        world.crash(number)
    world.settle()
    finish(world, "a")
    assert states(world)["on-complete"] == "waiting"


def test_what_gathers_has_its_name_and_only_a_batch_is_closed(world: World) -> None:
    add(world, {"a": []})
    assert close(world)["error"] == "Flow f has no job that gathers"
    wrong = [{**callbacks()[0], "name": "other"}]
    assert "is called on-complete" in (world.ask(cmd="AddFlow", flow="g", nodes=wrong) or {})["error"]


def test_commands_about_no_flow_say_so(world: World) -> None:
    for command in ("GetFlow", "CancelFlow", "RetryFlow"):
        assert (world.ask(cmd=command, flow="nobody") or {})["error"] == "Flow not found: nobody"
        refused = (world.ask(cmd=command, flow="a:b") or {})["error"]
        assert refused == "flow must match ^([a-z0-9][a-z0-9-]{0,31}/)?[A-Za-z0-9_.-]{1,200}$"


def test_a_flow_is_not_mistaken_for_another_whose_id_begins_alike(world: World) -> None:
    add(world, {"a": []})
    world.ask(cmd="AddFlow", flow="f-2", nodes=nodes({"a": []}))
    world.ask(cmd="PUSH", queue="alpha", jobId="f:by-hand", data=1)
    assert states(world) == {"a": "waiting"}


@pytest.mark.parametrize("crash_rate", [0.0, 0.02])
@pytest.mark.parametrize("shards", [1, 2, 4])
def test_what_comes_while_a_batch_is_closed_is_waited_for_or_refused(
    tmp_path: Path, shards: int, crash_rate: float
) -> None:
    refused = accepted = 0
    for seed in range(15):
        folder = tmp_path / str(seed)
        folder.mkdir()
        world = World(folder, shards, seed, crash_rate=0.0)
        open_batch(world)
        world.crash_rate = crash_rate
        asked: dict[str, str] = {}
        closing = world.rng.randrange(8)
        for number in range(8):
            at = world.rng.randrange(shards)
            asked[f"n{number}"] = world.send(
                at, cmd="AddFlow", flow="f", nodes=nodes({f"n{number}": []}), grow=True
            )
            if number == closing:
                world.send(world.rng.randrange(shards), cmd="CloseFlow", flow="f")
            for _ in range(world.rng.randrange(16 * shards)):
                world.turn()
        world.calm()
        assert close(world)["ok"], "again, as its answer may have been lost"
        there = states(world)
        waited_for = set((world.ask(cmd="GetJob", id="f:on-complete") or {})["job"]["dependsOn"])
        assert waited_for == {f"f:{name}" for name in there if name.startswith("n")}, f"seed {seed}"
        for name, key in asked.items():
            reply = world.replies.get(key)
            if reply is not None and not reply["ok"]:
                assert "takes no more jobs" in reply["error"]
                assert name not in there, f"seed {seed}: {name}"
                refused += 1
            elif reply is not None:
                assert name in there, f"seed {seed}: {name}"
                accepted += 1
        world.close()
    assert refused > 10
    assert accepted > 10

"""Jobs that a workflow starts: once, on any shard, and ended with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engine.workflow_world import ALPHA, BETA, DAY, GAMMA, Workflows

from bunqueue.model.ids import slot_of_queue


def begin(flows: Workflows, job_id: str = "w", queue: str = ALPHA, **options: Any) -> None:
    flows.start(job_id, queue, **options)
    flows.run(job_id, queue)


def test_the_result_of_a_child_is_its_steps(flows: Workflows) -> None:
    begin(flows)
    child = flows.child("w", "pack", name="pack", data=None, priority=3)
    flows.suspend("w", ["pack"])
    assert flows.state("w") == "waiting-children"
    job = flows.run(child, BETA)
    assert (job["name"], job["parentId"], job["priority"]) == ("pack", "w", 3)
    flows.ack(child, {"parcel": 1})
    flows.run("w")
    answer = flows.record(
        "w", "pack", kind="child", status="waiting", child={"queue": BETA, "input": {"data": {}}}
    )
    assert (answer["status"], answer["result"], answer["child"]) == ("completed", {"parcel": 1}, child)


def test_a_child_is_started_once(flows: Workflows) -> None:
    begin(flows, maxAttempts=9, backoff=0)
    children = set()
    for _ in range(3):
        children.add(flows.child("w", "pack"))
        flows.fail("w")
        flows.run("w")
    (child,) = children
    assert flows.ok("GetJobCounts", queue=BETA)["counts"]["waiting"] == 1
    flows.run(child, BETA)
    flows.ack(child)
    assert flows.child("w", "pack") == child
    assert flows.pull(BETA) is None


def test_a_child_may_end_before_others_have_begun(tmp_path: Path) -> None:
    """The shard of one is slow, while another one has started its child and said how that has ended."""
    flows = Workflows(tmp_path, 4, crashes=False)
    world = flows.world
    begin(flows)
    home, quick = slot_of_queue(ALPHA) & 3, slot_of_queue(BETA) & 3
    records = [
        {
            **flows.held("w"),
            "name": queue,
            "kind": "child",
            "status": "waiting",
            "child": {"queue": queue, "input": {}},
        }
        for queue in (BETA, GAMMA)
    ]
    world.send(cmd="RecordSteps", queue=ALPHA, steps=records)
    world.deliver(home, quick)
    pulled = world.replies[world.send(cmd="PULL", queue=BETA, owner="w", lockTtl=DAY)]
    world.send(cmd="ACK", id=pulled["job"]["id"], token=pulled["token"], result=7)
    while world.wires[quick, home]:
        world.deliver(quick, home)
    assert len(world.wires[home, slot_of_queue(GAMMA) & 3]) == 1
    world.settle()
    found = flows.step("w", BETA)
    assert (found["status"], found["result"]) == ("completed", 7)
    assert flows.step("w", GAMMA)["status"] == "waiting"
    world.close()


@pytest.mark.parametrize("removed", [False, True])
def test_a_child_that_has_gone_is_not_started_again(flows: Workflows, removed: bool) -> None:
    begin(flows)
    child = flows.child("w", "pack", removeOnComplete=True)
    flows.run(child, BETA)
    if removed:
        flows.ok("MoveToWait", id=child, token=flows.tokens[child])
        flows.ok("RemoveJob", id=child)
    else:
        flows.ack(child, 7)
    found = flows.step("w", "pack")
    if removed:
        assert (found["status"], found["error"]) == ("failed", "it was removed")
    else:
        assert (found["status"], found["result"]) == ("completed", 7)
    assert flows.pull(BETA) is None


def test_a_child_that_fails(flows: Workflows) -> None:
    begin(flows)
    child = flows.child("w", "pack", maxAttempts=2, backoff=0)
    flows.suspend("w", ["pack"])
    flows.run(child, BETA)
    flows.fail(child, "no box")
    assert flows.state("w") == "waiting-children", "it is tried again"
    flows.run(child, BETA)
    flows.fail(child, "no box")
    assert flows.state("w") == "waiting"
    found = flows.step("w", "pack")
    assert (found["status"], found["error"]) == ("failed", "no box")


def test_a_run_waits_for_all_of_a_group_or_a_failure(flows: Workflows) -> None:
    begin(flows)
    children = [flows.child("w", f"pack {n}", queue) for n, queue in enumerate((ALPHA, BETA, GAMMA, BETA))]
    flows.suspend("w", [f"pack {n}" for n in range(3)], ["pack 3"])
    for child, queue in zip(children[:2], (ALPHA, BETA), strict=True):
        flows.run(child, queue)
        flows.ack(child)
        assert flows.state("w") == "waiting-children"
    flows.run(children[2], GAMMA)
    flows.fail(children[2], unrecoverable=True)
    assert flows.state("w") == "waiting"
    flows.run("w")
    flows.suspend("w", ["pack 3"])
    flows.run(children[3], BETA)
    flows.ack(children[3])
    assert flows.state("w") == "waiting"


def test_children_and_signals_together(flows: Workflows) -> None:
    begin(flows)
    flows.child("w", "pack")
    flows.wait("w", "stop?", "stop")
    flows.suspend("w", ["pack"], ["stop?"])
    assert flows.state("w") == "waiting-signal"
    assert len(flows.ok("WhyWaiting", id="w")["data"]["reasons"]) == 2
    flows.signal("w", "stop")
    assert flows.state("w") == "waiting"


@pytest.mark.parametrize(
    "how", ["complete", "fail", "cancel", "cancel waiting", "remove", "retry", "continue"]
)
def test_children_end_with_their_parent(flows: Workflows, how: str) -> None:
    begin(flows, maxAttempts=1)
    flows.done("w", "a")
    children = [flows.child("w", f"pack {queue}", queue) for queue in (BETA, GAMMA)]
    flows.run(children[0], BETA)
    if how in ("cancel waiting", "remove", "retry"):
        flows.suspend("w", [f"pack {BETA}"])
    if how == "complete":
        flows.ack("w")
    elif how == "fail":
        flows.fail("w")
    elif how.startswith("cancel"):
        flows.ok("Cancel", id="w", running=True, grace=0)
    elif how == "remove":
        flows.ok("RemoveJob", id="w")
    elif how == "retry":
        flows.ok("RetryWorkflow", id="w", step=f"pack {BETA}")
    else:
        flows.ok("ContinueAsNew", queue=ALPHA, **flows.held("w"))
    assert flows.job(children[0])["cancelling"] is True
    assert flows.ask("GetJob", id=children[1])["ok"] is False, "nobody had begun it"
    flows.fail(children[0])
    assert flows.state(children[0]) == "cancelled"
    assert flows.stored("select count(*) from records where kind = 'child_cancel' having count(*) > 0") == []


def test_a_child_that_was_cancelled_on_request(flows: Workflows) -> None:
    begin(flows)
    child = flows.child("w", "pack")
    flows.suspend("w", ["pack"])
    flows.ok("Cancel", id=child, reason="no paper")
    assert flows.state("w") == "waiting"
    found = flows.step("w", "pack")
    assert (found["status"], found["error"]) == ("failed", "Cancelled: no paper")


def test_the_loser_of_a_race_is_cancelled(flows: Workflows) -> None:
    begin(flows)
    child = flows.child("w", "pack")
    flows.wait("w", "ok?", "approval")
    assert flows.record("w", "pack", kind="child", status="cancelled", child=ORDER) == {}
    flows.record("w", "ok?", kind="signal", status="cancelled", signal="approval")
    assert flows.steps("w") == {"pack": "cancelled", "ok?": "cancelled"}
    assert flows.ask("GetJob", id=child)["ok"] is False
    assert flows.signal("w", "approval") is False


ORDER = {"queue": BETA, "input": {"data": {}}}


def test_a_detached_child_outlives_its_parent(flows: Workflows) -> None:
    begin(flows)
    child = flows.child("w", "later", detached=True)
    assert flows.steps("w") == {"later": "completed"}
    flows.ack("w")
    flows.run(child, BETA)
    flows.ack(child)


def test_a_child_with_an_id_of_its_own(flows: Workflows) -> None:
    begin(flows)
    assert flows.child("w", "pack", jobId="pack-7") == "pack-7"
    flows.run("pack-7", BETA)
    flows.ack("pack-7", 1)
    assert flows.step("w", "pack")["result"] == 1
    flows.ok("PUSH", queue=GAMMA, data={}, jobId="taken")
    flows.child("w", "other", jobId="taken")
    assert flows.step("w", "other")["error"] == "another job has the id taken"
    flows.ack("w")
    assert flows.state("taken") == "waiting", "it was never its child"


def test_an_id_may_be_used_by_the_child_of_another_workflow(flows: Workflows) -> None:
    for job_id in ("v", "w"):
        begin(flows, job_id)
        flows.child(job_id, "pack", jobId="pack")
        flows.run("pack", BETA)
        flows.ack("pack", job_id)
        assert flows.step(job_id, "pack")["result"] == job_id


def test_a_child_may_be_a_workflow_with_children(flows: Workflows) -> None:
    begin(flows)
    child = flows.child("w", "sub", workflow=True)
    flows.suspend("w", ["sub"])
    flows.run(child, BETA)
    grandchild = flows.child(child, "pack", GAMMA)
    flows.suspend(child, ["pack"])
    flows.ok("Cancel", id="w")
    assert [flows.state(each) for each in ("w", child)] == ["cancelled"] * 2
    assert flows.ask("GetJob", id=grandchild)["ok"] is False


@pytest.mark.parametrize(
    ("order", "code", "field"),
    [
        ({"queue": "not/a queue", "input": {"data": {}}}, "INVALID_QUEUE", "child.queue"),
        ({"queue": BETA, "input": {"data": "x" * 11_000_000}}, "DATA_TOO_LARGE", "child.data"),
        ({"queue": BETA, "input": {"priority": 2_000_000}}, "INVALID_PRIORITY", "child.priority"),
        ({"queue": BETA, "input": {"jobId": "w"}}, "INVALID_FIELD", "child.input.jobId"),
    ],
)
def test_children_that_are_refused(flows: Workflows, order: dict[str, Any], code: str, field: str) -> None:
    begin(flows)
    refusal = flows.record("w", "pack", kind="child", status="waiting", child=order)["refused"]
    assert refusal["code"] == code, refusal
    assert flows.steps("w") == {}


def test_a_cancelled_run_starts_no_children(flows: Workflows) -> None:
    begin(flows)
    flows.ok("Cancel", id="w", running=True, grace=10_000)
    refusal = flows.record("w", "pack", kind="child", status="waiting", child=ORDER)["refused"]
    assert refusal["code"] == "JOB_CANCELLED"
    flows.done("w", "charge", 1)
    assert flows.steps("w") == {"charge": "completed"}, "what was done is known"


def test_many_children(flows: Workflows) -> None:
    begin(flows)
    names = [f"pack {n}" for n in range(60)]
    steps = [
        {
            **flows.held("w"),
            "name": name,
            "kind": "child",
            "status": "waiting",
            "child": {"queue": (ALPHA, BETA, GAMMA)[n % 3], "input": {"data": n}},
        }
        for n, name in enumerate(names)
    ]
    flows.ok("RecordSteps", queue=ALPHA, steps=steps)
    flows.suspend("w", names)
    crashes, flows.crashes = flows.crashes, False
    for queue in (BETA, GAMMA, ALPHA):
        reply = flows.ok("PULLB", queue=queue, count=100, owner="w")
        assert flows.state("w") == "waiting-children"
        for job, token in zip(reply["jobs"], reply["tokens"], strict=True):
            flows.ok("ACK", id=job["id"], token=token, result=job["data"])
    flows.crashes = crashes
    assert flows.state("w") == "waiting"
    assert [step["result"] for step in flows.view("w")["steps"]] == list(range(60))


def test_two_children_with_one_unique_key(flows: Workflows) -> None:
    """The second stands for the job that is there already, and does not cancel it."""
    begin(flows, "v")
    begin(flows, "w")
    first = flows.child("v", "pack", uniqueKey="k")
    flows.child("w", "pack", uniqueKey="k")
    assert flows.step("w", "pack")["child"] == first
    flows.ack("w")
    flows.run(first, BETA)
    flows.ack(first, 5)
    assert flows.step("v", "pack")["result"] == 5


SAME: list[tuple[str, dict[str, Any]]] = [("own id", {"jobId": "pack-7"}), ("unique key", {"uniqueKey": "k"})]


@pytest.mark.parametrize(("what", "fields"), SAME, ids=[what for what, _ in SAME])
@pytest.mark.parametrize("failing", [False, True])
def test_every_wait_for_a_child_ends_with_it(
    flows: Workflows, what: str, fields: dict[str, Any], failing: bool
) -> None:
    begin(flows)
    names = ["one", "two", "three"]
    (child,) = {flows.child("w", name, **fields) for name in names[:2]} if what == "own id" else [""]
    if what == "unique key":
        for name in names[:2]:
            flows.child("w", name, **fields)
        (child,) = {flows.step("w", name)["child"] for name in names[:2]}
    flows.suspend("w", names[:2])
    flows.run(child, BETA)
    if failing:
        flows.fail(child, "no box", unrecoverable=True)
    else:
        flows.ack(child, 4)
    assert flows.state("w") == "waiting"
    flows.run("w")
    flows.child("w", "three", **fields)
    found = [flows.step("w", name) for name in (names if what == "own id" else names[:2])]
    outcome = ("failed", None, "no box") if failing else ("completed", 4, None)
    assert [(step["status"], step.get("result"), step["error"]) for step in found] == [outcome] * len(found)


def test_a_child_is_cancelled_when_no_step_waits_for_it_any_more(flows: Workflows) -> None:
    begin(flows)
    for name in ("one", "two"):
        flows.child("w", name, jobId="pack-7")
    flows.record("w", "one", kind="child", status="cancelled", child=ORDER)
    assert flows.state("pack-7") == "waiting", "the other step still waits for it"
    flows.record("w", "two", kind="child", status="cancelled", child=ORDER)
    assert flows.steps("w") == {"one": "cancelled", "two": "cancelled"}
    assert flows.ask("GetJob", id="pack-7")["ok"] is False


@pytest.mark.parametrize("first", [True, False])
def test_a_child_that_was_started_to_outlive_its_parent_does_so(flows: Workflows, first: bool) -> None:
    """Whether the step that waits for it, too, comes before or after that which does not."""
    begin(flows)
    for name, detached in (("start", True), ("run", False))[:: 1 if first else -1]:
        flows.child("w", name, jobId="pack-7", detached=detached)
    assert (flows.step("w", "start")["status"], flows.step("w", "run")["status"]) == ("completed", "waiting")
    flows.ack("w")
    flows.run("pack-7", BETA)
    flows.ack("pack-7")

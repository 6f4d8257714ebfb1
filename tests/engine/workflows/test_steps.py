"""Steps: recorded once under the lock, found again, refused when they contradict what is stored."""

from __future__ import annotations

from typing import Any

import pytest
from engine.workflow_world import ALPHA, HOUR, Workflows

from bunqueue.model import workflow as model

SLEEP = {"kind": "sleep", "status": "waiting", "delay": 1}


def test_a_step_is_stored_with_its_result(flows: Workflows) -> None:
    flows.start("w")
    assert flows.run("w")["workflow"].get("steps", False) is flows.crashes, "after a crash it is not known"
    flows.done("w", "charge", {"paid": 5}, took=7, arguments="a1")
    flows.done("w", "ship")
    view = flows.view("w")
    assert [step["number"] for step in view["steps"]] == [1, 2]
    charge = view["steps"][0]
    assert (charge["status"], charge["result"], charge["attempts"]) == ("completed", {"paid": 5}, 1)
    assert charge["endedAt"] - charge["startedAt"] == 7
    assert (charge["worker"], charge["arguments"]) == ("w", "a1")
    flows.ack("w", "receipt")
    assert flows.steps("w") == {"charge": "completed", "ship": "completed"}
    assert flows.state("w") == "completed"


def test_the_next_run_finds_the_steps(flows: Workflows) -> None:
    flows.start("w", maxAttempts=3, backoff=0)
    flows.run("w")
    flows.done("w", "a", 1)
    flows.fail("w")
    assert flows.run("w")["workflow"]["steps"] is True
    page = flows.ok("GetSteps", queue=ALPHA, id="w")["data"]
    assert [(step["name"], step["result"]) for step in page["steps"]] == [("a", 1)]
    assert page["next"] is None


def test_a_finished_step_is_never_changed(flows: Workflows) -> None:
    flows.start("w")
    flows.run("w")
    flows.done("w", "a", "first")
    answer = flows.record("w", "a", result="second")
    assert (answer["status"], answer["result"], answer["existing"]) == ("completed", "first", True)
    assert flows.step("w", "a")["result"] == "first"


def test_a_worker_that_lost_its_lock_records_nothing(flows: Workflows) -> None:
    flows.start("w")
    flows.run("w")
    old = dict(flows.tokens)
    flows.ok("MoveToWait", id="w", token=old["w"])
    flows.run("w")
    flows.done("w", "a", "new")
    flows.tokens = old
    refusal = flows.record("w", "b")["refused"]
    assert refusal["code"] == "LOCK_LOST"
    assert "lock token" in flows.refused(
        "SuspendJob", queue=ALPHA, groups=[{"steps": ["a"]}], **flows.held("w")
    )
    assert flows.steps("w") == {"a": "completed"}


def test_a_worker_that_comes_back_in_time_goes_on(flows: Workflows) -> None:
    """Its lock has run out, but nobody else has taken the job."""
    flows.start("w", maxAttempts=5)
    flows.run("w", lockTtl=1000)
    flows.lose_workers()
    assert flows.state("w") == "waiting"
    flows.done("w", "a", 1)
    assert flows.state("w") == "active"


def test_one_step_of_several_is_refused_alone(flows: Workflows) -> None:
    flows.start("w")
    flows.run("w")
    good = {**flows.held("w"), "name": "a", "result": 1}
    bad = {**good, "token": "x", "name": "b"}
    results = flows.ok("RecordSteps", queue=ALPHA, steps=[good, bad, {**good, "name": "c"}])["results"]
    assert [None if each is None else each["refused"]["code"] for each in results] == [
        None,
        "LOCK_LOST",
        None,
    ]
    assert list(flows.steps("w")) == ["a", "c"]


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        ({"arguments": "x"}, {"arguments": "y"}, "step a was recorded with other arguments"),
        (
            {},
            {"kind": "sleep", "status": "waiting", "delay": 1},
            "step a was recorded as a step, not as a sleep",
        ),
    ],
)
def test_a_step_that_is_asked_for_otherwise(
    flows: Workflows, first: dict[str, object], second: dict[str, object], text: str
) -> None:
    flows.start("w")
    flows.run("w")
    flows.done("w", "a", **first)
    refusal = flows.record("w", "a", **second)["refused"]
    assert (refusal["error"], refusal["code"], refusal["value"]) == (text, "STEP_CONFLICT", "a")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"kind": "sleep", "status": "waiting"}, "delay is missing: a step of the kind sleep has one"),
        ({"kind": "signal", "status": "waiting"}, "signal is missing: a step of the kind signal has one"),
        ({"kind": "child", "status": "waiting"}, "child is missing: a step of the kind child has one"),
        ({"kind": "sleep", "delay": 5}, "status: step a is new, and cannot become completed"),
        ({"status": "waiting"}, "status: step a is new, and cannot become waiting"),
        ({"status": "cancelled"}, "status: step a is new, and cannot become cancelled"),
        ({"result": "x" * (model.MAX_BYTES + 1)}, "result has 1048582 bytes, at most 1048576 are allowed"),
        ({"cursor": "x" * (model.MAX_BYTES + 1)}, "cursor has 1048582 bytes, at most 1048576 are allowed"),
    ],
)
def test_what_no_step_can_be(flows: Workflows, fields: dict[str, object], text: str) -> None:
    flows.start("w")
    flows.run("w")
    assert flows.record("w", "a", **fields)["refused"]["error"] == text
    assert flows.steps("w") == {}


def test_a_step_that_is_tried_again(flows: Workflows) -> None:
    flows.start("w")
    flows.run("w")
    flows.record("w", "a", status="running", arguments="x")
    flows.record("w", "a", status="retrying", attempts=1, error="E: no", delay=5_000)
    found = flows.step("w", "a")
    assert (found["status"], found["error"], found["until"]) == ("retrying", "E: no", flows.world.now + 5_000)
    flows.record("w", "a", status="running", attempts=2, cursor={"page": 3})
    flows.record("w", "a", status="retrying", attempts=2, error="E: no", delay=0)
    assert flows.step("w", "a")["cursor"] == {"page": 3}, "a cursor stays until there is another"
    flows.record("w", "a", attempts=3, result="ok")
    found = flows.step("w", "a")
    assert (found["status"], found["attempts"], found["result"], found["endedAt"]) == (
        "completed",
        3,
        "ok",
        flows.world.now,
    )
    assert (found["error"], found["until"], found["arguments"]) == (None, None, "x")


def test_a_failure_is_stored_like_a_result_until_the_attempt_fails_with_it(flows: Workflows) -> None:
    flows.start("w")
    flows.run("w")
    assert flows.record("w", "a", status="failed", error="E: no", attempts=2) == {}
    answer = flows.record("w", "a", result=1)
    assert (answer["status"], answer["error"], answer["attempts"]) == ("failed", "E: no", 2)
    flows.record("w", "a", status="retrying", error="E: no", attempts=2)
    assert flows.step("w", "a")["status"] == "retrying"
    flows.done("w", "a", 1)
    assert flows.step("w", "a")["status"] == "completed"


def test_the_state_that_a_workflow_shows(flows: Workflows) -> None:
    flows.start("w")
    flows.run("w")
    assert "value" not in flows.view("w")
    for value in ({"page": 1}, {"page": 2}):
        flows.record("w", "", kind="state", result=value)
        assert flows.view("w")["value"] == value
    assert flows.steps("w") == {}, "it is no step"
    refusal = flows.record("w", "", kind="state", result="x" * (64 << 10))["refused"]
    assert (refusal["field"], refusal["bound"], refusal["code"]) == ("state", 65536, "STEP_TOO_LARGE")
    flows.ack("w")
    assert flows.view("w")["value"] == {"page": 2}


def test_the_number_of_steps_is_bounded(flows: Workflows, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MAX_STEPS", "MAX_CHILDREN"):
        monkeypatch.setattr(f"shardproc.engine.handlers.workflows.record.{name}", 2)
    flows.start("w")
    flows.run("w")
    for name in ("a", "b"):
        flows.done("w", name)
        flows.child("w", f"child {name}")
    refusal = flows.record("w", "c")["refused"]
    assert (refusal["code"], refusal["bound"], refusal["value"]) == ("TOO_MANY_STEPS", 2, "c")
    order = {"queue": "beta", "input": {"data": {}}}
    refusal = flows.record("w", "child c", kind="child", status="waiting", child=order)["refused"]
    assert (refusal["code"], refusal["bound"]) == ("TOO_MANY_STEPS", 2)
    answer = flows.record("w", "a", result=5)
    assert answer["existing"], "what is stored may still be asked for"


def test_a_plain_job_may_have_steps(flows: Workflows) -> None:
    flows.ok("PUSH", queue=ALPHA, data={}, jobId="plain", maxAttempts=2, backoff=0)
    assert "workflow" not in flows.run("plain")
    flows.done("plain", "a", 1)
    flows.fail("plain")
    assert flows.run("plain")["workflow"] == {"steps": True, "keys": 1}
    assert flows.record("plain", "a", result=2)["result"] == 1
    flows.ack("plain")
    assert flows.steps("plain") == {"a": "completed"}


def test_the_steps_go_with_their_job(flows: Workflows) -> None:
    rows = "select count(*) from steps union all select count(*) from signals"
    for job_id, options in (("a", {}), ("b", {"removeOnComplete": True}), ("c", {}), ("d", {})):
        flows.start(job_id, **options)
        flows.run(job_id)
        flows.done(job_id, "x", 1)
        flows.signal(job_id, "s")
    for job_id in ("a", "b"):
        flows.ack(job_id)
    flows.fail("c", unrecoverable=True)
    flows.ok("MoveToWait", id="d", token=flows.tokens["d"])
    flows.ok("RemoveJob", id="a")
    flows.ok("PurgeDlq", queue=ALPHA)
    flows.ok("Drain", queue=ALPHA)
    assert sum(count for (count,) in flows.stored(rows)) == 0


def test_pages_of_steps(flows: Workflows) -> None:
    flows.start("w")
    flows.run("w")
    steps = [{**flows.held("w"), "name": f"s{n}", "result": "x" * n} for n in range(10)]
    flows.ok("RecordSteps", queue=ALPHA, steps=steps)
    first = flows.ok("GetSteps", queue=ALPHA, id="w", limit=6, maxResult=5)["data"]
    rest = flows.ok("GetSteps", queue=ALPHA, id="w", limit=6, maxResult=5, after=first["next"])["data"]
    assert [step["name"] for step in first["steps"] + rest["steps"]] == [f"s{n}" for n in range(10)]
    assert rest["next"] is None
    assert [step.get("result") for step in first["steps"]] == ["", "x", "xx", "xxx", "xxxx", None]
    assert first["steps"][5]["size"] == 6
    names = ["s9", "s2", "nobody"]
    named = flows.ok("GetSteps", queue=ALPHA, id="w", names=names)["data"]
    assert ([step["result"] for step in named["steps"]], named["next"]) == (["xx", "x" * 9], None)
    assert flows.refused("GetSteps", queue=ALPHA, id="nobody") == "Job not found"


def test_pages_of_large_steps(flows: Workflows) -> None:
    """A page ends before it is too large, also one of named steps, and says where the next one begins."""
    flows.start("w")
    flows.run("w")
    names = [f"s{n}" for n in range(10)]
    for name in names:
        flows.done("w", name, "x" * 1_000_000)
    for wanted in ({}, {"names": names}):
        after, found = 0, []
        while after is not None:
            page = flows.ok("GetSteps", queue=ALPHA, id="w", after=after, **wanted)["data"]
            after = page["next"]
            found.append([step["name"] for step in page["steps"]])
        assert found == [names[:8], names[8:]]


def test_a_cursor_that_is_left_out_has_its_size(flows: Workflows) -> None:
    flows.start("w")
    flows.run("w")
    flows.record("w", "s", status="running", cursor="x" * 10)
    (step,) = flows.ok("GetSteps", queue=ALPHA, id="w", maxResult=5)["data"]["steps"]
    assert ("cursor" in step, step["cursorSize"], step["size"]) == (False, 11, 0)


def test_times_are_set_back_with_the_clock(flows: Workflows) -> None:
    """The clock was two hours ahead while steps were recorded."""
    flows.start("w")
    flows.run("w")
    flows.done("w", "a")
    flows.nap("w", "nap", 4 * HOUR)
    flows.signal("w", "s", ttl=HOUR)
    assert flows.step("w", "nap")["until"] == flows.world.now + 4 * HOUR


# -- the data of a workflow


@pytest.mark.parametrize("data", [[1], "7", 7, True])
def test_the_data_of_a_workflow_are_its_arguments_by_name(flows: Workflows, data: Any) -> None:
    """Wherever it comes in."""
    flows.start("w")
    flows.run("w")
    job = {"data": data, "workflow": True}
    every = {"name": "c", "queue": ALPHA, "repeatEvery": HOUR, "data": data, "jobOptions": {"workflow": True}}
    problem = "data of a workflow must be an object, its arguments by name"
    for cmd, fields, where in (
        ("PUSH", {"queue": ALPHA, **job}, ""),
        ("PUSHB", {"queue": ALPHA, "jobs": [{"data": 1}, job]}, "jobs[1]: "),
        ("Update", {"id": "w", "data": data}, ""),
        ("ContinueAsNew", {"queue": ALPHA, "data": data, **flows.held("w")}, ""),
        ("Cron", every, ""),
    ):
        assert flows.refused(cmd, **fields) == where + problem, cmd
    child = {"queue": ALPHA, "input": job}
    refused = flows.record("w", "c", kind="child", status="waiting", child=child)["refused"]
    assert (refused["error"], refused["bound"]) == (f"child: {problem}", "an object")
    assert flows.ok("GetJobCounts", queue=ALPHA)["counts"]["waiting"] == 0
    flows.ok("PUSH", queue=ALPHA, data=None, workflow=True)
    flows.ok("PUSH", queue=ALPHA, data=data)

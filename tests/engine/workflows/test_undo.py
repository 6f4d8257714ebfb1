"""Undo: what has to happen before a workflow ends as failed or cancelled, and what if that fails."""

from __future__ import annotations

from typing import Any

import pytest
from engine.shard_driver import Driver
from engine.workflow_world import ALPHA, BETA, HOUR, Workflows


def begin(flows: Workflows, **options: Any) -> None:
    """A workflow that has done two steps that can be undone, and one that cannot."""
    flows.start("w", **{"maxAttempts": 1, **options})
    flows.run("w")
    flows.done("w", "reserve", "r", undo=True)
    flows.done("w", "mail")
    flows.done("w", "charge", "c", undo=True)


def undo(flows: Workflows, name: str, **fields: Any) -> dict[str, Any]:
    return flows.record("w", f"undo:{name}", kind="undo", **fields)


def test_a_workflow_that_fails_is_undone_first(flows: Workflows) -> None:
    begin(flows)
    flows.fail("w", "no carrier")
    assert flows.state("w") == "waiting"
    assert flows.view("w")["undoing"]["error"] == "no carrier"
    job = flows.run("w")
    assert job["workflow"]["undoing"] == {"reason": "max_attempts_exceeded", "error": "no carrier"}
    assert job["attempts"] == 0
    for name in ("charge", "reserve"):
        assert undo(flows, name) == {}
    flows.fail("w", "undone", unrecoverable=True)
    assert flows.state("w") == "failed"
    job = flows.job("w")
    assert job["failedReason"] == "no carrier"
    view = flows.view("w")
    assert (view["undone"], view["undoing"]) == (True, None)


@pytest.mark.parametrize("where", ["active", "waiting", "suspended", "between attempts"])
def test_a_workflow_that_is_cancelled_is_undone_first(flows: Workflows, where: str) -> None:
    begin(flows, maxAttempts=3, backoff=HOUR)
    if where == "suspended":
        flows.wait("w", "ok?", "approval")
        flows.suspend("w", ["ok?"])
    elif where == "between attempts":
        flows.fail("w")
    elif where == "waiting":
        flows.ok("MoveToWait", id="w", token=flows.tokens["w"])
    reply = flows.ok("Cancel", id="w", reason="enough", running=True, grace=0)
    if where == "waiting":  # nothing says that it has begun, but its steps
        assert flows.state("w") in ("waiting", "unknown")
    else:
        assert reply.get("running") is True or where == "active"
        assert flows.state("w") == "waiting"
    if flows.state("w") == "waiting":
        assert flows.run("w")["workflow"]["undoing"]["error"] == "Cancelled: enough"
        for name in ("charge", "reserve"):
            undo(flows, name)
        flows.fail("w", unrecoverable=True)
        assert flows.state("w") == "cancelled"


def test_a_worker_that_is_lost_for_good_has_its_work_undone(flows: Workflows) -> None:
    flows.start("w", maxAttempts=1)
    flows.run("w", lockTtl=1000)
    flows.done("w", "charge", undo=True)
    flows.ok("JobHeartbeat", **flows.held("w"))
    flows.lose_workers()
    assert flows.state("w") == "waiting"
    assert flows.view("w")["undoing"]["reason"] in ("max_attempts_exceeded", "stalled")


def test_nothing_is_undone_while_there_are_attempts(flows: Workflows) -> None:
    begin(flows, maxAttempts=2, backoff=0)
    flows.fail("w")
    assert "undoing" not in flows.run("w")["workflow"]
    flows.ack("w")
    assert flows.state("w") == "completed"


def test_an_undo_that_fails_for_good_leaves_the_workflow_stuck(flows: Workflows) -> None:
    begin(flows)
    flows.fail("w", "no carrier")
    flows.run("w")
    undo(flows, "charge", status="failed", error="E: bank is closed")
    flows.fail("w", "E: bank is closed", unrecoverable=True)
    assert flows.state("w") == "stuck"
    assert flows.job("w")["failedReason"] == "Step charge could not be undone: E: bank is closed"
    assert flows.refused("UndoWorkflow", id="w", action="start") == (
        "Workflow w is stuck and cannot be undone anew: it is being undone; if stuck, retry, skip or edit it"
    )
    flows.ok("UndoWorkflow", id="w", action="retry")
    assert flows.run("w")["workflow"]["undoing"]["error"] == "no carrier"
    assert undo(flows, "charge") == {}, "it is tried again"
    undo(flows, "reserve")
    flows.fail("w", unrecoverable=True)
    assert (flows.state("w"), flows.job("w")["failedReason"]) == ("failed", "no carrier")


@pytest.mark.parametrize("last", ["fails", "is cancelled", "is cancelled while active"])
def test_an_undo_that_ends_in_the_batch_that_changed_its_job(last: str) -> None:
    """What is read of the job then has it written half way between two states."""
    driver = Driver()
    driver.push(name="w", data={}, workflow=True, jobId="w", maxAttempts=2, backoff=0)
    for step in ({"name": "a", "undo": True}, {"name": "undo:a", "kind": "undo"}):
        token = driver.ask(cmd="PULL", queue="q", owner="w", signals=True)["token"]
        held = {"id": "w", "token": token}
        commands: list[dict[str, Any]] = [
            {"cmd": "RecordSteps", "queue": "q", "steps": [{**held, **step, "result": 1}]},
            {"cmd": "Progress", "progress": 50, **held},
            {"cmd": "FAIL", "error": "x", "unrecoverable": True, **held},
        ]
        cancel = {"cmd": "Cancel", "id": "w", "running": True, "grace": 0}
        if step["name"] == "undo:a" and last == "is cancelled":
            commands[2:] = [{**commands[2], "unrecoverable": False}, cancel]
        elif step["name"] == "undo:a" and last == "is cancelled while active":
            commands[2:] = [cancel]
        assert [reply["ok"] for reply in driver.batch(commands)] == [True] * len(commands)
    assert driver.rows("select count(*) from locks") == [(0,)]
    assert driver.state("w") == "failed", "as it was when its undo began"
    driver.close()


@pytest.mark.parametrize("tried", [True, False])
def test_an_undo_that_is_skipped(flows: Workflows, tried: bool) -> None:
    begin(flows)
    flows.fail("w")
    flows.run("w")
    if tried:
        undo(flows, "charge", status="failed", error="E")
    flows.fail("w", unrecoverable=True)
    assert flows.refused("UndoWorkflow", id="w", action="skip") == (
        "step is missing: the action skip needs one"
    )
    assert flows.refused("UndoWorkflow", id="w", action="skip", step="x") == (
        "Workflow w has recorded no step 'x'"
    )
    flows.ok("UndoWorkflow", id="w", action="skip", step="charge")
    flows.run("w")
    assert flows.steps("w")["undo:charge"] == "skipped"
    undo(flows, "reserve")
    flows.fail("w", unrecoverable=True)
    assert flows.state("w") == "failed"
    flows.ok("RetryWorkflow", id="w")
    assert flows.steps("w") == {"mail": "completed", "charge": "completed"}, "what was skipped still holds"


def test_an_undo_with_another_input(flows: Workflows) -> None:
    begin(flows)
    flows.fail("w")
    flows.run("w")
    flows.fail("w", unrecoverable=True)
    flows.ok("UndoWorkflow", id="w", action="edit", step="undo:charge", data={"other": 1})
    assert flows.step("w", "charge")["result"] == {"other": 1}
    assert flows.state("w") == "waiting"


def test_a_retry_does_again_what_was_undone(flows: Workflows) -> None:
    begin(flows)
    flows.fail("w")
    flows.run("w")
    for name in ("charge", "reserve"):
        undo(flows, name)
    flows.fail("w", unrecoverable=True)
    flows.ok("RetryWorkflow", id="w")
    assert flows.steps("w") == {"mail": "completed"}
    assert flows.run("w")["workflow"]["generation"] == 1
    flows.done("w", "charge", undo=True)
    flows.fail("w")
    assert flows.view("w")["undoing"] is not None, "and that can be undone, too"


def test_a_retry_from_a_step_does_again_what_was_undone_before_it(flows: Workflows) -> None:
    begin(flows)
    flows.done("w", "ship")
    flows.fail("w")
    flows.run("w")
    for name in ("charge", "reserve"):
        undo(flows, name)
    flows.fail("w", unrecoverable=True)
    refused = flows.refused("RetryWorkflow", id="w", step="undo:charge")
    assert refused.startswith("step: undo:charge undoes a step, and is no step to retry from")
    flows.ok("RetryWorkflow", id="w", step="ship")
    assert flows.steps("w") == {"mail": "completed"}, "what was given back is not taken for done"
    flows.run("w")
    flows.done("w", "charge", undo=True)
    flows.fail("w")
    assert flows.view("w")["undoing"] is not None


def test_a_stuck_undo_that_is_left_by_a_retry_from_a_step(flows: Workflows) -> None:
    begin(flows)
    flows.done("w", "ship")
    flows.fail("w")
    flows.run("w")
    undo(flows, "charge")
    undo(flows, "reserve", status="failed", error="E")
    flows.fail("w", unrecoverable=True)
    flows.ok("RetryWorkflow", id="w", step="ship")
    assert flows.steps("w") == {"reserve": "completed", "mail": "completed"}, "only the charge was undone"
    flows.run("w")
    flows.fail("w")
    assert flows.view("w")["undoing"] is not None, "what was kept can still be undone"


def test_an_undo_that_is_refused_changes_nothing(flows: Workflows) -> None:
    begin(flows)
    flows.fail("w")
    flows.run("w")
    undo(flows, "charge")
    undo(flows, "reserve", status="failed", error="E")
    flows.fail("w", unrecoverable=True)
    before = flows.view("w")
    left = "is not to be undone (any more); still to be undone: reserve"
    for action, step, data, error in (
        ("skip", "mail", None, f"step: mail {left}"),
        ("skip", "charge", None, f"step: charge {left}"),
        ("edit", "charge", 1, f"step: charge {left}"),
        ("retry", "charge", None, "step: the action retry is about all steps; skip and edit are about one"),
        ("skip", "reserve", 1, "data: the action skip takes none; edit does"),
    ):
        assert flows.refused("UndoWorkflow", id="w", action=action, step=step, data=data) == error
    assert flows.view("w") == before


def test_a_retry_that_is_refused_for_a_unique_key_changes_nothing(flows: Workflows) -> None:
    begin(flows, uniqueKey="k")
    flows.ack("w")
    flows.start("other", uniqueKey="k")
    before = flows.view("w")
    for cmd, fields in (
        ("RetryWorkflow", {"step": "reserve"}),
        ("UndoWorkflow", {"action": "start"}),
    ):
        assert "has its unique key" in flows.refused(cmd, id="w", **fields)
    assert flows.view("w") == before


def test_a_completed_workflow_is_undone_on_request(flows: Workflows) -> None:
    begin(flows)
    flows.ack("w", "receipt")
    flows.ok("UndoWorkflow", id="w", action="start")
    flows.run("w")
    for name in ("charge", "reserve"):
        undo(flows, name)
    flows.fail("w", unrecoverable=True)
    assert flows.state("w") == "failed"
    assert flows.job("w")["failedReason"] == "it was undone by request"
    assert "no finished steps that can be undone" in flows.refused("UndoWorkflow", id="w", action="start")


def test_what_is_not_stuck(flows: Workflows) -> None:
    flows.start("w")
    for action in ("retry", "skip", "edit"):
        assert "it is not stuck" in flows.refused("UndoWorkflow", id="w", action=action, step="a")
    assert "cancel it, and it is undone" in flows.refused("UndoWorkflow", id="w", action="start")


def test_an_undo_has_attempts_of_its_own(flows: Workflows) -> None:
    begin(flows, maxAttempts=2, backoff=0)
    for _ in range(2):
        flows.fail("w", "no carrier")
        flows.run("w")
    assert flows.job("w")["attempts"] == 0
    flows.fail("w", "worker is ill")
    flows.run("w")
    flows.fail("w", "worker is ill")
    assert flows.state("w") == "stuck"


def test_undo_steps_do_not_count(flows: Workflows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardproc.engine.handlers.workflows.record.MAX_STEPS", 3)
    begin(flows)
    flows.fail("w")
    flows.run("w")
    assert undo(flows, "charge") == {}


def test_children_end_before_the_undo(flows: Workflows) -> None:
    begin(flows)
    child = flows.child("w", "pack", BETA)
    flows.fail("w")
    assert flows.steps("w")["pack"] == "cancelled"
    assert flows.ask("GetJob", id=child)["ok"] is False


def test_dead_letters_that_are_stuck_are_not_tried_by_themselves(flows: Workflows) -> None:
    flows.ok("SetDlqConfig", queue=ALPHA, config={"autoRetry": True, "autoRetryInterval": 1000})
    begin(flows)
    flows.fail("w")
    flows.run("w")
    flows.fail("w", unrecoverable=True)
    flows.pass_time(HOUR)
    assert flows.state("w") == "stuck"

"""Sleeps and signals: a run that ends to wait, and what lets the job go on."""

from __future__ import annotations

from typing import Any

import pytest
from engine.workflow_world import ALPHA, BETA, DAY, GAMMA, HOUR, SECOND, Workflows


def begin(flows: Workflows, job_id: str = "w", queue: str = ALPHA, **options: Any) -> None:
    flows.start(job_id, queue, **options)
    flows.run(job_id, queue)


# -- sleeping


def test_a_sleeping_workflow_is_a_delayed_job(flows: Workflows) -> None:
    begin(flows)
    answer = flows.nap("w", "nap", DAY)
    assert (answer["status"], answer["wait"]) == ("waiting", DAY)
    flows.suspend("w", ["nap"])
    assert (flows.state("w"), flows.job("w")["runAt"]) == ("delayed", flows.world.now + DAY)
    assert flows.job("w")["attempts"] == 0
    assert flows.pull() is None
    flows.pass_time(DAY - 1)
    assert flows.pull() is None
    flows.pass_time(1)
    flows.run("w")
    assert flows.nap("w", "nap", DAY)["status"] == "completed"
    assert flows.view("w")["suspended"] == 1


def test_a_sleep_goes_on_from_when_it_was_first_asked_for(flows: Workflows) -> None:
    begin(flows, maxAttempts=5, backoff=0)
    flows.nap("w", "nap", HOUR)
    flows.pass_time(HOUR // 2)
    flows.fail("w")
    flows.run("w")
    assert flows.nap("w", "nap", HOUR)["wait"] == HOUR // 2


def test_a_run_that_waits_for_nothing_goes_on_at_once(flows: Workflows) -> None:
    begin(flows)
    flows.nap("w", "nap", 0)
    flows.suspend("w", ["nap"])
    flows.run("w")
    flows.nap("w", "long", DAY)
    flows.suspend("w", ["long"], ["nap"])
    assert flows.state("w") == "waiting", "one of its groups is ready"


def test_what_was_not_recorded_cannot_be_waited_for(flows: Workflows) -> None:
    begin(flows)
    problem = flows.refused("SuspendJob", queue=ALPHA, groups=[{"steps": ["nap"]}], **flows.held("w"))
    assert problem == "job w has recorded no step 'nap' that it could wait for"
    assert flows.state("w") == "active"


def test_an_attempt_of_a_step_may_be_waited_for(flows: Workflows) -> None:
    begin(flows)
    flows.record("w", "a", status="retrying", attempts=1, delay=HOUR)
    flows.suspend("w", ["a"])
    assert flows.state("w") == "delayed"
    flows.pass_time(HOUR)
    flows.run("w")
    assert flows.record("w", "a", attempts=2) == {}


# -- signals


def test_a_signal_wakes_the_workflow_that_waits(flows: Workflows) -> None:
    begin(flows)
    assert flows.wait("w", "ok?", "approval")["status"] == "waiting"
    flows.suspend("w", ["ok?"])
    assert flows.state("w") == "waiting-signal"
    assert flows.pull() is None
    assert flows.signal("w", "other") is False
    assert flows.state("w") == "waiting-signal"
    assert flows.signal("w", "approval", {"by": "ada"}) is True
    flows.run("w")
    answer = flows.wait("w", "ok?", "approval")
    assert (answer["status"], answer["result"], answer["existing"]) == ("completed", {"by": "ada"}, True)


def test_signals_that_nobody_waits_for_are_kept_in_order(flows: Workflows) -> None:
    flows.start("w")
    for data in (1, 2, 3):
        assert flows.signal("w", "s", data) is False
    assert [(kept["name"], kept["size"]) for kept in flows.view("w")["signals"]] == [("s", 1)] * 3
    flows.run("w")
    results = [flows.wait("w", f"wait {n}", "s")["result"] for n in range(3)]
    assert results == [1, 2, 3]
    assert flows.wait("w", "wait 3", "s")["status"] == "waiting"
    assert flows.view("w")["signals"] == []


def test_one_signal_satisfies_one_wait(flows: Workflows) -> None:
    begin(flows)
    for step in ("first", "second"):
        flows.wait("w", step, "s")
    flows.suspend("w", ["first"], ["second"])
    assert flows.signal("w", "s", "a") is True
    assert flows.steps("w") == {"first": "completed", "second": "waiting"}
    assert flows.signal("w", "s", "b") is True
    assert flows.signal("w", "s", "c") is False
    assert [flows.step("w", step)["result"] for step in ("first", "second")] == ["a", "b"]


def test_a_signal_that_is_sent_again_counts_once(flows: Workflows) -> None:
    begin(flows)
    assert flows.signal("w", "s", 1, signalId="x") is False
    assert flows.signal("w", "s", 1, signalId="x") is False
    assert flows.wait("w", "a", "s")["result"] == 1
    assert flows.signal("w", "s", 1, signalId="x") is False
    assert flows.wait("w", "b", "s")["status"] == "waiting", "also when it was taken meanwhile"
    assert flows.signal("w", "s", 1, signalId="y") is True


def test_a_signal_may_be_sent_again_when_its_workflow_has_ended(flows: Workflows) -> None:
    begin(flows)
    flows.wait("w", "a", "s")
    assert flows.signal("w", "s", 1, signalId="x") is True
    flows.ok("ACK", **flows.held("w"))
    assert flows.signal("w", "s", 1, signalId="x") is False
    assert "has ended" in flows.refused("SendSignal", id="w", name="s", signalId="y")
    assert "has ended" in flows.refused("SendSignal", id="w", name="s")


def test_a_wait_that_takes_too_long(flows: Workflows) -> None:
    begin(flows)
    flows.wait("w", "ok?", "approval", delay=HOUR)
    flows.suspend("w", ["ok?"])
    assert flows.state("w") == "waiting-signal"
    flows.pass_time(HOUR)
    assert flows.signal("w", "approval", "late") is False, "its time is over, though no run has seen it"
    flows.run("w")
    assert flows.wait("w", "ok?", "approval", delay=HOUR)["status"] == "timed-out"
    assert flows.wait("w", "again", "approval")["result"] == "late", "kept for the next wait"


def test_a_signal_comes_as_long_as_the_workflow_runs(flows: Workflows) -> None:
    begin(flows)
    flows.wait("w", "ok?", "approval")
    assert flows.signal("w", "approval", 1) is True
    assert flows.wait("w", "ok?", "approval")["result"] == 1


def test_a_signal_that_expires(flows: Workflows) -> None:
    flows.start("w")
    flows.signal("w", "s", "old", ttl=HOUR)
    flows.signal("w", "s", "new")
    flows.pass_time(HOUR)
    assert [kept["size"] for kept in flows.view("w")["signals"]] == [4]
    flows.run("w")
    assert flows.wait("w", "a", "s")["result"] == "new"
    flows.signal("w", "s", "newest")
    assert flows.stored("select count(*) from signals where name = 's' and data is not null") == [(1,)] or (
        sum(count for (count,) in flows.stored("select count(*) from signals where data is not null")) == 1
    )


def test_the_number_of_kept_signals_is_bounded(flows: Workflows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardproc.engine.handlers.workflows.signals.MAX_SIGNALS", 2)
    begin(flows)
    for _ in range(2):
        flows.signal("w", "s")
    assert "2 signals are kept for workflow w" in flows.refused("SendSignal", id="w", name="s")
    flows.wait("w", "a", "s")
    flows.signal("w", "s")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"id": "nobody"}, "Job not found"),
        ({"id": "plain"}, "Job plain is no workflow: it takes no signals"),
        ({"id": "done"}, "Workflow done has ended: it takes no signals"),
        ({"id": "w", "data": "x" * (1 << 20)}, "data has 1048581 bytes, at most 1048576 are allowed"),
    ],
)
def test_signals_that_are_refused(flows: Workflows, fields: dict[str, Any], text: str) -> None:
    flows.ok("PUSH", queue=BETA, data={}, jobId="plain")
    begin(flows, "done")
    flows.ack("done")
    flows.start("w")
    assert flows.refused("SendSignal", **{"name": "s", **fields}) == text


# -- signals to all that wait for a key


def test_a_broadcast_reaches_all_that_wait_for_its_key(flows: Workflows) -> None:
    for job_id, queue, key in (("a", ALPHA, "k"), ("b", BETA, "k"), ("c", GAMMA, "other")):
        begin(flows, job_id, queue)
        flows.wait(job_id, "paid?", "paid", key=key)
        flows.suspend(job_id, ["paid?"])
    assert flows.broadcast("paid", "k", {"eur": 5}) == 2
    assert [flows.state(job_id) for job_id in "abc"] == ["waiting", "waiting", "waiting-signal"]
    assert [flows.step(job_id, "paid?").get("result") for job_id in "abc"] == [{"eur": 5}, {"eur": 5}, None]


def test_a_broadcast_is_kept_for_those_who_wait_later(flows: Workflows) -> None:
    assert flows.broadcast("paid", "k", 1) == 0
    begin(flows)
    assert flows.wait("w", "paid?", "paid", key="k")["result"] == 1
    assert flows.wait("w", "again?", "paid", key="k")["status"] == "waiting", "each workflow gets it once"
    assert flows.wait("w", "without", "paid")["status"] == "waiting", "it asked for no key"
    begin(flows, "v", BETA)
    assert flows.wait("v", "paid?", "paid", key="k")["result"] == 1


def test_a_broadcast_is_kept_as_long_as_it_says(flows: Workflows) -> None:
    flows.broadcast("paid", "k", 1)
    flows.broadcast("paid", "k", 2, keep=0)
    flows.broadcast("paid", "k", 3, keep=2 * DAY)
    begin(flows)
    flows.pass_time(DAY)
    assert flows.wait("w", "paid?", "paid", key="k")["result"] == 3
    assert flows.wait("w", "again?", "paid", key="k")["status"] == "waiting"


def test_a_broadcast_that_is_sent_again_counts_once(flows: Workflows) -> None:
    begin(flows)
    for step in ("a", "b"):
        flows.wait("w", step, "paid", key="k")
    assert flows.broadcast("paid", "k", 1, broadcastId="x", keep=0) == 1
    assert flows.broadcast("paid", "k", 1, broadcastId="x", keep=0) == 0
    assert flows.steps("w") == {"a": "completed", "b": "waiting"}


def test_signals_and_broadcasts_are_taken_by_age(flows: Workflows) -> None:
    begin(flows)
    flows.signal("w", "paid", "first")
    flows.pass_time(SECOND)
    flows.broadcast("paid", "k", "second")
    flows.pass_time(SECOND)
    flows.signal("w", "paid", "third")
    results = [flows.wait("w", f"{n}", "paid", key="k")["result"] for n in range(3)]
    assert results == ["first", "second", "third"]


def test_a_broadcast_to_many(flows: Workflows, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than fit into one slice; what is left is done after a crash."""
    monkeypatch.setattr("shardproc.engine.handlers.workflows.signals.SLICE", 2)
    for n in range(5):
        begin(flows, f"w{n}")
        for step in ("a", "b"):
            flows.wait(f"w{n}", step, "s", key="k")
        flows.suspend(f"w{n}", ["a"], ["b"])
    assert flows.broadcast("s", "k", 1) == 5
    assert [flows.steps(f"w{n}") for n in range(5)] == [{"a": "completed", "b": "waiting"}] * 5


def test_old_broadcasts_go(flows: Workflows) -> None:
    flows.broadcast("paid", "k", 1, keep=HOUR)
    flows.pass_time(HOUR)
    flows.broadcast("paid", "k", 2)
    assert {row for row in flows.stored("select count(*) from broadcasts")} == {(1,)}


def test_why_it_waits(flows: Workflows) -> None:
    begin(flows)
    flows.wait("w", "ok?", "approval", key="k", delay=HOUR)
    flows.suspend("w", ["ok?"])
    (reason,) = flows.ok("WhyWaiting", id="w")["data"]["reasons"]
    assert reason == {
        "kind": "signal",
        "text": "it waits for the signal 'approval' with the key 'k'",
        "until": flows.world.now + HOUR,
        "ids": [],
    }
    counts = flows.ok("GetJobCounts", queue=ALPHA)["counts"]
    assert (counts["waiting-signal"], counts["waiting-children"], counts["waiting"]) == (1, 0, 0)
    listed = flows.ok("GetJobs", queue=ALPHA, state="waiting-signal")["jobs"]
    assert [job["id"] for job in listed] == ["w"]
    assert flows.ok("GetJobs", queue=ALPHA, state="waiting-children")["jobs"] == []


# -- what ends a workflow that waits


def test_a_workflow_that_waits_is_cancelled(flows: Workflows) -> None:
    begin(flows)
    flows.wait("w", "ok?", "approval")
    flows.suspend("w", ["ok?"])
    assert "running" not in flows.ok("Cancel", id="w", reason="enough", running=True)
    assert flows.state("w") == "cancelled"
    assert flows.steps("w") == {"ok?": "cancelled"}, "it is kept with its history"
    assert flows.job("w")["failedReason"] == "Cancelled: enough"


def test_a_workflow_that_has_not_begun_is_removed(flows: Workflows) -> None:
    flows.start("w")
    flows.ok("Cancel", id="w", running=True)
    assert flows.ask("GetJob", id="w")["ok"] is False


@pytest.mark.parametrize("command", ["RemoveJob", "Discard", "Obliterate"])
def test_what_else_ends_it(flows: Workflows, command: str) -> None:
    begin(flows)
    flows.wait("w", "ok?", "approval", delay=HOUR)
    flows.suspend("w", ["ok?"])
    flows.ok(command, **({"queue": ALPHA} if command == "Obliterate" else {"id": "w"}))
    assert flows.state("w") == ("failed" if command == "Discard" else "unknown")
    flows.pass_time(HOUR)
    assert flows.pull() is None


def test_a_cancelled_run_that_suspends_ends(flows: Workflows) -> None:
    begin(flows)
    flows.nap("w", "nap", DAY)
    flows.ok("Cancel", id="w", running=True, grace=HOUR)
    flows.suspend("w", ["nap"])
    assert flows.state("w") == "cancelled"


# -- again, as something new


def test_a_workflow_continues_as_new(flows: Workflows) -> None:
    begin(flows)
    flows.done("w", "a", 1)
    flows.record("w", "", kind="state", result="old")
    flows.signal("w", "s", "kept")
    flows.ok("ContinueAsNew", queue=ALPHA, data={"n": 2}, **flows.held("w"))
    assert flows.state("w") == "waiting"
    job = flows.run("w")
    assert (job["data"], job["workflow"]["generation"]) == ({"n": 2}, 1)
    view = flows.view("w")
    assert (view["steps"], "value" in view, view["generation"]) == ([], False, 1)
    assert flows.wait("w", "a", "s")["result"] == "kept"


def test_a_long_life_does_not_collect_signals(flows: Workflows) -> None:
    """Those that were taken are known for a while, in case they are sent again."""
    begin(flows)
    for name in ("old", "young"):
        flows.wait("w", name, name)
        assert flows.signal("w", name, signalId=name) is True
        flows.signal("w", "later", name)
        flows.pass_time(4 * 60 * SECOND)
    flows.ok("ContinueAsNew", queue=ALPHA, data={}, **flows.held("w"))
    assert flows.signal("w", "young", signalId="young") is False
    assert [signal["name"] for signal in flows.view("w")["signals"]] == ["later", "later"]
    assert flows.signal("w", "old", signalId="old") is False
    assert [signal["name"] for signal in flows.view("w")["signals"]] == ["later", "later", "old"]


def test_only_who_holds_it_continues_it(flows: Workflows) -> None:
    begin(flows)
    flows.done("w", "a", 1)
    assert "lock token" in flows.refused("ContinueAsNew", queue=ALPHA, id="w", token="x", data=1)
    assert flows.steps("w") == {"a": "completed"}


def test_a_workflow_is_retried_from_a_step(flows: Workflows) -> None:
    begin(flows, maxAttempts=1)
    for name in ("a", "b", "c"):
        flows.done("w", name)
    assert "cannot be retried: cancel it first" in flows.refused("RetryWorkflow", id="w", step="b")
    flows.fail("w")
    assert flows.refused("RetryWorkflow", id="w", step="x") == "Workflow w has recorded no step 'x'"
    flows.ok("RetryWorkflow", id="w", step="b")
    assert flows.steps("w") == {"a": "completed"}
    assert flows.run("w")["workflow"]["generation"] == 1
    flows.ack("w")
    flows.ok("RetryWorkflow", id="w", step="a")
    assert (flows.steps("w"), flows.state("w")) == ({}, "waiting")


@pytest.mark.parametrize("kind", ["sleep", "signal"])
def test_a_workflow_that_waits_is_retried_from_a_step(flows: Workflows, kind: str) -> None:
    begin(flows)
    flows.done("w", "a")
    if kind == "sleep":
        flows.nap("w", "b", DAY)
    else:
        flows.wait("w", "b", "s")
    flows.suspend("w", ["b"])
    flows.ok("RetryWorkflow", id="w", step="b")
    assert (flows.steps("w"), flows.state("w")) == ({"a": "completed"}, "waiting")
    flows.run("w")


def test_a_workflow_is_retried_from_where_it_failed(flows: Workflows) -> None:
    begin(flows, maxAttempts=1)
    flows.done("w", "a")
    assert "be retried" in flows.refused("RetryWorkflow", id="w")
    flows.fail("w")
    flows.ok("RetryWorkflow", id="w")
    flows.run("w")
    assert flows.steps("w") == {"a": "completed"}
    flows.ack("w")
    assert "it has not failed" in flows.refused("RetryWorkflow", id="w")
    flows.ok("RetryCompleted", queue=ALPHA, id="w")
    assert flows.steps("w") == {}, "asked to run again, it does all of it again"


@pytest.mark.parametrize("command", ["RetryWorkflow", "UndoWorkflow", "GetWorkflow"])
def test_what_is_no_workflow(flows: Workflows, command: str) -> None:
    flows.ok("PUSH", queue=ALPHA, data={}, jobId="plain")
    assert flows.refused(command, id="plain") == "Job plain is no workflow, and has no steps"
    assert flows.refused(command, id="nobody") == "Job not found"


# -- at the end of their workflow


def open_at_the_end(flows: Workflows, **options: Any) -> None:
    """A workflow that sleeps and waits, and has lost another wait before."""
    begin(flows, **options)
    flows.wait("w", "lost", "s")
    flows.record("w", "lost", kind="signal", status="cancelled")
    flows.nap("w", "nap", HOUR)
    flows.wait("w", "ok?", "approval", key="k", delay=DAY)
    flows.child("w", "pack")


@pytest.mark.parametrize("how", ["fails", "cancelled while it runs", "cancelled while it waits", "discarded"])
def test_waits_end_with_their_workflow_and_go_on_with_it(flows: Workflows, how: str) -> None:
    open_at_the_end(flows, maxAttempts=1)
    flows.pass_time(HOUR // 2)
    if how == "fails":
        flows.fail("w")
    elif how == "discarded":
        flows.ok("Discard", **flows.held("w"))
    else:
        if how == "cancelled while it waits":
            flows.suspend("w", ["nap", "ok?"])
        flows.ok("Cancel", id="w", running=True, grace=0)
        flows.pass_time(1)
    names = ("nap", "ok?", "pack")
    assert {flows.step("w", name)["status"] for name in names} == {"cancelled"}
    assert {flows.step("w", name)["error"] for name in names[:2]} == {"its workflow has ended"}
    assert all(flows.world.now - 1 <= flows.step("w", name)["endedAt"] <= flows.world.now for name in names)
    assert flows.broadcast("approval", "k") == 0, "nobody waits"
    flows.ok("RetryWorkflow", id="w")
    flows.run("w")
    left = flows.nap("w", "nap", HOUR)
    assert left["status"] == "waiting"
    assert HOUR // 2 - 1 <= left["wait"] <= HOUR // 2
    assert flows.wait("w", "ok?", "approval", key="k")["status"] == "completed", "what came meanwhile"
    assert (flows.steps("w")["lost"], flows.step("w", "nap")["error"]) == ("cancelled", None)
    assert flows.steps("w")["pack"] == "cancelled", "its children are started again under another name"


def test_waits_end_before_their_workflow_is_undone(flows: Workflows) -> None:
    begin(flows, maxAttempts=1)
    flows.done("w", "charge", undo=True)
    flows.wait("w", "ok?", "approval")
    flows.fail("w")
    assert flows.steps("w") == {"charge": "completed", "ok?": "cancelled"}
    flows.run("w")
    assert flows.signal("w", "approval") is False, "it is kept for the time after a retry"
    flows.record("w", "undo:charge", kind="undo", status="failed", error="E")
    flows.fail("w", unrecoverable=True)
    flows.ok("UndoWorkflow", id="w", action="retry")
    assert flows.steps("w")["ok?"] == "cancelled"
    flows.run("w")
    flows.record("w", "undo:charge", kind="undo")
    flows.fail("w", unrecoverable=True)
    flows.ok("RetryWorkflow", id="w")
    flows.run("w")
    assert flows.wait("w", "ok?", "approval")["status"] == "completed"


def test_a_wait_that_changed_code_forgot_ends_when_its_workflow_completes(flows: Workflows) -> None:
    begin(flows)
    flows.wait("w", "ok?", "approval")
    flows.nap("w", "nap", SECOND)
    flows.suspend("w", ["ok?"], ["nap"])
    flows.pass_time(SECOND)
    flows.run("w")
    flows.nap("w", "nap", SECOND)
    flows.ack("w")
    assert flows.steps("w") == {"ok?": "cancelled", "nap": "completed"}

"""The table of legal transitions and the code in `lifecycle/transitions.py` agree."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
from engine.shard_driver import EPOCH, Driver
from engine.watched_job import table, watched_jobs

import shardproc.engine
from bunqueue.model.job import ACTIVE, COMPLETED, FAILED, REMOVED, STATE_NAMES, TRANSITIONS, WAITING

# Legal, but not seen here: a copy of the job makes it (moves), or it is tested elsewhere.
LATER = {
    ("waiting", "delayed"),
    ("completed", "waiting"),
    ("completed", "unknown"),
    ("failed", "unknown"),
    ("waiting", "waiting-children"),
}


class Life(Driver):
    """Shortcuts for a job's life."""

    def push(self, **options: Any) -> str:
        return str(self.ask(cmd="PUSH", queue="q", **options)["id"])

    def pull(self, conn: int = 1, **options: Any) -> dict[str, Any]:
        reply = self.ask(conn, cmd="PULL", queue="q", **options)
        assert reply["job"] is not None
        return reply

    def after(self, ms: int) -> None:
        for _ in range(ms // 5000):
            self.tick(self.now + 5000)
        self.tick(self.now + ms % 5000)
        self.commit()

    def state(self, job_id: str) -> str:
        return str(self.ask(cmd="GetState", id=job_id)["state"])


def live_with_others(life: Life) -> None:
    """What dependencies and children do to a job."""
    dep = life.push(priority=9)
    after, later, gone = (life.push(priority=8, dependsOn=[dep], delay=delay) for delay in (0, 50, 0))
    assert life.ask(cmd="Cancel", id=gone)["ok"]
    life.pull()
    life.ask(cmd="ACK", id=dep)
    assert [life.state(job_id) for job_id in (after, later)] == ["waiting", "delayed"]
    assert life.pull()["job"]["id"] == after
    assert life.ask(cmd="MoveToWaitingChildren", id=after)["ok"]
    assert life.ask(cmd="UpdateParent", childId=life.push(), parentId=later)["ok"]
    life.push(priority=9, jobId="child", parentId="parent", failParentOnFailure=True)
    parent = life.push(jobId="parent", dependsOn=["child"])
    life.pull()
    life.ask(cmd="FAIL", id="child", unrecoverable=True)
    assert life.state(parent) == "failed"


def live_as_flow(life: Life) -> None:
    """Cancelled while a job waits for another, retried as a whole, and once more when it has completed."""
    queue = "flows"
    nodes = [
        {"name": name, "queue": queue, "after": after, "input": {"data": {}}}
        for name, after in (("first", []), ("then", ["first"]))
    ]
    life.ask(cmd="AddFlow", flow="f", nodes=nodes)
    life.ask(cmd="CancelFlow", flow="f")
    assert life.state("f:then") == "cancelled"
    for retried in ({}, {"node": "first"}):
        life.ask(cmd="RetryFlow", flow="f", **retried)
        assert life.ask(cmd="GetFlow", flow="f")["data"]["counts"] == {"waiting": 1, "waiting-children": 1}
        for name in ("first", "then"):
            life.ask(cmd="PULL", queue=queue)
            life.ask(cmd="ACK", id=f"f:{name}")
            assert life.state(f"f:{name}") == "completed"


def live_through_everything(life: Life) -> None:
    """Every function of lifecycle, in every direction."""
    done = life.push()
    life.pull()
    life.ask(cmd="ACK", id=done)
    assert life.state(done) == "completed"
    live_as_flow(life)

    gone = life.push(removeOnComplete=True)
    life.pull()
    life.ask(cmd="ACK", id=gone)
    assert life.state(gone) == "unknown"

    retried = life.push(delay=10, backoff=100, maxAttempts=2)
    assert life.state(retried) == "delayed"
    life.after(10)
    life.pull()
    life.ask(cmd="FAIL", id=retried)
    assert life.state(retried) == "delayed"
    life.after(400)
    life.pull()
    life.ask(cmd="FAIL", id=retried)
    assert life.state(retried) == "failed"
    assert life.ask(cmd="RetryDlq", queue="q")["count"] == 1
    assert life.state(retried) == "waiting"
    life.pull()
    life.ask(cmd="FAIL", id=retried, unrecoverable=True)
    assert life.state(retried) == "failed"

    at_once = life.push(backoff=0, timeout=50, removeOnFail=True, maxAttempts=2)
    life.pull()
    life.after(50)
    assert life.state(at_once) == "waiting"
    life.pull()
    life.after(50)
    assert life.state(at_once) == "unknown"

    expired = life.push(ttl=1)
    life.after(1)
    assert life.ask(cmd="PULL", queue="q")["job"] is None
    assert life.state(expired) == "unknown"

    lost = life.push()
    token = life.pull(owner="w", lockTtl=1)["token"]
    life.after(10_000)
    assert life.state(lost) == "waiting"
    life.ask(cmd="ACK", id=lost, token=token)
    assert life.state(lost) == "completed"

    lost = life.push(removeOnComplete=True)
    token = life.pull(owner="w", lockTtl=1)["token"]
    life.after(10_000)
    life.ask(cmd="ACK", id=lost, token=token)
    assert life.state(lost) == "unknown"

    later = life.push()
    life.ask(cmd="ChangeDelay", id=later, delay=50)
    assert life.state(later) == "delayed"
    life.ask(cmd="Discard", id=later)
    assert life.state(later) == "failed"
    later = life.push()
    life.ask(cmd="Discard", id=later)
    assert life.state(later) == "failed"
    for delay in (0, 50):
        later = life.push(delay=delay)
        life.ask(cmd="Cancel", id=later)
        assert life.state(later) == "unknown"

    stalled = life.push()
    life.pull()
    life.after(45_000)
    assert life.state(stalled) == "waiting"
    life.pull(conn=2)
    life.disconnect(2)
    assert life.state(stalled) == "waiting"
    live_with_others(life)


def live_as_workflows(life: Life) -> None:
    """What waiting for signals does to a job."""
    for end, state in (("Cancel", "cancelled"), ("RemoveJob", "unknown"), ("SendSignal", "waiting")):
        flow = life.push(priority=100, workflow=True)
        token = life.pull(owner="w")["token"]
        wait = {"id": flow, "token": token, "name": "s", "kind": "signal", "status": "waiting", "signal": "s"}
        life.ask(cmd="RecordSteps", queue="q", steps=[wait])
        life.ask(cmd="SuspendJob", queue="q", id=flow, token=token, groups=[{"steps": ["s"]}])
        assert life.state(flow) == "waiting-signal"
        assert life.ask(cmd=end, id=flow, name="s")["ok"]
        assert life.state(flow) == state


def test_every_change_is_in_the_table_and_every_row_is_used(tmp_path: Path) -> None:
    with watched_jobs() as seen:
        life = Life(str(tmp_path / "one.db"))
        live_through_everything(life)
        live_as_workflows(life)
        kept = life.push()
        locked = life.pull(owner="w")
        life.push(delay=1000)
        now = life.now
        life.close()
        life = Life(str(tmp_path / "one.db"), now=now, epoch=EPOCH)
        life.ask(cmd="ACK", id=locked["job"]["id"], token=locked["token"])
        life.after(1000)
        assert life.state(kept) in ("waiting", "completed")
        life.close()
    assert seen <= table()
    assert table() - seen <= LATER, "a row of the table that no code makes"


def test_the_table_is_whole() -> None:
    states = set(range(len(STATE_NAMES)))
    assert TRANSITIONS.keys() == states
    for before, all_ in TRANSITIONS.items():
        assert all_ <= states
        assert before not in all_, "a state does not change into itself"
    assert not TRANSITIONS[REMOVED], "what is gone stays gone"
    assert ACTIVE not in TRANSITIONS[COMPLETED] | TRANSITIONS[FAILED], "only waiting jobs are pulled"
    assert [before for before in states if ACTIVE in TRANSITIONS[before]] == [WAITING]


def test_the_names_of_the_states_are_those_of_the_wire() -> None:
    assert STATE_NAMES == (
        "waiting",
        "delayed",
        "active",
        "completed",
        "failed",
        "unknown",
        "waiting-children",
        "waiting-signal",
    )


def assignments_of_state(path: Path) -> list[int]:
    """Lines of a module that write an attribute called ``state`` of something that is not ``self``."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            for one in ast.walk(target):
                if isinstance(one, ast.Attribute) and one.attr == "state" and isinstance(one.ctx, ast.Store):
                    owner = one.value
                    if not (isinstance(owner, ast.Name) and owner.id == "self"):
                        found.append(node.lineno)
    return found


def test_only_lifecycle_changes_the_state_of_a_live_job() -> None:
    """The docstring of `Job` promises it."""
    folder = Path(str(shardproc.engine.__file__)).parent
    writers = {
        path.relative_to(folder).as_posix(): assignments_of_state(path)
        for path in sorted(folder.rglob("*.py"))
    }
    for name in [name for name in writers if name.startswith("lifecycle/")]:
        del writers[name]
    assert not any(writers.values()), writers


@pytest.mark.parametrize("backoff", [0, 1000])
def test_a_job_between_attempts_is_delayed_or_waiting_by_its_run_at_alone(backoff: int) -> None:
    life = Life()
    job_id = life.push(backoff=backoff)
    life.pull()
    life.ask(cmd="FAIL", id=job_id)
    job = life.ask(cmd="GetJob", id=job_id)["job"]
    assert job["state"] == ("delayed" if job["runAt"] > life.now else "waiting")
    assert (job["runAt"] > life.now) == bool(backoff)
    life.close()

"""A job that is pulled while its worker still has it: the same run under another lock, or the next one.

The answer that a run is over and the next run come over different connections: the next run may be first.
"""

from __future__ import annotations

from typing import Any, cast

import pytest
from engine.workflow_world import ALPHA, Workflows
from msgspec import Raw, msgpack

from bunqueue.worker.active_job import ActiveJob


def pulled(flows: Workflows) -> ActiveJob[Any]:
    job = ActiveJob[Any](Raw(msgpack.encode(flows.run("w"))), "token", cast(Any, None))
    job.failing = True  # how it ended is being said
    return job


@pytest.fixture
def first(flows: Workflows) -> ActiveJob[Any]:
    flows.start("w", maxAttempts=3)
    job = pulled(flows)
    flows.done("w", "a", 1, undo=True)
    return job


def test_an_undo_is_another_run(flows: Workflows, first: ActiveJob[Any]) -> None:
    flows.fail("w", unrecoverable=True)
    assert not first.is_same_run(pulled(flows))


def test_a_run_after_a_wait_is_another_run(flows: Workflows, first: ActiveJob[Any]) -> None:
    flows.wait("w", "go", "go")
    flows.suspend("w", ["go"])
    flows.signal("w", "go")
    assert not first.is_same_run(pulled(flows))


def test_a_workflow_that_begins_anew_is_another_run(flows: Workflows, first: ActiveJob[Any]) -> None:
    flows.ok("ContinueAsNew", queue=ALPHA, data={}, **flows.held("w"))
    assert not first.is_same_run(pulled(flows))


def test_the_same_run_under_another_lock_is_none(flows: Workflows, first: ActiveJob[Any]) -> None:
    flows.ok(
        "MoveToWait", **{name: flows.held("w")[name] for name in ("id", "token")}
    )  # as when a connection ends
    assert first.is_same_run(pulled(flows))

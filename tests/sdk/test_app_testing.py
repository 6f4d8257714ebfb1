"""Apps in the test kit: their jobs are run by `drain`, with their middleware, and time stands still."""

from __future__ import annotations

from typing import Any

from bunqueue import ActiveJob, Bunqueue, CallNext, Postpone
from bunqueue.testing import Sandbox


def test_the_jobs_of_an_app_can_be_drained(bunqueue: Sandbox) -> None:
    app = Bunqueue("app-kit")
    seen: list[Any] = []

    @app.use
    async def note(job: ActiveJob, call_next: CallNext) -> Any:
        seen.append(job.name)
        return await call_next(job)

    @app.job
    def double(number: int) -> int:
        return number * 2

    @app.job(queue="app-kit-b")
    def later() -> str:
        if len(seen) < 4:
            raise Postpone(60_000)
        return "now"

    handle = double.add(4)
    put_off = later.add()
    app.add("unheard-of")
    ran = bunqueue.drain(app, within=180_000)
    assert handle.result() == 8
    assert put_off.result() == "now"
    assert [(run.name, run.outcome) for run in ran if run.name == "double"] == [("double", "completed")]
    assert [run.outcome for run in ran if run.name == "later"][-2:] == ["postponed", "completed"]
    assert {run.outcome for run in ran if run.name == "unheard-of"} == {"postponed"}
    app.close()

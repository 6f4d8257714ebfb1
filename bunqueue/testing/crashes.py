"""Run a workflow repeatedly, with a crash at a different point each time: the result must always be the
same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from bunqueue.client.options.moments import When

from .sandbox import LIMIT, Sandbox
from .sources import Source

YEAR = timedelta(days=365)


class Started(Protocol):
    """The handle of a workflow that was started."""

    def signal(self, name: str, data: object = None) -> bool: ...

    def state(self) -> str: ...

    def job(self) -> Any: ...

    def result(self, timeout: Any = ...) -> Any: ...


@dataclass(frozen=True, slots=True)
class CrashReport:
    """The result of `run_with_crashes`."""

    state: str
    """The final state of the workflow: completed, failed, cancelled or stuck."""
    result: Any
    """Its result, or the text of its error."""
    observed: Any
    """The return value of `observe`."""
    crashes: int
    """The number of runs with a crash."""


def run_with_crashes(
    start: Callable[[], Started],
    *sources: Source,
    signals: Mapping[str, Any] | None = None,
    observe: Callable[[], Any] | None = None,
    within: When = YEAR,
    limit: int = LIMIT,
) -> CrashReport:
    """Run a workflow without a crash. Then run it twice for each thing that its workers report, such as a
    finished step: in one run the worker dies just before the report is stored, in the other just after.

        report = run_with_crashes(lambda: order.start(Order(...)), app, signals={"approval": True})

    Every run has a sandbox of its own, in which time advances as needed. `start` starts the workflow, and
    resets whatever the steps change; `sources` are what `drain` takes. `signals` are sent at the start.
    Raises AssertionError if the outcome of a run, or the value of `observe`, differs from that of the first
    run.
    """
    runs = _Runs(start, sources, signals or {}, observe, within, limit)
    expected, reports = runs.run(None)
    assert expected[0] in ENDED, f"the workflow has not ended: its state is {expected[0]!r} after {within}"
    for nth in range(1, reports + 1):
        for stored in (False, True):
            found, _ = runs.run((nth, stored))
            if found != expected:
                when = "after" if stored else "before"
                raise AssertionError(
                    f"with a crash just {when} report {nth} of {reports} was stored, the workflow ended as "
                    f"{found}, and without as {expected}"
                )
    return CrashReport(*expected, crashes=2 * reports)


ENDED = ("completed", "failed", "cancelled", "stuck", "unknown")
Outcome = tuple[str, Any, Any]


@dataclass(frozen=True, slots=True)
class _Runs:
    start: Callable[[], Started]
    sources: tuple[Source, ...]
    signals: Mapping[str, Any]
    observe: Callable[[], Any] | None
    within: When
    limit: int

    def run(self, crash: tuple[int, bool] | None) -> tuple[Outcome, int]:
        """Return the outcome and the number of reports."""
        with Sandbox() as sandbox:
            handle = self.start()
            for name, data in self.signals.items():
                handle.signal(name, data)
            if crash is not None:
                nth, stored = crash
                sandbox.faults.crash_in_report(nth=nth, stored=stored)
            sandbox.drain_until(
                lambda: handle.state() in ENDED, *self.sources, within=self.within, limit=self.limit
            )
            return self._outcome(handle), sandbox.faults.reports

    def _outcome(self, handle: Started) -> Outcome:
        state = handle.state()
        result = handle.result() if state == "completed" else None
        if state not in ("completed", "unknown"):
            result = handle.job().error
        return state, result, None if self.observe is None else self.observe()

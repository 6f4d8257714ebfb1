"""What counts as an attempt, as a failure, and as one kind of error."""

from __future__ import annotations

from typing import Any

import pytest
from support.made_up_history import BEGIN, History

from bunqueue.analytics import pipeline
from bunqueue.analytics.engine import Engine
from bunqueue.model.errors_alike import kind_of

SECOND = 1_000


def tables(engine: Engine, history: History) -> dict[str, list[dict[str, Any]]]:
    found = pipeline.aggregate(engine, history.give_to(engine)).tables
    return {name: table.to_pylist() for name, table in found.items()}


def undone(history: History, state: str, *, is_gone: bool = False) -> None:
    """A workflow that fails once, and is undone in two runs, the first of which fails as well."""
    job = history.job("pay", BEGIN, state=state, worker="ada", attempts=1)
    history.event(job, BEGIN, "pushed")
    history.event(job, BEGIN + SECOND, "pulled")
    history.event(job, BEGIN + 2 * SECOND, "failed", error="Boom", terminal=False)
    history.event(job, BEGIN + 2 * SECOND, "undoing", reason="max_attempts_exceeded")
    history.attempt(job, BEGIN + SECOND, BEGIN + 2 * SECOND, "explicit_fail", error="Boom")
    for begin, last in ((3, False), (5, True)):
        history.event(job, BEGIN + begin * SECOND, "pulled")
        error = "Boom" if last else "no way back"
        why = {"reason": "stuck"} if state == "stuck" and last else {}
        history.event(job, BEGIN + (begin + 1) * SECOND, "failed", error=error, terminal=last, **why)
        history.attempt(
            job, BEGIN + begin * SECOND, BEGIN + (begin + 1) * SECOND, "explicit_fail", error=error
        )
    job |= {"started_at": BEGIN + 5 * SECOND, "finished_at": BEGIN + 6 * SECOND}
    if is_gone:
        history.event(job, BEGIN + 7 * SECOND, "removed")
        history.rows["jobs"].clear()
        history.rows["attempts"].clear()


@pytest.mark.parametrize("state", ["failed", "stuck", "gone"])
def test_an_undo_is_no_attempt(duck: Engine, state: str) -> None:
    history = History()
    undone(history, state.replace("gone", "failed"), is_gone=state == "gone")
    found = tables(duck, history)
    (row,) = found["totals"]
    assert (row["failed"], row["attempts"], row["failed_attempts"]) == (1, 1, 1)
    assert (row["run_total"], row["retried"]) == (SECOND, 0)
    (failure,) = found["failures"]
    assert (failure["pattern"], failure["attempts"]) == ("Boom", 1)


def test_errors_that_differ_in_numbers_are_one_kind(duck: Engine) -> None:
    """That of the dead letters' groups; not where a number is an HTTP status, or the class is another one."""
    history = History()
    texts = [(f"order {number} is gone", "ValueError") for number in range(900)]
    texts += [(f"HTTPError: {status} for order 7", "HTTPError") for status in (404, 503)]
    texts += [("order 7 is gone", None), ("", None)]
    for error, error_type in texts:
        job = history.job("pay", BEGIN, state="failed", attempts=1)
        job |= {"started_at": BEGIN, "finished_at": BEGIN + SECOND}
        history.attempt(
            job, BEGIN, BEGIN + SECOND, "explicit_fail", error=error or None, error_type=error_type
        )
    found = {(row["error_type"], row["pattern"]): row for row in tables(duck, history)["failures"]}
    assert {key: row["attempts"] for key, row in found.items()} == {
        ("ValueError", "order # is gone"): 900,
        ("HTTPError", "HTTPError: 404 for order #"): 1,
        ("HTTPError", "HTTPError: 503 for order #"): 1,
        ("", "order # is gone"): 1,
        ("", ""): 1,
    }
    assert found["ValueError", "order # is gone"]["kind"] == kind_of("ValueError", "order 3 is gone")

"""The books of the fault tests: what they allow for, and that they allow for nothing else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from support import ledger as books
from support.ledger import Lease, Ledger, payload

JOB = "job-1"


class Clock:
    """The time that the ledger sees, ms."""

    now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(books, "now_ms", clock)
    return clock


@pytest.fixture
def ledger() -> Ledger:
    ledger = Ledger()
    ledger.pushing("n", "q")
    ledger.pushed("n", JOB)
    return ledger


def connection() -> Any:
    return SimpleNamespace(
        ended=SimpleNamespace(is_set=lambda: False), ended_at=0.0, closing_at=0.0, alive=True
    )


def deliver(ledger: Ledger, clock: Clock, worker: str, token: str | None) -> Lease:
    job = {"id": JOB, "startedAt": clock.now, "attempts": 0, "data": payload("n", 10)}
    return ledger.delivered(job, "q", worker, token, 10_000.0, connection())


def fail(ledger: Ledger, clock: Clock, lease: Lease, *, again: bool) -> None:
    """A FAIL that is answered 10 ms later; for one that is sent again the first reply was lost."""
    lease.failed_at = lease.failed_at or clock.now
    ledger.fails_sent[JOB] += not again
    answer = ledger.answering(lease, lease.wire, repeats=again)
    clock.now += 10
    ledger.answered(answer)
    ledger.fail_answered(lease, None, first=not again)


def ack(ledger: Ledger, clock: Clock, lease: Lease, error: str | None = None) -> None:
    ledger.results_sent[JOB].append(lease.worker)
    answer = ledger.answering(lease, lease.wire)
    clock.now += 10
    ledger.answered(answer)
    ledger.ack_answered(lease, lease.worker, error)


def problems(ledger: Ledger, attempts: int) -> list[str]:
    by = ledger.acked[JOB].result
    found = {"id": JOB, "state": "completed", "attempts": attempts, "stallCount": 0, "maxAttempts": 3}
    return ledger.problems([found | {"returnvalue": by, "data": payload("n", 10)}])


@pytest.mark.parametrize("token", [None, "token-2"], ids=["unlocked", "locked"])
def test_a_repeated_fail_counts_again_only_where_no_token_is_asked_for(
    ledger: Ledger, clock: Clock, token: str | None
) -> None:
    first = deliver(ledger, clock, "failer", "token-1")
    first.failed_at, ledger.fails_sent[JOB] = clock.now, 1  # its reply is lost
    clock.now += 50
    second = deliver(ledger, clock, "second", token)
    clock.now += 50
    fail(ledger, clock, first, again=True)
    ack(ledger, clock, second, "Job not found or not in processing state")
    clock.now += 50
    ack(ledger, clock, deliver(ledger, clock, "third", "token-3"))
    assert bool(problems(ledger, attempts=2)) is (token is not None)
    assert problems(ledger, attempts=3)


def test_a_repeated_fail_does_not_count_after_the_unlocked_holder_has_answered(
    ledger: Ledger, clock: Clock
) -> None:
    first = deliver(ledger, clock, "failer", "token-1")
    first.failed_at, ledger.fails_sent[JOB] = clock.now, 1
    clock.now += 50
    fail(ledger, clock, deliver(ledger, clock, "second", None), again=False)
    clock.now += 50
    fail(ledger, clock, first, again=True)
    clock.now += 50
    ack(ledger, clock, deliver(ledger, clock, "third", "token-3"))
    assert problems(ledger, attempts=2) == []
    assert problems(ledger, attempts=3)


@pytest.mark.parametrize("late", [True, False])
def test_an_unlocked_holder_loses_its_job_only_to_another_answer(
    ledger: Ledger, clock: Clock, late: bool
) -> None:
    first = deliver(ledger, clock, "dawdler", "token-1")
    clock.now = first.lock_until + 5_000
    second = deliver(ledger, clock, "second", None)
    clock.now += 50
    if late:
        ack(ledger, clock, first)
        ack(ledger, clock, second, "Job not found or not in processing state")
    else:
        ack(ledger, clock, second, "Job not found or not in processing state")
        ack(ledger, clock, first)
    assert bool(problems(ledger, attempts=0)) is not late

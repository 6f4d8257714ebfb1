"""When acknowledgements leave, and what happens when the server says no or says nothing."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Iterator
from typing import Any, cast

import msgpack
import pytest
from msgspec import Raw, Struct

from bunqueue import (
    BunqueueError,
    CommandFailed,
    ConnectionLost,
    Job,
    JobCancelled,
    JobInterrupted,
    JobNotFound,
    JobStopped,
    LockLost,
    PayloadError,
    Postpone,
    Retry,
    ShardUnavailable,
)
from bunqueue.client.connection.caller import AsyncCaller
from bunqueue.client.models.jobs import OneJob
from bunqueue.protocol.commands import core, query
from bunqueue.protocol.commands.base import Refusal
from bunqueue.worker.active_job import ActiveJob, JobChannel
from bunqueue.worker.outcomes import Outcomes
from bunqueue.worker.reporting import reporter as module
from bunqueue.worker.reporting import retrying_caller
from bunqueue.worker.reporting.reporter import Reporter

FAR = 1000.0  # seconds: a delay that never ends in a test


class StubCaller:
    """Answers with what `script` gives for a command: a reply, or an exception to raise."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.script: Callable[[Any], Any] = lambda command: None
        self.gate = asyncio.Event()
        self.gate.set()

    async def call(self, command: Struct, reply: type[Any]) -> Any:
        self.sent.append(command)
        await self.gate.wait()
        answer = self.script(command)
        if isinstance(answer, BaseException):
            raise answer
        if isinstance(command, core.FailBatch) and answer is None:
            return core.FailBatchReply(results=[core.FailAnswer(delay=1.0) for _ in command.ids])
        if isinstance(command, query.GetState):
            return answer or query.StateReply(id=command.id, state="active")
        return answer or reply()

    def batches(self) -> list[list[str]]:
        return [command.ids for command in self.sent if isinstance(command, core.AckBatch)]


class Notes:
    """A listener that takes notes."""

    def __init__(self) -> None:
        self.completed: list[tuple[str, object]] = []
        self.failed: list[str] = []
        self.acked: list[str] = []
        self.lost: list[tuple[str, str]] = []
        self.stopped: list[tuple[str, JobStopped]] = []
        self.troubles: list[BunqueueError] = []

    def job_completed(self, job: ActiveJob, value: object) -> None:
        self.completed.append((job.id, value))

    def job_failed(self, job: ActiveJob, error: BaseException, delay: float | None = None) -> None:
        self.failed.append(job.id)

    def job_acked(self, job: ActiveJob) -> None:
        self.acked.append(job.id)

    def job_stopped(self, job: ActiveJob, error: JobStopped) -> None:
        self.stopped.append((job.id, error))

    def job_lost(self, job: ActiveJob, why: str) -> None:
        self.lost.append((job.id, why))

    def has_lock(self, job: ActiveJob) -> bool:
        told = [*self.completed, *self.lost, *self.stopped, *((each, None) for each in self.failed)]
        return job.id not in [each[0] for each in told]

    def unreachable(self, error: BunqueueError) -> None:
        self.troubles.append(error)


def job(number: int, **fields: Any) -> ActiveJob:
    raw = msgpack.packb({"id": f"j{number}", "queue": "q", **fields})
    return ActiveJob(Raw(raw), f"t{number}", cast(JobChannel, None))


RESULT = Raw(b"\xc0")


class Bench:
    """Reporter with a stub on one side and notes on the other."""

    def __init__(self, delay: float = FAR) -> None:
        self.caller = StubCaller()
        self.notes = Notes()
        self.sent = 0
        caller = retrying_caller.RetryingCaller(cast(AsyncCaller, self.caller), cast(Outcomes, self.notes))
        self.outcomes = Reporter(
            caller.ask, cast(Outcomes, self.notes), self._sent, lambda task: None, batch=10, delay=delay
        )

    def _sent(self) -> None:
        self.sent += 1

    def complete(self, *numbers: int) -> None:
        for number in numbers:
            self.outcomes.complete(job(number), RESULT, number)

    async def turns(self, count: int = 10) -> None:
        for _ in range(count):
            await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(retrying_caller, "reconnect_delay", lambda failures, chance: 0.0)
    return


async def test_ten_leave_at_once_and_fewer_wait() -> None:
    bench = Bench()
    bench.complete(*range(9))
    await bench.turns()
    assert bench.caller.sent == []
    bench.complete(9)
    await bench.turns()
    assert bench.caller.batches() == [[f"j{number}" for number in range(10)]]
    assert bench.caller.sent[0].tokens == [f"t{number}" for number in range(10)]
    assert bench.notes.completed == [(f"j{number}", number) for number in range(10)]
    await bench.outcomes.stop()


async def test_a_few_leave_when_the_delay_is_over() -> None:
    bench = Bench(delay=0.01)
    bench.complete(1, 2)
    await asyncio.wait_for(bench.outcomes._empty.wait(), 60)
    assert bench.caller.batches() == [["j1", "j2"]]
    await bench.outcomes.stop()


async def test_a_few_leave_at_once_when_there_is_nothing_else_to_do() -> None:
    bench = Bench()
    bench.complete(1, 2)
    bench.outcomes.flush()
    await bench.turns()
    assert bench.caller.batches() == [["j1", "j2"]]
    await bench.outcomes.stop()


async def test_what_queues_up_during_a_flush_leaves_in_one_batch() -> None:
    bench = Bench()
    bench.caller.gate.clear()
    bench.complete(*range(10))
    await bench.turns()
    bench.complete(*range(10, 45))
    await bench.turns()
    bench.caller.gate.set()
    await bench.turns()
    assert [len(batch) for batch in bench.caller.batches()] == [10, 35]
    await bench.outcomes.stop()


async def test_batches_are_bounded_by_number_and_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BATCH", 20)
    monkeypatch.setattr(module, "MAX_BATCH_BYTES", 100)
    bench = Bench()
    bench.complete(*range(45))
    bench.outcomes.complete(job(45), Raw(b"\xc4\x5a" + b"x" * 90), b"")
    bench.outcomes.complete(job(46), Raw(b"\xc4\x5a" + b"x" * 90), b"")
    await bench.outcomes.drain()
    assert [len(batch) for batch in bench.caller.batches()] == [20, 20, 6, 1]
    assert len(bench.notes.completed) == 47
    await bench.outcomes.stop()


async def test_lost_connections_do_not_lose_acknowledgements() -> None:
    bench = Bench()
    failures: list[Any] = [ConnectionLost("gone"), ShardUnavailable("x", reason="Shard unavailable"), None]
    bench.caller.script = lambda command: failures.pop(0)
    bench.complete(1, 2)
    await bench.outcomes.drain()
    assert bench.caller.batches() == [["j1", "j2"]] * 3
    assert [command.tokens for command in bench.caller.sent] == [["t1", "t2"]] * 3
    assert bench.notes.completed == [("j1", 1), ("j2", 2)]
    assert len(bench.notes.troubles) == 2
    await bench.outcomes.stop()


async def test_one_wrong_token_costs_one_job() -> None:
    def script(command: Any) -> Any:
        if isinstance(command, core.AckBatch) or command.id == "j2":
            text = "Invalid or expired lock token for job j2"
            return LockLost(text, reason=text)
        return None

    bench = Bench()
    bench.caller.script = script
    bench.complete(1, 2, 3)
    await bench.outcomes.drain()
    assert sorted(bench.notes.completed) == [("j1", 1), ("j3", 3)]
    assert bench.notes.lost == [("j2", "Invalid or expired lock token for job j2")]
    await bench.outcomes.stop()


async def test_jobs_that_a_batch_completed_before_it_was_refused_count_as_completed() -> None:
    """The server completes what it can of a batch with an unknown job."""

    def script(command: Any) -> Any:
        if isinstance(command, query.GetState):
            return query.StateReply(id=command.id, state="unknown" if command.id == "j2" else "completed")
        text = "Job not found or not in processing state: j2"
        return LockLost(text, reason=text)

    bench = Bench()
    bench.caller.script = script
    bench.complete(1, 2, 3)
    await bench.outcomes.drain()
    assert sorted(bench.notes.completed) == [("j1", 1), ("j3", 3)]
    assert [lost for lost, _ in bench.notes.lost] == ["j2"]
    await bench.outcomes.stop()


async def test_a_result_that_the_server_refuses_ends_the_job() -> None:
    def script(command: Any) -> Any:
        return None if isinstance(command, core.Fail) else CommandFailed("x", reason="result too large")

    bench = Bench()
    bench.caller.script = script
    bench.complete(1)
    await bench.outcomes.drain()
    assert bench.notes.failed == ["j1"]
    assert bench.caller.sent[-1].error.startswith("the result was refused: result too large; ")
    assert bench.caller.sent[-1].unrecoverable
    await bench.outcomes.stop()


async def test_what_does_not_fit_into_a_frame_costs_its_own_job_only() -> None:
    def script(command: Any) -> Any:
        ids = command.ids if isinstance(command, core.AckBatch) else [command.id]
        fits = isinstance(command, core.Fail) or "j1" not in ids
        return None if fits else PayloadError("ACK of job j1 has 70000000 bytes, a frame holds 67108864")

    bench = Bench()
    bench.caller.script = script
    bench.complete(1, 2)
    await asyncio.wait_for(bench.outcomes.drain(), 60)
    assert bench.notes.completed == [("j2", 2)]
    assert bench.notes.failed == ["j1"]
    (failure,) = [command for command in bench.caller.sent if isinstance(command, core.Fail)]
    assert str(failure.error).startswith("the result was refused: ACK of job j1 has 70000000 bytes")
    assert failure.unrecoverable
    await bench.outcomes.stop()


@pytest.mark.parametrize(
    ("delay", "text"),
    [
        ("soon", "OptionError: Postpone: delay: 'soon' is no span of time; give ms, or "),
        (-1, "OptionError: delay must be at least 0, not -1"),
        (float("nan"), "OptionError: Postpone: delay: nan is not a time"),
        (10**12, "OptionError: delay must be at most 31536000000, not 1000000000000"),
    ],
)
async def test_a_postpone_that_cannot_be_fails_the_attempt(delay: Any, text: str) -> None:
    bench = Bench()
    bench.outcomes.fail(job(1), Postpone(delay))
    bench.complete(2)
    await asyncio.wait_for(bench.outcomes.drain(), 60)
    (failure,) = [command for command in bench.caller.sent if isinstance(command, core.Fail)]
    assert failure.error.startswith(text)
    assert (bench.notes.failed, bench.notes.completed, bench.notes.stopped) == (["j1"], [("j2", 2)], [])
    await bench.outcomes.stop()


@pytest.mark.parametrize("error", [Retry(5), Postpone(5, "busy", max=3)])
def test_what_handlers_raise_may_be_pickled(error: Retry | Postpone) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.delay) == (type(error), str(error), 5)
    assert getattr(again, "max", None) == getattr(error, "max", None)


async def test_a_retry_that_cannot_be_fails_the_attempt() -> None:
    bench = Bench()
    bench.outcomes.fail(job(1), Retry("soon"))
    await asyncio.wait_for(bench.outcomes.drain(), 60)
    (failure,) = bench.caller.sent
    assert failure.error.startswith("OptionError: Retry: delay: 'soon' is no span of time")
    assert failure.delay is None
    await bench.outcomes.stop()


async def test_that_another_job_was_stopped_is_a_failure_like_any_other() -> None:
    bench = Bench()
    for number, error in enumerate([JobCancelled("of a child"), JobInterrupted("elsewhere")]):
        bench.outcomes.fail(job(number), error)
    bench.outcomes.stop_short(job(2), JobInterrupted("here"))
    await bench.outcomes.drain()
    assert bench.notes.failed == ["j0", "j1"]
    assert [stopped for stopped, _ in bench.notes.stopped] == ["j2"]
    (command,) = bench.caller.sent
    assert command.tokens == ["t0", "t1", "t2"]
    assert [failure.interrupted for failure in command.failures] == [False, False, True]
    await bench.outcomes.stop()


async def test_what_nobody_foresaw_concerns_its_own_jobs_only(caplog: pytest.LogCaptureFixture) -> None:
    def script(command: Any) -> Any:
        return ZeroDivisionError("nobody foresaw it") if isinstance(command, core.AckBatch) else None

    bench = Bench()
    bench.caller.script = script
    bench.complete(1)
    bench.outcomes.fail(job(2), ValueError("x"))
    await bench.outcomes.drain()
    assert bench.notes.lost == [("j1", "it could not be reported: ZeroDivisionError")]
    assert bench.notes.failed == ["j2"]
    assert "outcomes of 1 jobs could not be reported" in caplog.text
    bench.caller.script = lambda command: None
    bench.complete(3)
    await bench.outcomes.drain()
    assert bench.notes.completed == [("j3", 3)]
    await bench.outcomes.stop()


async def test_who_is_told_may_raise_anything() -> None:
    bench = Bench()
    bench.notes.job_failed = _exit  # type: ignore[assignment]
    bench.outcomes.fail(job(1), ValueError("x"))
    bench.complete(2)
    await bench.outcomes.drain()
    assert bench.notes.completed == [("j2", 2)]
    await bench.outcomes.stop()


def _exit(*arguments: object) -> None:
    raise SystemExit(3)


async def test_failures_leave_in_batches_and_each_has_its_own_answer() -> None:
    def script(command: Any) -> Any:
        answers = {
            "j1": core.FailAnswer(delay=5.0),
            "j2": core.FailAnswer(),
            "j3": core.FailAnswer(refused=Refusal(error="Invalid or expired lock token", code="LOCK_LOST")),
            "j4": core.FailAnswer(data=core.Applied(False, "already-finalized")),
        }
        return core.FailBatchReply(results=[answers[each] for each in command.ids])

    bench = Bench()
    bench.caller.script = script
    for number in (1, 2, 3, 4):
        bench.outcomes.fail(job(number), ValueError(f"x{number}"))
    await bench.outcomes.drain()
    (command,) = bench.caller.sent
    assert [failure.error for failure in command.failures] == [
        f"ValueError: x{each}" for each in (1, 2, 3, 4)
    ]
    assert bench.notes.failed == ["j1", "j2"]
    assert [lost for lost, _ in bench.notes.lost] == ["j3", "j4"]
    await bench.outcomes.stop()


async def test_a_place_is_free_when_its_outcome_is_on_its_way() -> None:
    bench = Bench()
    bench.caller.gate.clear()
    bench.complete(*range(9))
    bench.outcomes.fail(job(10), ValueError("x"))
    assert bench.outcomes.unsent == 10
    await bench.turns()
    assert (bench.outcomes.unsent, bench.sent) == (0, 1)
    bench.complete(11)
    await bench.turns()
    assert bench.outcomes.unsent == 1  # one command at a time
    bench.caller.gate.set()
    await bench.outcomes.drain()
    assert bench.outcomes.unsent == 0
    await bench.outcomes.stop()


async def test_late_answers_count_as_lost() -> None:
    def script(command: Any) -> Any:
        if isinstance(command, core.AckBatch):
            return core.AckBatchReply(data=core.Ignored(["j2"], [1]))
        return core.AckReply(data=core.Applied(False, "already-finalized"))

    bench = Bench()
    bench.caller.script = script
    bench.complete(1, 2)
    bench.outcomes.fail(job(3), ValueError("x"))
    await bench.outcomes.drain()
    assert bench.notes.completed == [("j1", 1)]
    assert sorted(lost for lost, _ in bench.notes.lost) == ["j2", "j3"]
    await bench.outcomes.stop()


async def test_a_failure_leaves_with_text_stack_and_token() -> None:
    bench = Bench()
    try:
        raise TypeError("message")
    except TypeError as error:
        bench.outcomes.fail(job(1), error)
    bench.outcomes.flush()
    await bench.turns()
    (command,) = bench.caller.sent
    assert (command.id, command.token, command.error) == ("j1", "t1", "TypeError: message")
    assert command.stack[-1] == "TypeError: message"
    assert bench.notes.failed == ["j1"]
    await bench.outcomes.stop()


async def test_a_failure_of_a_lost_job_counts_as_lost() -> None:
    bench = Bench()
    bench.caller.script = lambda command: LockLost("x", reason="Invalid or expired lock token for job j1")
    bench.outcomes.fail(job(1), ValueError("x"))
    await bench.outcomes.drain()
    assert [lost for lost, _ in bench.notes.lost] == ["j1"]
    await bench.outcomes.stop()


async def test_a_rate_limit_is_waited_out() -> None:
    answers: list[Any] = [CommandFailed("x", reason="Rate limit exceeded"), None]
    bench = Bench()
    bench.caller.script = lambda command: answers.pop(0)
    bench.complete(1)
    await bench.outcomes.drain()
    assert bench.notes.completed == [("j1", 1)]
    await bench.outcomes.stop()


NOT_ACTIVE = "Job not found or not in processing state: j1"


def refused_after_a_lost_reply(look: Any) -> Callable[[Any], Any]:
    """The first try is carried out and its reply lost; the second is refused; then somebody looks."""
    answers = iter([ConnectionLost("gone"), LockLost(NOT_ACTIVE, reason=NOT_ACTIVE)])
    return lambda command: look if isinstance(command, query.GetState | query.GetJob) else next(answers)


@pytest.mark.parametrize("removes", [True, False])
async def test_a_job_that_is_removed_by_its_completion_was_completed(removes: bool) -> None:
    bench = Bench()
    answer = refused_after_a_lost_reply(query.StateReply(id="j1", state="unknown"))
    # The batch is tried twice; then the job is asked for by itself.
    single = LockLost(NOT_ACTIVE, reason=NOT_ACTIVE)
    bench.caller.script = lambda command: single if isinstance(command, core.Ack) else answer(command)
    bench.outcomes.complete(job(1, removeOnComplete=removes), RESULT, 1)
    await bench.outcomes.drain()
    assert bench.notes.completed == ([("j1", 1)] if removes else [])
    assert bench.notes.lost == ([] if removes else [("j1", NOT_ACTIVE)])
    await bench.outcomes.stop()


def found(attempts: int) -> OneJob:
    return OneJob(job=Job(id="j1", queue="q", created_at_ms=1, run_at_ms=1, attempts=attempts))


MISSING = JobNotFound("x", reason="Job not found")


@pytest.mark.parametrize(
    ("look", "removes", "counted"),
    [(found(2), False, True), (found(1), False, False), (MISSING, True, True), (MISSING, False, False)],
    ids=["counted", "not counted", "removed", "gone"],
)
async def test_a_failure_whose_reply_was_lost(look: Any, removes: bool, counted: bool) -> None:
    bench = Bench()
    bench.caller.script = refused_after_a_lost_reply(look)
    bench.outcomes.fail(job(1, attempts=1, removeOnFail=removes), ValueError("x"))
    await bench.outcomes.drain()
    assert bench.notes.failed == (["j1"] if counted else [])
    assert bench.notes.lost == ([] if counted else [("j1", NOT_ACTIVE)])
    await bench.outcomes.stop()

"""ACK, ACKB, FAIL and FAILB: the outcome of a job."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Raw

from bunqueue.model.dead_letters import CANCELLED, EXPLICIT_FAIL, TIMEOUT
from bunqueue.model.job import ACTIVE, DELAYED, FAILED, UNDEFINED, WAITING, Extra, Job
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError, ErrorReply, refusal, refused
from bunqueue.protocol.commands.core import (
    Ack,
    AckBatch,
    AckBatchReply,
    AckReply,
    Applied,
    Fail,
    FailAnswer,
    FailBatch,
    FailBatchReply,
    FailFields,
    FailReply,
    Ignored,
)
from bunqueue.protocol.readable import check_readable, is_readable

from ..lifecycle import transitions
from ..outbox import ROW
from ..registry import handles
from ..state import Client, State

TOO_LATE = "already-finalized"
MAX_STACK = 16_384  # characters of a stack trace that are kept with the attempt
PYTHONS = "Traceback (most recent call last)"  # in the first line of a Python traceback
MAX_VERSION = 64  # characters kept of the version of a program
MAX_LINE, MAX_LINES = 1024, 100  # characters and lines of a stack trace that are kept with the job


class _TooLate(Exception):
    """The job has timed out or was cancelled, so this answer changes nothing."""

    def __init__(self, reason: str, running: Job | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.running = running  # to be ended as cancelled now that its worker has stopped


@handles(Ack)
def ack(state: State, client: Client, command: Ack) -> AckReply:
    try:
        job = _locked_job(state, command.id, command.token)
    except _TooLate as late:
        return _too_late(state, late)
    result, remove = _result(command.result), command.remove_on_complete
    transitions.complete(state, state.queues[job.queue], job, result, remove=remove)
    return AckReply()


@handles(AckBatch)
def ack_batch(state: State, client: Client, command: AckBatch) -> AckBatchReply | ErrorReply:
    """Complete several jobs.  A wrong token refuses the whole batch; an unknown job is reported and the
    others complete."""
    ids, tokens, results, removals = command.ids, command.tokens, command.results, command.remove_on_completes
    check_lengths("ACKB", ids, results=results, tokens=tokens, removeOnCompletes=removals)
    kept = _results(results) if results else None
    jobs: list[tuple[int, Job]] = []
    missing: _NotActive | None = None
    ignored: list[int] = []
    cancelled: list[Job] = []
    for index, job_id in enumerate(ids):
        try:
            jobs.append((index, _locked_job(state, job_id, tokens[index] if tokens else None)))
        except _NotActive as error:
            missing = missing or error
        except _TooLate as late:
            ignored.append(index)
            if late.running is not None:
                cancelled.append(late.running)
    for job in cancelled:
        if job.state == ACTIVE:  # else the same id appears twice
            transitions.cancel(state, job)
    for index, job in jobs:
        if job.id not in state.jobs:  # the same id appears twice in one batch
            missing = missing or _NotActive(job.id)
            continue
        result = None if kept is None else kept[index]
        remove = removals[index] if removals else False
        transitions.complete(state, state.queues[job.queue], job, result, remove=remove)
    if missing:
        return refused(missing)
    if ignored:
        return AckBatchReply(data=Ignored([ids[index] for index in ignored], ignored))
    return AckBatchReply()


@handles(Fail)
def fail(state: State, client: Client, command: Fail) -> FailReply:
    answer = _fail(state, command.id, command.token, command)
    return FailReply(delay=answer.delay, data=answer.data)


@handles(FailBatch)
def fail_batch(state: State, client: Client, command: FailBatch) -> FailBatchReply:
    """Apply or refuse each report on its own."""
    ids, tokens, failures = command.ids, command.tokens, command.failures
    check_lengths("FAILB", ids, failures=failures, tokens=tokens)
    results = []
    for index, failure in enumerate(failures):
        try:
            results.append(_fail(state, ids[index], tokens[index] if tokens else None, failure))
        except CommandError as error:
            results.append(FailAnswer(refused=refusal(error)))
    return FailBatchReply(results=results)


def _fail(state: State, job_id: str, token: str | None, failure: FailFields) -> FailAnswer:
    try:
        job = _locked_job(state, job_id, token)
    except _TooLate as late:
        if late.running is not None:
            transitions.cancel(state, late.running)
        return FailAnswer(data=Applied(False, late.reason))
    if job.state != ACTIVE:
        raise _NotActive(job.id)
    if failure.interrupted:
        transitions.interrupt(state, job, failure.error)
        return FailAnswer()
    failed = len(state.errors.pending)
    if failure.timed_out:
        transitions.time_out(state, job)
    else:
        _attempt_failed(state, job, failure)
    if failure.app_version is not None and len(state.errors.pending) > failed:
        attempt = state.errors.pending[failed][2]
        if attempt is not None:
            attempt.version = failure.app_version[:MAX_VERSION]
    again = failure.wants_delay and job.state in (WAITING, DELAYED)
    return FailAnswer(delay=float(max(0, job.run_at - state.now))) if again else FailAnswer()


def _attempt_failed(state: State, job: Job, failure: FailFields) -> None:
    if failure.stack:
        _keep_stack(state, job, failure.stack)
    transitions.fail(
        state,
        job,
        failure.error,
        EXPLICIT_FAIL,
        final=failure.unrecoverable,
        remove=failure.remove_on_fail,
        delay=failure.delay,
        types=failure.error_types or (),
    )
    if failure.stack and state.out.attempts:  # else it has been written already, with the end of an undo
        stack = failure.stack if isinstance(failure.stack, str) else "\n".join(failure.stack)
        state.out.attempts[-1].stack = stack[:MAX_STACK]


def _too_late(state: State, late: _TooLate) -> AckReply:
    if late.running is not None:
        transitions.cancel(state, late.running)
    return AckReply(data=Applied(False, late.reason))


def _keep_stack(state: State, job: Job, stack: str | list[str]) -> None:
    """Keep the lines of a stack trace that are nearest to the error and show them with the job: the first
    lines, except for Python's tracebacks, which name the innermost call last."""
    job.extra = job.extra or Extra()
    lines = [line for line in (stack.splitlines() if isinstance(stack, str) else stack) if line.strip()]
    limit = min(job.extra.stack_trace_limit, MAX_LINES)
    if lines and PYTHONS in lines[0]:
        kept = [line.rstrip()[:MAX_LINE] for line in lines[max(0, len(lines) - limit) :]]
    else:
        kept = [line.strip()[:MAX_LINE] for line in lines[:limit]]
    job.extra.stacktrace = kept
    state.out.touch(job, ROW)


class _NotActive(CommandError):
    def __init__(self, job_id: str) -> None:
        text = f"Job not found or not in processing state: {job_id}"
        super().__init__(text, Code.LOCK_LOST, field="id", value=job_id)


def check_lengths(command: str, ids: list[str], **beside: Sequence[object] | None) -> None:
    """Check that each list given beside the ids has one entry per id."""
    for name, entries in beside.items():
        if entries is not None and len(entries) != len(ids):
            raise CommandError(
                f"{command} {name} length must match ids length",
                Code.INVALID_FIELD,
                field=name,
                value=len(entries),
                bound=len(ids),
            )


def check_token(job: Job, token: str | None, *, required: bool = True) -> None:
    """CommandError unless ``token`` allows its holder to decide about the job; a job pulled without an owner
    needs no token."""
    lock = job.lock
    if lock is None or not lock.token or lock.token == token:
        return
    if token:
        raise CommandError(f"Invalid or expired lock token for job {job.id}", Code.LOCK_LOST, field="token")
    if required:
        raise CommandError(f"Lock token required for job {job.id}", Code.LOCK_REQUIRED, field="token")


def _result(raw: Raw) -> bytes | None:
    result = bytes(raw)
    if not is_readable(result):
        check_readable(result, "result")
    return None if result == UNDEFINED else result


def _results(raws: list[Raw]) -> list[bytes | None]:
    results = [bytes(raw) for raw in raws]
    for index, result in enumerate(results):
        if not is_readable(result):
            check_readable(result, f"results[{index}]")
    return [None if result == UNDEFINED else result for result in results]


def _locked_job(state: State, job_id: str, token: str | None) -> Job:
    """The active job that the caller may decide about, or an error with the reason.

    A job that was taken back and is waiting may still be completed with the token of its lost lock.
    """
    job = state.jobs.get(job_id)
    if job is not None and (lock := job.lock) is not None:
        if lock.token and lock.token != token:  # checked here as well: the call is costly on this path
            check_token(job, token)
        if job.extra is not None and job.extra.cancellation is not None:
            raise _TooLate(CANCELLED, job)
        return job
    if job is None:
        gone = state.archive.find(job_id)
        if gone is not None and gone.state == FAILED and gone.reason in (TIMEOUT, CANCELLED):
            raise _TooLate(TOO_LATE if gone.reason == TIMEOUT else CANCELLED)
    elif job.timed_out:
        raise _TooLate(TOO_LATE)
    elif token and job.lost_token == token and job.state == WAITING:
        return job
    raise _NotActive(job_id)

"""Every exception that users of bunqueue can meet.

All derive from `BunqueueError` and carry a stable `code` for programs and log searches; the text is for
people and says what happened, to which queue or job, where, and what to do next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Literal

DEFAULT_JITTER = 0.1  # of the waits between attempts, of jobs and of steps: enough that they spread


class BunqueueError(Exception):
    """The root of all errors of this package.

    `queue`, `job_id`, `command` and `address` are set as far as they are known. If the error is about an
    argument, `field` is its name, `value` what it was, and `bound` what is allowed.
    """

    code: str = "error"
    field: str | None = None
    value: object = None
    bound: object = None

    def __init__(
        self,
        message: str,
        *,
        queue: str | None = None,
        job_id: str | None = None,
        command: str | None = None,
        address: str | None = None,
        field: str | None = None,
        value: object = None,
        bound: object = None,
    ) -> None:
        super().__init__(message)
        if field is not None:
            self.field, self.value, self.bound = field.replace(": ", "."), value, bound
        self.queue = queue
        self.job_id = job_id
        self.command = command
        self.address = address


class ConnectionLost(BunqueueError, ConnectionError):
    """The connection ended while a command was in flight.

    Unless the text says otherwise, the outcome is unknown: the server may or may not have run the command.
    """

    code = "connection_lost"


class StorageError(ConnectionLost):
    """The file of an embedded queue could not be read or written: the disk is full, or worse.

    The outcome of the command is unknown. The next command reopens the file, and finds what was stored.
    """

    code = "storage"


class FileInUse(BunqueueError):
    """The file of an embedded queue belongs to another process. Nothing was changed."""

    code = "file_in_use"


class ConnectTimeout(BunqueueError, ConnectionError):
    """No connection to the server could be made in time. The command was not sent."""

    code = "connect_timeout"


class CommandTimeout(BunqueueError, TimeoutError):
    """The server did not answer in time. The outcome of a command that changes something is unknown."""

    code = "command_timeout"


class AuthError(BunqueueError):
    """The server refuses the token, or requires one."""

    code = "auth_failed"


class TlsError(BunqueueError, ConnectionError):
    """The server's certificate is not trusted, or client and server cannot agree on TLS. Nothing was sent."""

    code = "tls_failed"


class OptionError(BunqueueError, ValueError, TypeError):
    """An option is unknown, has a value that is not allowed, or conflicts with another. Nothing was sent.

    `field` is the option, or the path to it, as in "jobs[3].priority". `value` is what was given, and `bound`
    what is allowed; both are set only if the refusal is about a value.
    """

    code = "option"

    def within(self, what: str, field: str | None = None) -> OptionError:
        """The same refusal for a part of `what`. The path begins with `field`, by default with `what`."""
        path = ".".join(part for part in (what if field is None else field, self.field) if part)
        return OptionError(f"{what}: {self}", field=path or None, value=self.value, bound=self.bound)


class PayloadError(BunqueueError, ValueError):
    """Job data cannot be sent: it is not encodable as MessagePack, or too large."""

    code = "payload"


class CodecError(BunqueueError):
    """A payload has an encoding that this program does not know, or this program has no codec at all.

    `key` is the name of the key that the payload is encrypted with; None: it is not encrypted.
    """

    code = "codec"

    def __init__(self, message: str, *, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key


class KeyMissing(CodecError):
    """A payload is encrypted with the key `key`, which this program does not have. A worker puts the job back
    without using an attempt: another worker may have the key."""

    code = "key_missing"


class NotEncrypted(CodecError):
    """The data of a job, or a result, is not encrypted, and this program accepts only encrypted payloads: see
    `accept_plain` of `Encryption`. A worker puts the job back without using an attempt."""

    code = "not_encrypted"


class PayloadTampered(CodecError):
    """A payload is not what was sent: it was changed, or its key has another value in this program. A job
    with tampered data becomes a dead letter at once."""

    code = "payload_tampered"


class PayloadTooLarge(CodecError):
    """A payload was not decompressed because it would be larger than the codec's `max_size`. `together`: only
    all payloads of the answer together are too large, so this one can be fetched alone."""

    code = "payload_too_large"

    def __init__(self, message: str, *, key: str | None = None, together: bool = False) -> None:
        super().__init__(message, key=key)
        self.together = together


class Unrecoverable(BunqueueError):
    """Raise it in a handler, or inherit from it, if another attempt would not help: the job becomes a dead
    letter at once, whatever attempts it has left."""

    code = "unrecoverable"

    def __init__(
        self,
        message: str = "trying again would not help",
        *,
        queue: str | None = None,
        job_id: str | None = None,
        command: str | None = None,
        address: str | None = None,
        field: str | None = None,
        value: object = None,
        bound: object = None,
    ) -> None:
        about = {"queue": queue, "job_id": job_id, "command": command, "address": address}
        super().__init__(message, field=field, value=value, bound=bound, **about)


class ArgumentsError(Unrecoverable, TypeError, ValueError):
    """The arguments do not fit a typed job. If the job was being added, nothing was sent. If it was about to
    run, it becomes a dead letter at once, because no retry would help. `argument` and `field` are the path of
    the wrong value, if there is one.
    """

    code = "arguments"

    def __init__(
        self,
        message: str,
        *,
        argument: str | None = None,
        queue: str | None = None,
        value: object = None,
        bound: object = None,
    ) -> None:
        super().__init__(message, queue=queue, field=argument, value=value, bound=bound)
        self.argument = argument


class ResultError(Unrecoverable, TypeError, ValueError):
    """The return value of a handler does not fit its annotation, cannot be encoded, or is too large. The job
    becomes a dead letter at once: its handler has already run, and a retry would do everything again."""

    code = "result"


class CommandFailed(BunqueueError):
    """The server refused a command and changed nothing. `reason` is the server's own text.

    `server_code` is the code of the refusal, see docs/errors.md; `code` is the same unless this exception has
    its own code. If the refusal is about a field of the command, `field`, `value` and `bound` say which field
    it is, what it was and what is allowed. `retry_after` is the number of ms until the same command may
    succeed, if the server knows that.
    """

    code = "command_failed"
    server_code: str | None = None
    retry_after: int | None = None

    def __init__(
        self,
        message: str,
        *,
        reason: str = "",
        code: str | None = None,
        queue: str | None = None,
        job_id: str | None = None,
        command: str | None = None,
        address: str | None = None,
        bound: object = None,
    ) -> None:
        super().__init__(message, queue=queue, job_id=job_id, command=command, address=address)
        if job_id is not None:
            self.field, self.value, self.bound = "id", job_id, bound  # unless the server names another one
        self.reason = reason or message
        if code is not None:
            self.code = code


class ShardUnavailable(CommandFailed):
    """The part of the server that owns the queue or job is restarting. Nothing was changed; try again."""

    code = "shard_unavailable"
    server_code = "SHARD_UNAVAILABLE"


class StorageDamaged(CommandFailed):
    """A part of the server's data cannot be read. `reason` names the file and says what to do; until that is
    done, the same command is refused again."""

    code = "STORAGE_DAMAGED"
    server_code = "STORAGE_DAMAGED"


class JobNotFound(CommandFailed):
    """The job does not exist, or was removed."""

    code = "job_not_found"
    server_code = "JOB_NOT_FOUND"


class WrongState(CommandFailed):
    """The job does not exist, or its state does not allow this."""

    code = "wrong_state"
    server_code = "JOB_STATE"


class NotFound(CommandFailed):
    """The cron job, webhook or worker does not exist."""

    code = "not_found"


class ScheduleConflict(CommandFailed):
    """The name of the schedule belongs to another queue, or another app declares it. Nothing was changed."""

    code = "SCHEDULE_CONFLICT"
    server_code = "SCHEDULE_CONFLICT"


class DuplicateJob(CommandFailed):
    """Another job holds the unique key, and the push asked to be refused in this case. Nothing was added.

    `holder` is the id of the job that holds it.
    """

    code = "duplicate_job"
    server_code = "DUPLICATE_KEY"

    @property
    def holder(self) -> str | None:
        """The id of the job that holds the key."""
        return self.value if isinstance(self.value, str) else None


class QueueFull(CommandFailed):
    """The queue has reached its limit of waiting jobs, or of bytes of their data. Nothing was added; try
    again later, or let the client wait with `wait_if_full`.
    """

    code = "queue_full"
    server_code = "QUEUE_FULL"


class LockLost(CommandFailed):
    """The token no longer holds the job: the lock expired, or the job was completed or moved without it."""

    code = "lock_lost"
    server_code = "LOCK_LOST"


class JobFailed(BunqueueError):
    """A job whose result was requested is a dead letter.

    `error` is the text of its last error, `reason` why there was no further attempt ("max_attempts_exceeded",
    "timeout", "stalled", or "unknown" for a discarded job), `cause` the same more precisely (see
    `JobOutcome`), `attempts` the number of failed attempts.
    """

    code = "job_failed"

    def __init__(
        self,
        message: str,
        *,
        error: str | None = None,
        reason: str | None = None,
        cause: str | None = None,
        attempts: int = 0,
        queue: str | None = None,
        job_id: str | None = None,
    ) -> None:
        super().__init__(message, queue=queue, job_id=job_id)
        self.error = error
        self.reason = reason
        self.cause = cause
        self.attempts = attempts


class JobExpired(BunqueueError):
    """A job whose result was requested was dropped: no worker took it within its `ttl`."""

    code = "job_expired"


class ResultTimeout(BunqueueError, TimeoutError):
    """The job has not ended within the time that the caller was willing to wait. The job itself is not
    affected."""

    code = "result_timeout"


class JobStopped(BunqueueError):
    """A run of a job was ended before it was done."""

    code = "job_stopped"


class JobCancelled(JobStopped):
    """The job was cancelled, while it ran or before. `reason` is the text given with the cancellation."""

    code = "job_cancelled"

    def __init__(
        self, message: str, *, reason: str | None = None, queue: str | None = None, job_id: str | None = None
    ) -> None:
        super().__init__(message, queue=queue, job_id=job_id)
        self.reason = reason


class JobTimeout(JobStopped, TimeoutError):
    """The job's processing timeout is over; the attempt has failed."""

    code = "job_timeout"


class Postpone(JobStopped):
    """Raise it in a handler to put the job back and run it after `delay`: ms, a timedelta, a text such as
    "5m", or a point in time as a datetime with a time zone. No attempt is used, so without `max` this can be
    repeated for ever. If the job was already put back `max` times, the attempt fails with PostponeLimit
    instead. The job's `postponed` counts how many times it was put back."""

    code = "job_postponed"

    def __init__(
        self,
        delay: float | timedelta | str | datetime,
        message: str = "put back by its handler",
        *,
        max: int | None = None,
    ) -> None:
        super().__init__(message)
        self.delay = delay
        self.max = max
        self.counts = True
        """For the worker: whether this increases the job's `postponed`."""

    def __reduce__(self) -> tuple[Callable[..., Postpone], tuple[float | timedelta | str | datetime, str]]:
        return partial(type(self), max=self.max), (self.delay, str(self))


class Retry(BunqueueError):
    """Raise it in a handler to fail the attempt and start the next one after `delay` instead of the job's
    backoff: ms, a timedelta, a text such as "5m", or a point in time as a datetime with a time zone. It
    counts as an attempt: after `max_attempts` the job is a dead letter.

    Or give it to a step of a workflow: `flow.step("ship", ship, retry=Retry(max_attempts=10, on=Timeout))`.
    Then `on` says which errors are retried, `never` which are not, and `when` decides about the others.
    `delay` is the first wait. Each further wait is twice as long, up to `max_delay`, unless `backoff` is
    "fixed"; a list has one wait for each retry. `jitter` is a fraction: each wait is randomly longer or
    shorter by up to that part of it.
    """

    code = "retry"

    def __init__(
        self,
        delay: float | timedelta | str | datetime | Sequence[float | timedelta | str] | None = None,
        message: str = "its handler asks for another attempt",
        *,
        max_attempts: int = 3,
        on: type[BaseException] | tuple[type[BaseException], ...] = Exception,
        never: type[BaseException] | tuple[type[BaseException], ...] = (),
        when: Callable[[BaseException], bool] | None = None,
        backoff: Literal["exponential", "fixed"] = "exponential",
        max_delay: float | timedelta | str = 3_600_000,
        jitter: float = DEFAULT_JITTER,
    ) -> None:
        super().__init__(message)
        self.delay = delay
        self.max_attempts = max_attempts
        self.on = on
        self.never = never
        self.when = when
        self.backoff: Literal["exponential", "fixed"] = backoff
        self.max_delay = max_delay
        self.jitter = jitter

    def __reduce__(self) -> tuple[type[Retry], tuple[Any, str]]:
        return type(self), (self.delay, str(self))


class PostponeLimit(BunqueueError):
    """The handler raised Postpone for a job that was put back as often as its `max` allows; the attempt has
    failed."""

    code = "postpone_limit"


class JobInterrupted(JobStopped):
    """The worker stopped. The job is back in its queue, and the attempt does not count."""

    code = "job_interrupted"


class JobSuspended(JobStopped):
    """The run of a workflow has ended because the workflow is waiting; it resumes when the wait is over. This
    is not a failure: the run raises it, and middleware must let it pass."""

    code = "job_suspended"


class ProcessDied(BunqueueError):
    """The process that ran the handler of a job ended before the handler did; the attempt has failed."""

    code = "process_died"


class ProcessBroken(BunqueueError):
    """The worker cannot start a process to run handlers in, for example because it cannot import them. The
    worker stops."""

    code = "process_broken"


class WorkerBroken(BunqueueError):
    """Other code has cancelled the tasks of a worker. The worker stops: its jobs go back, and `run` raises
    this."""

    code = "worker_broken"


class WorkflowError(BunqueueError):
    """Something went wrong in a workflow; `step` is the step concerned."""

    code = "workflow"

    def __init__(
        self, message: str, *, step: str = "", queue: str | None = None, job_id: str | None = None
    ) -> None:
        super().__init__(message, queue=queue, job_id=job_id)
        self.step = step


class StepFailed(WorkflowError):
    """A step has failed for good. If the workflow handles this error, it continues; if not, the attempt
    fails, and the next attempt runs the step again.

    `error` is the text of the last error, `error_type` the name of its class, `attempts` the number of tries.
    During the run when the step failed, `__cause__` is the error itself.
    """

    code = "step_failed"

    def __init__(
        self,
        message: str,
        *,
        step: str = "",
        error: str = "",
        attempts: int = 1,
        queue: str | None = None,
        job_id: str | None = None,
    ) -> None:
        super().__init__(message, step=step, queue=queue, job_id=job_id)
        self.error = error
        self.error_type = error.partition(":")[0]
        self.attempts = attempts


class ChildFailed(StepFailed):
    """A job that the workflow started has failed for good, was cancelled, or could not be started. `child_id`
    is its id, `child_queue` its queue."""

    code = "child_failed"

    def __init__(
        self,
        message: str,
        *,
        step: str = "",
        error: str = "",
        child_id: str | None = None,
        child_queue: str | None = None,
        queue: str | None = None,
        job_id: str | None = None,
    ) -> None:
        super().__init__(message, step=step, error=error, queue=queue, job_id=job_id)
        self.child_id = child_id
        self.child_queue = child_queue


class StepTimeout(BunqueueError, TimeoutError):
    """An attempt of a step took longer than its `timeout`."""

    code = "step_timeout"


class StepChanged(WorkflowError):
    """The code calls a step differently from how it was recorded: with other arguments, or the stored result
    does not have the return type that the function now declares."""

    code = "step_changed"


class SignalTimeout(WorkflowError, TimeoutError):
    """No signal arrived in time."""

    code = "signal_timeout"

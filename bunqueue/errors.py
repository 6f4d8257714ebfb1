"""Every exception that users of bunqueue can meet.

All derive from `BunqueueError` and carry a stable `code` for programs and log searches; the text is for
people and says what happened, to which queue or job, where, and what to do next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Literal


class BunqueueError(Exception):
    """The root of all errors of this package.

    `queue`, `job_id`, `command` and `address` are set as far as they are known. If it is about something that
    was given, `field` says what that is, `value` what it was, and `bound` what it may be.
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
    """The connection ended while a command was under way.

    Unless the text says otherwise the outcome is unknown: the server may or may not have carried it out.
    """

    code = "connection_lost"


class StorageError(ConnectionLost):
    """The file of an embedded queue could not be read or written: the disk is full, or worse.

    The outcome of the command is unknown. The next one reopens the file, and finds what was stored.
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
    """The server refuses the token, or wants one."""

    code = "auth_failed"


class TlsError(BunqueueError, ConnectionError):
    """The server's certificate is not trusted, or client and server cannot agree on TLS. Nothing was sent."""

    code = "tls_failed"


class OptionError(BunqueueError, ValueError, TypeError):
    """There is no such option, its value is not allowed, or it does not go with another. Nothing was sent.

    `field` is the option, or the path to it, as in "jobs[3].priority"; `value` is what was given, and `bound`
    what it may be, as far as the refusal is about one.
    """

    code = "option"

    def within(self, what: str, field: str | None = None) -> OptionError:
        """The same refusal of a part of `what`, whose name is `field` unless that is the same."""
        path = ".".join(part for part in (what if field is None else field, self.field) if part)
        return OptionError(f"{what}: {self}", field=path or None, value=self.value, bound=self.bound)


class PayloadError(BunqueueError, ValueError):
    """Job data cannot be sent: it is not encodable as MessagePack, or too large."""

    code = "payload"


class CodecError(BunqueueError):
    """A payload is encoded in a way that this program does not know, or there is no codec here at all.

    `key` is the name of the key that it is encrypted with; None: it is not encrypted.
    """

    code = "codec"

    def __init__(self, message: str, *, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key


class KeyMissing(CodecError):
    """A payload is encrypted with the key `key`, which this program does not have. A worker puts the job back
    without an attempt: another one may have the key."""

    code = "key_missing"


class NotEncrypted(CodecError):
    """The data of a job, or a result, is not encrypted, and this program takes nothing else: see
    `accept_plain` of `Encryption`. A worker puts the job back without an attempt."""

    code = "not_encrypted"


class PayloadTampered(CodecError):
    """A payload is not what was sent: somebody changed it, or its key has another value here. A job with such
    data is a dead letter at once."""

    code = "payload_tampered"


class PayloadTooLarge(CodecError):
    """A payload would be larger than the codec's `max_size` when it is decompressed; that was not done.
    `together`: only together with others of the same answer, so by itself it can be had."""

    code = "payload_too_large"

    def __init__(self, message: str, *, key: str | None = None, together: bool = False) -> None:
        super().__init__(message, key=key)
        self.together = together


class Unrecoverable(BunqueueError):
    """Raise it in a handler, or inherit from it, when trying again would not help: the job is a dead letter
    at once, whatever attempts it has left."""

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
    """A typed job cannot be called so. When it was added: nothing was sent. When it was to run: it is a dead
    letter at once, as no retry would help; `argument`, and `field`, is the path of the value, as far as there
    is one.
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
    """What a handler gave back is not what its annotation says, cannot be encoded, or is too large. The job
    is a dead letter at once: its handler has run, and would do everything again."""

    code = "result"


class CommandFailed(BunqueueError):
    """The server refused a command and changed nothing. `reason` is the server's own text.

    `server_code` is the code of the refusal, see docs/errors.md; `code` is the same where this exception has
    none of its own. `field`, `value` and `bound` say which field of the command is wrong, what it was and
    what it may be, as far as the refusal is about one. `retry_after` are the ms until the same command may
    succeed, where the server can say so.
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
    """A part of the server's data cannot be read. `reason` names the file and what to do; until then the
    same command is refused again."""

    code = "STORAGE_DAMAGED"
    server_code = "STORAGE_DAMAGED"


class JobNotFound(CommandFailed):
    """There is no such job, or it was removed."""

    code = "job_not_found"
    server_code = "JOB_NOT_FOUND"


class WrongState(CommandFailed):
    """There is no such job, or it is in a state in which this cannot be done to it."""

    code = "wrong_state"
    server_code = "JOB_STATE"


class NotFound(CommandFailed):
    """There is no such cron job, webhook or worker."""

    code = "not_found"


class ScheduleConflict(CommandFailed):
    """The name of the schedule belongs to another queue, or another app declares it. Nothing was changed."""

    code = "SCHEDULE_CONFLICT"
    server_code = "SCHEDULE_CONFLICT"


class DuplicateJob(CommandFailed):
    """Another job holds the unique key, and this one was to be refused then. Nothing was added.

    `holder` is the id of the job that holds it.
    """

    code = "duplicate_job"
    server_code = "DUPLICATE_KEY"

    @property
    def holder(self) -> str | None:
        """The id of the job that holds the key."""
        return self.value if isinstance(self.value, str) else None


class QueueFull(CommandFailed):
    """As many jobs, or bytes of their data, wait in the queue as it allows. Nothing was added; try again
    later, or have the client wait with `wait_if_full`.
    """

    code = "queue_full"
    server_code = "QUEUE_FULL"


class LockLost(CommandFailed):
    """The job is not held with this token any more: its lock ran out, or someone else decided the job."""

    code = "lock_lost"
    server_code = "LOCK_LOST"


class JobFailed(BunqueueError):
    """A job whose result was asked for is a dead letter.

    `error` is the text of its last error, `reason` why it was the last attempt ("max_attempts_exceeded",
    "timeout", "stalled", or "unknown" when somebody discarded it), `attempts` how many have failed.
    """

    code = "job_failed"

    def __init__(
        self,
        message: str,
        *,
        error: str | None = None,
        reason: str | None = None,
        attempts: int = 0,
        queue: str | None = None,
        job_id: str | None = None,
    ) -> None:
        super().__init__(message, queue=queue, job_id=job_id)
        self.error = error
        self.reason = reason
        self.attempts = attempts


class JobExpired(BunqueueError):
    """A job whose result was asked for was dropped: nobody took it within its `ttl`."""

    code = "job_expired"


class ResultTimeout(BunqueueError, TimeoutError):
    """The job has not ended within the time that one was ready to wait. It goes on, as if nobody had."""

    code = "result_timeout"


class JobStopped(BunqueueError):
    """A run of a job was ended before it was done."""

    code = "job_stopped"


class JobCancelled(JobStopped):
    """Somebody cancelled the job, while it ran or before. `reason` is what they said."""

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
    """Raise it in a handler to have the job put back, to run in `delay`: ms or a timedelta, or at a moment: a
    datetime with a time zone. No attempt is used, so without `max` it may be done for ever. A job that was
    put back `max` times already fails this attempt instead, with PostponeLimit. How often it was put back is
    `postponed` of the job."""

    code = "job_postponed"

    def __init__(
        self,
        delay: float | timedelta | datetime,
        message: str = "put back by its handler",
        *,
        max: int | None = None,
    ) -> None:
        super().__init__(message)
        self.delay = delay
        self.max = max
        self.counts = True
        """For the worker: whether the job's `postponed` grows."""

    def __reduce__(self) -> tuple[Callable[..., Postpone], tuple[float | timedelta | datetime, str]]:
        return partial(type(self), max=self.max), (self.delay, str(self))


class Retry(BunqueueError):
    """Raise it in a handler to fail the attempt and have the next one in `delay`: ms or a timedelta, or at a
    moment: a datetime with a time zone, instead of after the job's backoff. It counts as an attempt: after
    `max_attempts` the job is a dead letter.

    Or give it to a step of a workflow: `flow.step("ship", ship, retry=Retry(max_attempts=10, on=Timeout))`.
    Then `on` says which errors are retried, `never` which are not, and `when` is asked about the others.
    `delay` is the first wait, doubled with each further one up to `max_delay`, unless `backoff` is "fixed";
    a list has one wait for each retry. Waits are up to `jitter`, a part of them, longer or shorter.
    """

    code = "retry"

    def __init__(
        self,
        delay: float | timedelta | datetime | Sequence[float | timedelta] | None = None,
        message: str = "its handler asks for another attempt",
        *,
        max_attempts: int = 3,
        on: type[BaseException] | tuple[type[BaseException], ...] = Exception,
        never: type[BaseException] | tuple[type[BaseException], ...] = (),
        when: Callable[[BaseException], bool] | None = None,
        backoff: Literal["exponential", "fixed"] = "exponential",
        max_delay: float | timedelta = 3_600_000,
        jitter: float = 0.1,
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
    """The worker stopped; the job is back in its queue, and the attempt does not count."""

    code = "job_interrupted"


class JobSuspended(JobStopped):
    """The run of a workflow has ended to wait; it goes on when that is over. This is no failure: middleware
    sees it as what the run raises, and lets it through."""

    code = "job_suspended"


class ProcessDied(BunqueueError):
    """The process that ran the handler of a job ended before the handler did; the attempt has failed."""

    code = "process_died"


class ProcessBroken(BunqueueError):
    """No process can be started to run handlers in: it cannot import them, say. The worker stops."""

    code = "process_broken"


class WorkerBroken(BunqueueError):
    """Somebody else has cancelled the tasks of a worker. It stops: its jobs go back, and `run` raises
    this."""

    code = "worker_broken"


class WorkflowError(BunqueueError):
    """Something went wrong in a workflow; `step` is the step that it is about."""

    code = "workflow"

    def __init__(
        self, message: str, *, step: str = "", queue: str | None = None, job_id: str | None = None
    ) -> None:
        super().__init__(message, queue=queue, job_id=job_id)
        self.step = step


class StepFailed(WorkflowError):
    """A step has failed for good. Handle it, and the workflow goes on; else its attempt fails, and the next
    one runs the step again.

    `error` is the text of the last error, `error_type` the name of its class, `attempts` how often the step
    was tried. In the run in which it failed, `__cause__` is the error itself.
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
    """A job that the workflow has started failed for good, was cancelled, or could not be started. `child_id`
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
    """The code asks for a step otherwise than it was recorded: with other arguments, or its stored result is
    not of the type that the function promises now."""

    code = "step_changed"


class SignalTimeout(WorkflowError, TimeoutError):
    """No signal came in time."""

    code = "signal_timeout"

"""Stable codes of refusals.  The HTTP statuses, the SDK's exceptions, the command line's exit statuses and
the documentation are all derived from this table.

The text of a refusal is for people and may change; its code does not.  New codes may be added.
"""

from __future__ import annotations

import enum
from typing import NamedTuple


class Kind(enum.StrEnum):
    """How a program should react to a refusal: the exception of `bunqueue.errors` that it becomes."""

    REFUSED = "CommandFailed"  # the command itself has to change
    AUTH = "AuthError"
    JOB_NOT_FOUND = "JobNotFound"
    NOT_FOUND = "NotFound"
    WRONG_STATE = "WrongState"
    LOCK_LOST = "LockLost"
    CONFLICT = "ScheduleConflict"
    DUPLICATE = "DuplicateJob"
    FULL = "QueueFull"
    UNAVAILABLE = "ShardUnavailable"  # nothing was changed: the same command may succeed soon
    UNKNOWN = "ConnectionLost"  # it is not known whether the command was carried out
    DAMAGED = "StorageDamaged"


class Row(NamedTuple):
    """What a code means."""

    meaning: str
    status: int  # HTTP status
    kind: Kind = Kind.REFUSED


class Code(enum.StrEnum):
    """The values of the field ``code`` in an error reply."""

    # the connection
    NOT_AUTHENTICATED = "NOT_AUTHENTICATED"
    INVALID_TOKEN = "INVALID_TOKEN"
    FORBIDDEN = "FORBIDDEN"
    RATE_LIMITED = "RATE_LIMITED"
    QUOTA = "QUOTA"
    TOO_MANY_CONNECTIONS = "TOO_MANY_CONNECTIONS"
    FRAME_TOO_LARGE = "FRAME_TOO_LARGE"
    # the command
    INVALID_COMMAND = "INVALID_COMMAND"
    UNKNOWN_COMMAND = "UNKNOWN_COMMAND"
    UNKNOWN_FIELD = "UNKNOWN_FIELD"
    UNSUPPORTED_FIELD = "UNSUPPORTED_FIELD"
    INVALID_FIELD = "INVALID_FIELD"
    INVALID_QUEUE = "INVALID_QUEUE"
    INVALID_PRIORITY = "INVALID_PRIORITY"
    INVALID_DELAY = "INVALID_DELAY"
    INVALID_TIMEOUT = "INVALID_TIMEOUT"
    INVALID_BACKOFF = "INVALID_BACKOFF"
    INVALID_ATTEMPTS = "INVALID_ATTEMPTS"
    INVALID_LIMIT = "INVALID_LIMIT"
    INVALID_DATA = "INVALID_DATA"
    INVALID_SCHEDULE = "INVALID_SCHEDULE"
    INVALID_FLOW = "INVALID_FLOW"
    INVALID_WEBHOOK = "INVALID_WEBHOOK"
    DATA_TOO_LARGE = "DATA_TOO_LARGE"
    ANSWER_TOO_LARGE = "ANSWER_TOO_LARGE"
    # jobs
    JOB_NOT_FOUND = "JOB_NOT_FOUND"
    JOB_STATE = "JOB_STATE"
    JOB_CANCELLED = "JOB_CANCELLED"
    LOCK_LOST = "LOCK_LOST"
    LOCK_REQUIRED = "LOCK_REQUIRED"
    DUPLICATE_KEY = "DUPLICATE_KEY"
    TOO_MANY_KEYS = "TOO_MANY_KEYS"
    IDEMPOTENCY_CONFLICT = "IDEMPOTENCY_CONFLICT"
    OUTCOME_UNKNOWN = "OUTCOME_UNKNOWN"
    ID_CONTENDED = "ID_CONTENDED"
    GROUP_FULL = "GROUP_FULL"
    QUEUE_FULL = "QUEUE_FULL"
    # flows
    FLOW_NOT_FOUND = "FLOW_NOT_FOUND"
    FLOW_EXISTS = "FLOW_EXISTS"
    FLOW_CLOSED = "FLOW_CLOSED"
    TOO_MANY_CHILDREN = "TOO_MANY_CHILDREN"
    # workflows
    NOT_A_WORKFLOW = "NOT_A_WORKFLOW"
    STEP_NOT_FOUND = "STEP_NOT_FOUND"
    STEP_CONFLICT = "STEP_CONFLICT"
    STEP_TOO_LARGE = "STEP_TOO_LARGE"
    TOO_MANY_STEPS = "TOO_MANY_STEPS"
    TOO_MANY_SIGNALS = "TOO_MANY_SIGNALS"
    SIGNAL_NOT_FOUND = "SIGNAL_NOT_FOUND"
    SIGNAL_UNFIT = "SIGNAL_UNFIT"
    # other things with names
    SCHEDULE_NOT_FOUND = "SCHEDULE_NOT_FOUND"
    SCHEDULE_CONFLICT = "SCHEDULE_CONFLICT"
    BREAKER_NOT_FOUND = "BREAKER_NOT_FOUND"
    WEBHOOK_NOT_FOUND = "WEBHOOK_NOT_FOUND"
    ERROR_GROUP_NOT_FOUND = "ERROR_GROUP_NOT_FOUND"
    FUNCTION_NOT_FOUND = "FUNCTION_NOT_FOUND"
    UNKNOWN_FUNCTION = "UNKNOWN_FUNCTION"
    ARGUMENTS_UNFIT = "ARGUMENTS_UNFIT"
    WEBHOOKS_UNAVAILABLE = "WEBHOOKS_UNAVAILABLE"
    TOO_MANY_WEBHOOKS = "TOO_MANY_WEBHOOKS"
    TOO_MANY_SETTINGS = "TOO_MANY_SETTINGS"
    TOO_MANY_QUEUES = "TOO_MANY_QUEUES"
    WORKER_NOT_FOUND = "WORKER_NOT_FOUND"
    TOO_MANY_WORKERS = "TOO_MANY_WORKERS"
    # the cluster
    NO_CLUSTER = "NO_CLUSTER"
    HOST_NOT_FOUND = "HOST_NOT_FOUND"
    HOST_STATE = "HOST_STATE"
    # a standby
    STANDBY = "STANDBY"
    NO_STANDBY = "NO_STANDBY"
    PRIMARY_ALIVE = "PRIMARY_ALIVE"
    # the server
    SHARD_UNAVAILABLE = "SHARD_UNAVAILABLE"
    STORAGE_FULL = "STORAGE_FULL"
    WAL_LIMIT = "WAL_LIMIT"
    STORAGE_FAILED = "STORAGE_FAILED"
    STORAGE_LOCKED = "STORAGE_LOCKED"
    STORAGE_DAMAGED = "STORAGE_DAMAGED"
    MEMORY_LIMIT = "MEMORY_LIMIT"
    STORE_UNAVAILABLE = "STORE_UNAVAILABLE"
    # only over HTTP
    INVALID_REQUEST = "INVALID_REQUEST"
    UNKNOWN_PATH = "UNKNOWN_PATH"
    SESSION_NOT_FOUND = "SESSION_NOT_FOUND"
    METHOD_NOT_ALLOWED = "METHOD_NOT_ALLOWED"
    NOT_ACCEPTABLE = "NOT_ACCEPTABLE"
    BODY_TOO_LARGE = "BODY_TOO_LARGE"
    UNSUPPORTED_MEDIA_TYPE = "UNSUPPORTED_MEDIA_TYPE"
    UNAVAILABLE = "UNAVAILABLE"
    INTERNAL_ERROR = "INTERNAL_ERROR"


TABLE: dict[Code, Row] = {
    Code.NOT_AUTHENTICATED: Row("the connection has sent no token: send Auth first", 401, Kind.AUTH),
    Code.INVALID_TOKEN: Row("the server does not know this token", 401, Kind.AUTH),
    Code.FORBIDDEN: Row("the token is read-only: use one of --auth-token", 403),
    Code.RATE_LIMITED: Row("the connection sends too many commands: slow down", 429),
    Code.QUOTA: Row("the namespace is at one of its bounds, which the field names", 429),
    Code.TOO_MANY_CONNECTIONS: Row("the server has reached its limit of connections: try again later", 503),
    Code.FRAME_TOO_LARGE: Row("a frame may hold at most 64 MiB; the connection is closed", 413),
    Code.INVALID_COMMAND: Row("the frame is not a command, which is a MessagePack map with cmd", 400),
    Code.UNKNOWN_COMMAND: Row("this server has no such command", 404),
    Code.UNKNOWN_FIELD: Row("there is no field of this name; the text suggests one", 422),
    Code.UNSUPPORTED_FIELD: Row("this version of the server cannot do what the field asks for", 422),
    Code.INVALID_FIELD: Row("the field has a wrong type, or its value is out of bounds", 422),
    Code.INVALID_QUEUE: Row("the name of a queue is missing or not allowed", 422),
    Code.INVALID_PRIORITY: Row("the priority is not an integer, or out of bounds", 422),
    Code.INVALID_DELAY: Row("the delay is not a number of ms, or out of bounds", 422),
    Code.INVALID_TIMEOUT: Row("the timeout is not a number of ms, or out of bounds", 422),
    Code.INVALID_BACKOFF: Row("the kind of backoff is unknown, or its delay is out of bounds", 422),
    Code.INVALID_ATTEMPTS: Row("the number of attempts is not an integer, or out of bounds", 422),
    Code.INVALID_LIMIT: Row("the limit is not a number, or out of bounds", 422),
    Code.INVALID_DATA: Row(
        "other clients could not read the value: text that is not UTF-8, for example", 422
    ),
    Code.INVALID_SCHEDULE: Row("the cron expression, interval or time zone is not valid", 422),
    Code.INVALID_FLOW: Row("the jobs of the flow contradict each other; nothing of it was added", 422),
    Code.INVALID_WEBHOOK: Row("the URL or the events of a webhook are not allowed", 422),
    Code.DATA_TOO_LARGE: Row("the job's data is larger than 10 MB, or than the push's own sizeLimit", 413),
    Code.ANSWER_TOO_LARGE: Row("the answer does not fit into a frame: ask for less", 413),
    Code.JOB_NOT_FOUND: Row("there is no such job: it was removed, or never added", 404, Kind.JOB_NOT_FOUND),
    Code.JOB_STATE: Row("the job's state does not allow this", 409, Kind.WRONG_STATE),
    Code.JOB_CANCELLED: Row(
        "the job is being cancelled: only its end can be reported", 409, Kind.WRONG_STATE
    ),
    Code.LOCK_LOST: Row("the token is not that of the job's lock, or no longer", 409, Kind.LOCK_LOST),
    Code.LOCK_REQUIRED: Row("the job is locked: give its token", 409, Kind.LOCK_LOST),
    Code.DUPLICATE_KEY: Row("another job holds this unique key", 409, Kind.DUPLICATE),
    Code.TOO_MANY_KEYS: Row(
        "the shard keeps as many unique keys of ended jobs as it can: give them a shorter time", 409
    ),
    Code.IDEMPOTENCY_CONFLICT: Row("the idempotency key was used to push something else", 422),
    Code.OUTCOME_UNKNOWN: Row(
        "the push may have been carried out before: look for its jobs", 503, Kind.UNKNOWN
    ),
    Code.ID_CONTENDED: Row("other clients are taking the same id: try again", 429),
    Code.GROUP_FULL: Row("the group has as many waiting jobs as the push allows", 409),
    Code.QUEUE_FULL: Row("as many jobs or bytes wait in the queue as it allows: try later", 429, Kind.FULL),
    Code.FLOW_NOT_FOUND: Row("there is no flow with this id, or its jobs were removed", 404, Kind.NOT_FOUND),
    Code.FLOW_EXISTS: Row("a flow has this id, or a job of the flow this name", 409),
    Code.FLOW_CLOSED: Row("the batch was closed and takes no more jobs, or the flow is no batch", 409),
    Code.TOO_MANY_CHILDREN: Row("the parent has 100,000 children, or 10 MiB of their ids", 409),
    Code.NOT_A_WORKFLOW: Row("the job is no workflow, so it takes no signals", 409, Kind.WRONG_STATE),
    Code.STEP_NOT_FOUND: Row("the workflow has recorded no step of this name", 404, Kind.NOT_FOUND),
    Code.STEP_CONFLICT: Row("the step was recorded as another kind, or with other arguments", 409),
    Code.STEP_TOO_LARGE: Row("a result, cursor or signal is larger than 1 MB, or a state than 64 KB", 413),
    Code.TOO_MANY_STEPS: Row("the workflow has 10,000 steps or 100,000 children: continue as new", 409),
    Code.TOO_MANY_SIGNALS: Row("1,000 signals are kept for the workflow, or 10,000 broadcasts", 409),
    Code.SIGNAL_NOT_FOUND: Row("the workflow keeps no signal of this number", 404, Kind.NOT_FOUND),
    Code.SIGNAL_UNFIT: Row("the data of the signal is not of the type that is waited for", 422),
    Code.SCHEDULE_NOT_FOUND: Row("there is no schedule of this name", 404, Kind.NOT_FOUND),
    Code.SCHEDULE_CONFLICT: Row("the name belongs to a schedule of another queue or app", 409, Kind.CONFLICT),
    Code.BREAKER_NOT_FOUND: Row("there is no circuit breaker of this queue or name", 404, Kind.NOT_FOUND),
    Code.WEBHOOK_NOT_FOUND: Row("there is no webhook with this id", 404, Kind.NOT_FOUND),
    Code.ERROR_GROUP_NOT_FOUND: Row("the queue has no group of errors with this id", 404, Kind.NOT_FOUND),
    Code.FUNCTION_NOT_FOUND: Row("no app has declared this function for the queue", 404, Kind.NOT_FOUND),
    Code.UNKNOWN_FUNCTION: Row("no app runs jobs of this name, and an app wants such jobs refused", 422),
    Code.ARGUMENTS_UNFIT: Row("the data of the job does not fit what its function declares", 422),
    Code.WEBHOOKS_UNAVAILABLE: Row("the HTTP gateway, which delivers webhooks, is not running", 503),
    Code.TOO_MANY_WEBHOOKS: Row("the server has reached its limit of webhooks: remove one", 409),
    Code.TOO_MANY_SETTINGS: Row(
        "the shard keeps as many breakers, limits, groups or schedules as it can: remove some", 409
    ),
    Code.TOO_MANY_QUEUES: Row("the shard has as many queues as it can: obliterate some", 409),
    Code.WORKER_NOT_FOUND: Row("no worker with this id is registered", 404, Kind.NOT_FOUND),
    Code.TOO_MANY_WORKERS: Row("the connection has reached its limit of workers or queues", 409),
    Code.NO_CLUSTER: Row("the server is no host of a cluster", 409),
    Code.HOST_NOT_FOUND: Row("the cluster has no host of this name", 404, Kind.NOT_FOUND),
    Code.HOST_STATE: Row("the state of the host does not allow this", 409, Kind.WRONG_STATE),
    Code.STANDBY: Row("the server is a standby, which takes no changes: send them to the primary", 503),
    Code.NO_STANDBY: Row("the server is no standby, so it cannot be promoted", 409),
    Code.PRIMARY_ALIVE: Row("the primary is alive: stop it before its standby is promoted", 409),
    Code.SHARD_UNAVAILABLE: Row("nothing was changed: ask again in a moment", 503, Kind.UNAVAILABLE),
    Code.STORAGE_FULL: Row("the disk is full or nearly full: see docs/durability.md", 503),
    Code.WAL_LIMIT: Row("a reader keeps the log of a shard from being reset: see docs/durability.md", 503),
    Code.STORAGE_FAILED: Row("the disk failed to write or to read", 503),
    Code.STORAGE_LOCKED: Row("another program holds the write lock of a shard's file: end it, or wait", 503),
    Code.STORAGE_DAMAGED: Row("the data is in a damaged part of a shard's file", 500, Kind.DAMAGED),
    Code.MEMORY_LIMIT: Row("the shard is near its memory limit and takes no more jobs", 503),
    Code.STORE_UNAVAILABLE: Row(
        "the store does not acknowledge at present; nothing was changed: ask again in a moment",
        503,
        Kind.UNAVAILABLE,
    ),
    Code.INVALID_REQUEST: Row("the request or its body cannot be read", 400),
    Code.UNKNOWN_PATH: Row("there is nothing at this path", 404),
    Code.SESSION_NOT_FOUND: Row("no session with this id goes on", 404, Kind.NOT_FOUND),
    Code.METHOD_NOT_ALLOWED: Row("the path does not support this method", 405),
    Code.NOT_ACCEPTABLE: Row("the answer cannot be written as JSON", 406),
    Code.BODY_TOO_LARGE: Row("the body is larger than a command is allowed to be", 413),
    Code.UNSUPPORTED_MEDIA_TYPE: Row("the body is not JSON", 415),
    Code.UNAVAILABLE: Row("the server or its gateway cannot answer at present: try again", 503),
    Code.INTERNAL_ERROR: Row("the server failed; its log says why", 500),
}

NOT_FOUND = frozenset(
    {
        Code.JOB_NOT_FOUND,
        Code.SCHEDULE_NOT_FOUND,
        Code.BREAKER_NOT_FOUND,
        Code.WEBHOOK_NOT_FOUND,
        Code.ERROR_GROUP_NOT_FOUND,
        Code.FUNCTION_NOT_FOUND,
        Code.WORKER_NOT_FOUND,
        Code.JOB_STATE,
    }
)
"""Codes for things that this shard does not have, but another one may."""

_FIELDS = {
    "queue": Code.INVALID_QUEUE,
    "priority": Code.INVALID_PRIORITY,
    "delay": Code.INVALID_DELAY,
    "timeout": Code.INVALID_TIMEOUT,
    "backoff": Code.INVALID_BACKOFF,
    "backoffConfig": Code.INVALID_BACKOFF,
    "maxAttempts": Code.INVALID_ATTEMPTS,
    "limit": Code.INVALID_LIMIT,
}


def code_of_field(path: str) -> Code:
    """The code for a field whose value is refused; ``path`` is as in "jobs[3].priority"."""
    for name in reversed(path.replace("[", ".").split(".")):
        if name in _FIELDS:
            return _FIELDS[name]
    return Code.INVALID_FIELD

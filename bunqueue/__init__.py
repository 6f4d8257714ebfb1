"""bunqueue: a job queue. This module offers its client: `Queue`, `AsyncQueue`, `Worker` and their words.

The names are loaded when they are first used: the server's processes import `bunqueue.protocol` and must
not pay for a client they never run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from bunqueue.app.bunqueue import Bunqueue
    from bunqueue.app.station import RateLimit
    from bunqueue.app.task import AsyncTask, PlainTask, Task
    from bunqueue.client.active_job import ActiveJob, current_job
    from bunqueue.client.blocking.events import QueueEvents
    from bunqueue.client.blocking.flow import FlowProducer
    from bunqueue.client.blocking.group import QueueGroup
    from bunqueue.client.blocking.queue import JobGroup, JobHandle, Queue
    from bunqueue.client.connection_options import ConnectionOptions
    from bunqueue.client.event_stream import QueueEvent
    from bunqueue.client.events import AsyncQueueEvents
    from bunqueue.client.flow import AsyncFlowProducer
    from bunqueue.client.flow_plan import FlowJob, FlowNode, FlowTree
    from bunqueue.client.group import AsyncQueueGroup
    from bunqueue.client.job_logging import JobLogHandler
    from bunqueue.client.job_options import JobOptions, NewJob
    from bunqueue.client.jobs import Job, JobCounts, JobProgress, QueueInfo, ServerStats
    from bunqueue.client.middleware import CallNext, Middleware
    from bunqueue.client.option_types import Backoff, Debounce, Dedup, Repeat
    from bunqueue.client.processes import Recycle
    from bunqueue.client.queue import AsyncJobGroup, AsyncJobHandle, AsyncQueue
    from bunqueue.client.routes import Route
    from bunqueue.client.service import run_forever
    from bunqueue.client.tls import TlsOptions
    from bunqueue.client.views import DeadLetter, FailedAttempt, JobOutcome
    from bunqueue.client.worker import Worker, WorkerHealth, WorkerStats
    from bunqueue.client.worker_options import WorkerOptions
    from bunqueue.errors import (
        ArgumentsError,
        AuthError,
        BunqueueError,
        CommandFailed,
        CommandTimeout,
        ConnectionLost,
        ConnectTimeout,
        FileInUse,
        JobCancelled,
        JobExpired,
        JobFailed,
        JobInterrupted,
        JobNotFound,
        JobStopped,
        JobTimeout,
        LockLost,
        NotFound,
        OptionError,
        PayloadError,
        Postpone,
        PostponeLimit,
        ProcessBroken,
        ProcessDied,
        ResultError,
        ResultTimeout,
        Retry,
        ScheduleConflict,
        ShardUnavailable,
        StorageDamaged,
        StorageError,
        TlsError,
        Unrecoverable,
        WrongState,
    )

_WHERE = {
    "bunqueue.client.job_logging": ("JobLogHandler",),
    "bunqueue.client.processes": ("Recycle",),
    "bunqueue.client.routes": ("Route",),
    "bunqueue.client.worker_options": ("WorkerOptions",),
    "bunqueue.app.bunqueue": ("Bunqueue",),
    "bunqueue.app.station": ("RateLimit",),
    "bunqueue.app.task": ("AsyncTask", "PlainTask", "Task"),
    "bunqueue.client.blocking.events": ("QueueEvents",),
    "bunqueue.client.blocking.flow": ("FlowProducer",),
    "bunqueue.client.blocking.group": ("QueueGroup",),
    "bunqueue.client.blocking.queue": ("JobGroup", "JobHandle", "Queue"),
    "bunqueue.client.connection_options": ("ConnectionOptions",),
    "bunqueue.client.event_stream": ("QueueEvent",),
    "bunqueue.client.events": ("AsyncQueueEvents",),
    "bunqueue.client.flow": ("AsyncFlowProducer",),
    "bunqueue.client.flow_plan": ("FlowJob", "FlowNode", "FlowTree"),
    "bunqueue.client.group": ("AsyncQueueGroup",),
    "bunqueue.client.job_options": ("JobOptions", "NewJob"),
    "bunqueue.client.option_types": ("Backoff", "Debounce", "Dedup", "Repeat"),
    "bunqueue.client.views": ("DeadLetter", "FailedAttempt", "JobOutcome"),
    "bunqueue.client.jobs": ("Job", "JobCounts", "JobProgress", "QueueInfo", "ServerStats"),
    "bunqueue.client.middleware": ("CallNext", "Middleware"),
    "bunqueue.client.queue": ("AsyncJobGroup", "AsyncJobHandle", "AsyncQueue"),
    "bunqueue.client.active_job": (
        "ActiveJob",
        "current_job",
    ),
    "bunqueue.client.service": ("run_forever",),
    "bunqueue.client.tls": ("TlsOptions",),
    "bunqueue.client.worker": (
        "Worker",
        "WorkerHealth",
        "WorkerStats",
    ),
    "bunqueue.errors": (
        "ArgumentsError",
        "AuthError",
        "BunqueueError",
        "CommandFailed",
        "CommandTimeout",
        "ConnectTimeout",
        "ConnectionLost",
        "FileInUse",
        "JobCancelled",
        "JobInterrupted",
        "JobNotFound",
        "JobStopped",
        "JobTimeout",
        "LockLost",
        "OptionError",
        "PayloadError",
        "Postpone",
        "PostponeLimit",
        "ProcessBroken",
        "ProcessDied",
        "ResultError",
        "ScheduleConflict",
        "ShardUnavailable",
        "StorageDamaged",
        "StorageError",
        "TlsError",
        "Unrecoverable",
        "JobExpired",
        "JobFailed",
        "NotFound",
        "ResultTimeout",
        "Retry",
        "WrongState",
    ),
}
_MODULE_OF = {name: module for module, names in _WHERE.items() for name in names}

__all__ = [
    "ActiveJob",
    "ArgumentsError",
    "AsyncFlowProducer",
    "AsyncJobGroup",
    "AsyncJobHandle",
    "AsyncQueue",
    "AsyncQueueEvents",
    "AsyncQueueGroup",
    "AsyncTask",
    "AuthError",
    "Backoff",
    "Bunqueue",
    "BunqueueError",
    "CallNext",
    "CommandFailed",
    "CommandTimeout",
    "ConnectTimeout",
    "ConnectionLost",
    "ConnectionOptions",
    "DeadLetter",
    "Debounce",
    "Dedup",
    "FailedAttempt",
    "FileInUse",
    "FlowJob",
    "FlowNode",
    "FlowProducer",
    "FlowTree",
    "Job",
    "JobCancelled",
    "JobCounts",
    "JobExpired",
    "JobFailed",
    "JobGroup",
    "JobHandle",
    "JobInterrupted",
    "JobLogHandler",
    "JobNotFound",
    "JobOptions",
    "JobOutcome",
    "JobProgress",
    "JobStopped",
    "JobTimeout",
    "LockLost",
    "Middleware",
    "NewJob",
    "NotFound",
    "OptionError",
    "PayloadError",
    "PlainTask",
    "Postpone",
    "PostponeLimit",
    "ProcessBroken",
    "ProcessDied",
    "Queue",
    "QueueEvent",
    "QueueEvents",
    "QueueGroup",
    "QueueInfo",
    "RateLimit",
    "Recycle",
    "Repeat",
    "ResultError",
    "ResultTimeout",
    "Retry",
    "Route",
    "ScheduleConflict",
    "ServerStats",
    "ShardUnavailable",
    "StorageDamaged",
    "StorageError",
    "Task",
    "TlsError",
    "TlsOptions",
    "Unrecoverable",
    "Worker",
    "WorkerHealth",
    "WorkerOptions",
    "WorkerStats",
    "WrongState",
    "current_job",
    "run_forever",
]


def __getattr__(name: str) -> object:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(module), name)
    globals()[name] = value  # so that this function is asked only once
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

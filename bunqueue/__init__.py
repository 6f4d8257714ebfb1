"""bunqueue: a job queue. This module exports the client: `Queue`, `Worker`, `Admin` and related names.

Names are loaded on first use: the server's processes import `bunqueue.protocol` and must not pay for a
client that they never run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bunqueue.version import __version__ as __version__

if TYPE_CHECKING:
    from bunqueue.app.bunqueue import Bunqueue
    from bunqueue.app.dependencies import Depends
    from bunqueue.app.task import AsyncTask, PlainTask, Task
    from bunqueue.app.workflow import AsyncWorkflow, PlainWorkflow, Workflow
    from bunqueue.client.admin import AsyncAdmin
    from bunqueue.client.blocking.admin import Admin
    from bunqueue.client.blocking.events import QueueEvents
    from bunqueue.client.blocking.flow import FlowProducer
    from bunqueue.client.blocking.flow_graph import FlowBatch, FlowGraph
    from bunqueue.client.blocking.group import QueueGroup
    from bunqueue.client.blocking.queue import JobGroup, JobHandle, Queue, WorkflowHandle
    from bunqueue.client.codecs.codec import Codec, Compression, Encryption, new_key
    from bunqueue.client.connection.options import ConnectionOptions
    from bunqueue.client.connection.tls import TlsOptions
    from bunqueue.client.event_stream import QueueEvent
    from bunqueue.client.events import AsyncQueueEvents
    from bunqueue.client.flow import AsyncFlowProducer
    from bunqueue.client.flow_graph import AsyncFlowBatch, AsyncFlowGraph
    from bunqueue.client.flow_plan import FlowJob, FlowNode, FlowTree
    from bunqueue.client.group import AsyncQueueGroup
    from bunqueue.client.invalid_jobs import InvalidJobWarning
    from bunqueue.client.models.flows import BatchInfo, FlowInfo, FlowLine, FlowMember, FlowPage
    from bunqueue.client.models.jobs import Cause, Job, JobCounts, JobProgress, QueueInfo, ServerStats
    from bunqueue.client.models.search import ChangedJobs, FoundPage, SearchPlan
    from bunqueue.client.models.views import DeadLetter, FailedAttempt, JobOutcome
    from bunqueue.client.models.workflows import Step, WorkflowInfo
    from bunqueue.client.options.breaker import Breaker
    from bunqueue.client.options.job import JobOptions, NewJob
    from bunqueue.client.options.rates import RateLimit
    from bunqueue.client.options.types import Backoff, Debounce, Dedup, Repeat, Unique
    from bunqueue.client.queue import AsyncJobGroup, AsyncJobHandle, AsyncQueue, AsyncWorkflowHandle
    from bunqueue.errors import (
        ArgumentsError,
        AuthError,
        BunqueueError,
        ChildFailed,
        CodecError,
        CommandFailed,
        CommandTimeout,
        ConnectionLost,
        ConnectTimeout,
        DuplicateJob,
        FileInUse,
        JobCancelled,
        JobExpired,
        JobFailed,
        JobInterrupted,
        JobNotFound,
        JobStopped,
        JobSuspended,
        JobTimeout,
        KeyMissing,
        LockLost,
        NotEncrypted,
        NotFound,
        OptionError,
        PayloadError,
        PayloadTampered,
        PayloadTooLarge,
        Postpone,
        PostponeLimit,
        ProcessBroken,
        ProcessDied,
        QueueFull,
        ResultError,
        ResultTimeout,
        Retry,
        ScheduleConflict,
        ShardUnavailable,
        SignalTimeout,
        StepChanged,
        StepFailed,
        StepTimeout,
        StorageDamaged,
        StorageError,
        TlsError,
        Unrecoverable,
        WorkerBroken,
        WorkflowError,
        WrongState,
    )
    from bunqueue.worker.active_job import ActiveJob, current_job
    from bunqueue.worker.batches import Batch
    from bunqueue.worker.job_logging import JobLogHandler
    from bunqueue.worker.log_context import JobLogFilter
    from bunqueue.worker.middleware import CallNext, Middleware
    from bunqueue.worker.options import WorkerOptions
    from bunqueue.worker.processes.pool import Recycle
    from bunqueue.worker.retry_after import retry_after
    from bunqueue.worker.retry_rules import RetryRules
    from bunqueue.worker.routes import Route
    from bunqueue.worker.service import run_forever
    from bunqueue.worker.worker import Worker, WorkerHealth, WorkerStats
    from bunqueue.workflow.blocking import BlockingFlow
    from bunqueue.workflow.context import StepRun, current_step
    from bunqueue.workflow.flow import Flow
    from bunqueue.workflow.plans import Undo

_WHERE = {
    "bunqueue.client.models.workflows": ("Step", "WorkflowInfo"),
    "bunqueue.workflow.context": ("StepRun", "current_step"),
    "bunqueue.workflow.plans": ("Undo",),
    "bunqueue.workflow.blocking": ("BlockingFlow",),
    "bunqueue.workflow.flow": ("Flow",),
    "bunqueue.app.workflow": ("AsyncWorkflow", "PlainWorkflow", "Workflow"),
    "bunqueue.worker.job_logging": ("JobLogHandler",),
    "bunqueue.worker.log_context": ("JobLogFilter",),
    "bunqueue.worker.processes.pool": ("Recycle",),
    "bunqueue.worker.retry_after": ("retry_after",),
    "bunqueue.worker.retry_rules": ("RetryRules",),
    "bunqueue.worker.batches": ("Batch",),
    "bunqueue.worker.routes": ("Route",),
    "bunqueue.worker.options": ("WorkerOptions",),
    "bunqueue.app.bunqueue": ("Bunqueue",),
    "bunqueue.app.dependencies": ("Depends",),
    "bunqueue.app.task": ("AsyncTask", "PlainTask", "Task"),
    "bunqueue.client.admin": ("AsyncAdmin",),
    "bunqueue.client.blocking.admin": ("Admin",),
    "bunqueue.client.blocking.events": ("QueueEvents",),
    "bunqueue.client.blocking.flow": ("FlowProducer",),
    "bunqueue.client.blocking.group": ("QueueGroup",),
    "bunqueue.client.blocking.queue": ("JobGroup", "JobHandle", "Queue", "WorkflowHandle"),
    "bunqueue.client.connection.options": ("ConnectionOptions",),
    "bunqueue.client.event_stream": ("QueueEvent",),
    "bunqueue.client.events": ("AsyncQueueEvents",),
    "bunqueue.client.blocking.flow_graph": ("FlowBatch", "FlowGraph"),
    "bunqueue.client.flow": ("AsyncFlowProducer",),
    "bunqueue.client.flow_graph": ("AsyncFlowBatch", "AsyncFlowGraph"),
    "bunqueue.client.models.flows": ("BatchInfo", "FlowInfo", "FlowLine", "FlowMember", "FlowPage"),
    "bunqueue.client.flow_plan": ("FlowJob", "FlowNode", "FlowTree"),
    "bunqueue.client.group": ("AsyncQueueGroup",),
    "bunqueue.client.options.breaker": ("Breaker",),
    "bunqueue.client.options.job": ("JobOptions", "NewJob"),
    "bunqueue.client.options.rates": ("RateLimit",),
    "bunqueue.client.options.types": ("Backoff", "Debounce", "Dedup", "Repeat", "Unique"),
    "bunqueue.client.models.views": ("DeadLetter", "FailedAttempt", "JobOutcome"),
    "bunqueue.client.models.search": ("ChangedJobs", "FoundPage", "SearchPlan"),
    "bunqueue.client.invalid_jobs": ("InvalidJobWarning",),
    "bunqueue.client.models.jobs": ("Cause", "Job", "JobCounts", "JobProgress", "QueueInfo", "ServerStats"),
    "bunqueue.worker.middleware": ("CallNext", "Middleware"),
    "bunqueue.client.queue": ("AsyncJobGroup", "AsyncJobHandle", "AsyncQueue", "AsyncWorkflowHandle"),
    "bunqueue.worker.active_job": (
        "ActiveJob",
        "current_job",
    ),
    "bunqueue.worker.service": ("run_forever",),
    "bunqueue.client.codecs.codec": ("Codec", "Compression", "Encryption", "new_key"),
    "bunqueue.client.connection.tls": ("TlsOptions",),
    "bunqueue.worker.worker": (
        "Worker",
        "WorkerHealth",
        "WorkerStats",
    ),
    "bunqueue.errors": (
        "ArgumentsError",
        "AuthError",
        "BunqueueError",
        "ChildFailed",
        "CodecError",
        "CommandFailed",
        "CommandTimeout",
        "ConnectTimeout",
        "ConnectionLost",
        "DuplicateJob",
        "FileInUse",
        "JobCancelled",
        "JobExpired",
        "JobFailed",
        "JobInterrupted",
        "JobNotFound",
        "JobStopped",
        "JobSuspended",
        "JobTimeout",
        "KeyMissing",
        "LockLost",
        "NotEncrypted",
        "NotFound",
        "OptionError",
        "PayloadError",
        "PayloadTampered",
        "PayloadTooLarge",
        "Postpone",
        "PostponeLimit",
        "ProcessBroken",
        "ProcessDied",
        "QueueFull",
        "ResultError",
        "ResultTimeout",
        "Retry",
        "ScheduleConflict",
        "ShardUnavailable",
        "SignalTimeout",
        "StepChanged",
        "StepFailed",
        "StepTimeout",
        "StorageDamaged",
        "StorageError",
        "TlsError",
        "Unrecoverable",
        "WorkerBroken",
        "WorkflowError",
        "WrongState",
    ),
}
_MODULE_OF = {name: module for module, names in _WHERE.items() for name in names}

__all__ = [
    "ActiveJob",
    "Admin",
    "ArgumentsError",
    "AsyncAdmin",
    "AsyncFlowBatch",
    "AsyncFlowGraph",
    "AsyncFlowProducer",
    "AsyncJobGroup",
    "AsyncJobHandle",
    "AsyncQueue",
    "AsyncQueueEvents",
    "AsyncQueueGroup",
    "AsyncTask",
    "AsyncWorkflow",
    "AsyncWorkflowHandle",
    "AuthError",
    "Backoff",
    "Batch",
    "BatchInfo",
    "BlockingFlow",
    "Breaker",
    "Bunqueue",
    "BunqueueError",
    "CallNext",
    "Cause",
    "ChangedJobs",
    "ChildFailed",
    "Codec",
    "CodecError",
    "CommandFailed",
    "CommandTimeout",
    "Compression",
    "ConnectTimeout",
    "ConnectionLost",
    "ConnectionOptions",
    "DeadLetter",
    "Debounce",
    "Dedup",
    "Depends",
    "DuplicateJob",
    "Encryption",
    "FailedAttempt",
    "FileInUse",
    "Flow",
    "FlowBatch",
    "FlowGraph",
    "FlowInfo",
    "FlowJob",
    "FlowLine",
    "FlowMember",
    "FlowNode",
    "FlowPage",
    "FlowProducer",
    "FlowTree",
    "FoundPage",
    "InvalidJobWarning",
    "Job",
    "JobCancelled",
    "JobCounts",
    "JobExpired",
    "JobFailed",
    "JobGroup",
    "JobHandle",
    "JobInterrupted",
    "JobLogFilter",
    "JobLogHandler",
    "JobNotFound",
    "JobOptions",
    "JobOutcome",
    "JobProgress",
    "JobStopped",
    "JobSuspended",
    "JobTimeout",
    "KeyMissing",
    "LockLost",
    "Middleware",
    "NewJob",
    "NotEncrypted",
    "NotFound",
    "OptionError",
    "PayloadError",
    "PayloadTampered",
    "PayloadTooLarge",
    "PlainTask",
    "PlainWorkflow",
    "Postpone",
    "PostponeLimit",
    "ProcessBroken",
    "ProcessDied",
    "Queue",
    "QueueEvent",
    "QueueEvents",
    "QueueFull",
    "QueueGroup",
    "QueueInfo",
    "RateLimit",
    "Recycle",
    "Repeat",
    "ResultError",
    "ResultTimeout",
    "Retry",
    "RetryRules",
    "Route",
    "ScheduleConflict",
    "SearchPlan",
    "ServerStats",
    "ShardUnavailable",
    "SignalTimeout",
    "Step",
    "StepChanged",
    "StepFailed",
    "StepRun",
    "StepTimeout",
    "StorageDamaged",
    "StorageError",
    "Task",
    "TlsError",
    "TlsOptions",
    "Undo",
    "Unique",
    "Unrecoverable",
    "Worker",
    "WorkerBroken",
    "WorkerHealth",
    "WorkerOptions",
    "WorkerStats",
    "Workflow",
    "WorkflowError",
    "WorkflowHandle",
    "WorkflowInfo",
    "WrongState",
    "current_job",
    "current_step",
    "new_key",
    "retry_after",
    "run_forever",
]


def __getattr__(name: str) -> object:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(module), name)
    globals()[name] = value  # so this function is called only once per name
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

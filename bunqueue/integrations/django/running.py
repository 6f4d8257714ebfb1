"""Runs the job of a task: the handler that the command `bunqueue_worker` gives to its workers."""

from __future__ import annotations

from typing import Any

from django.db import close_old_connections
from django.utils import timezone

from bunqueue.errors import Postpone
from bunqueue.worker.active_job import ActiveJob
from bunqueue.worker.reporting.failures import checked, is_last

from .backend import BunqueueBackend
from .compat import (
    Task,
    TaskContext,
    TaskError,
    TaskResult,
    TaskResultStatus,
    normalize_json,
    task_backends,
    task_finished,
    task_started,
)
from .results import TaskUnknown, check_data, moment, task_named

WORKER = "bunqueue"


def run_task(job: ActiveJob) -> Any:
    """A handler for jobs of tasks, plain or coroutines.  In tests, pass it to `drain` and `inline`.

    As at the start and the end of a request, database connections that are too old or broken are closed
    before and after.
    """
    close_old_connections()
    try:
        backend = _backend(job)
        check_data(job, backend)
        task = task_named(job.name).using(queue_name=job.queue, backend=backend.alias)
        return _run(task, _result(task, job), job)
    finally:
        close_old_connections()


def _backend(job: ActiveJob) -> BunqueueBackend:
    """The backend that a job names.  Raises TaskUnknown if it is not one of ours."""
    alias = job.data.get("backend") if isinstance(job.data, dict) else None
    if not isinstance(alias, str) or alias not in task_backends.settings:
        raise TaskUnknown(f"job {job.id} is not that of a task: TASKS has no backend {alias!r}")
    backend = task_backends[alias]
    if not isinstance(backend, BunqueueBackend):
        raise TaskUnknown(f"job {job.id} is not that of a task: TASKS[{alias!r}] is no bunqueue backend")
    return backend


def _run(task: Task, result: TaskResult, job: ActiveJob) -> Any:
    sender = type(task.get_backend())
    task_started.send(sender=sender, task_result=result)
    context = [TaskContext(task_result=result)] if task.takes_context else []
    try:
        value = normalize_json(task.call(*context, *result.args, **result.kwargs))
    except Exception as error:
        kind = type(error)
        path = f"{kind.__module__}.{kind.__qualname__}"
        result.errors.append(TaskError(exception_class_path=path, traceback=_traceback(error)))
        if is_last(job, error) and not isinstance(checked(job, error), Postpone):
            _end(result, TaskResultStatus.FAILED)
            task_finished.send(sender=sender, task_result=result)
        raise
    object.__setattr__(result, "_return_value", value)
    _end(result, TaskResultStatus.SUCCESSFUL)
    task_finished.send(sender=sender, task_result=result)
    return value


def _result(task: Task, job: ActiveJob) -> TaskResult:
    known = job.job()
    return TaskResult(
        task=task,
        id=job.id,
        status=TaskResultStatus.RUNNING,
        enqueued_at=moment(known.created_at),
        started_at=moment(known.started_at),
        last_attempted_at=moment(known.started_at),
        finished_at=None,
        args=job.data["args"],
        kwargs=job.data["kwargs"],
        backend=job.data["backend"],
        errors=[],
        worker_ids=[WORKER] * (job.attempts + 1),
    )


def _end(result: TaskResult, status: TaskResultStatus) -> None:
    object.__setattr__(result, "status", status)
    object.__setattr__(result, "finished_at", timezone.now())


def _traceback(error: Exception) -> str:
    from traceback import format_exception

    return "".join(format_exception(error))

"""Converts a job to Django's `TaskResult`."""

from __future__ import annotations

import builtins
import re
import sys
from collections.abc import Mapping
from datetime import datetime

from django.conf import settings

from bunqueue.client.models.jobs import Job
from bunqueue.errors import Unrecoverable
from bunqueue.worker.active_job import ActiveJob

from .compat import (
    BaseTaskBackend,
    Task,
    TaskError,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_backends,
)

STATUS = {
    "active": TaskResultStatus.RUNNING,
    "completed": TaskResultStatus.SUCCESSFUL,
    "failed": TaskResultStatus.FAILED,
}
"""By job state.  All other states are those of tasks that are ready, or will be."""


class TaskUnknown(Unrecoverable):
    """A job that does not belong to a task of this program.  Another attempt would not help."""


UNKNOWN_WORKER = "unknown"  # only the number of these counts


def task_named(path: str) -> Task:
    """The task with that path.  Raises TaskUnknown.

    Nothing is imported: the path comes from a job, and clients that may add jobs must not choose which code
    runs.
    """
    module, _, name = path.rpartition(".")
    found = vars(sys.modules[module]).get(name) if module in sys.modules else None
    if not isinstance(found, Task) or found.module_path != path:
        raise TaskUnknown(
            f"there is no task {path} here: it lacks the decorator @task, or its module is not loaded; tasks "
            f"stand in the module `tasks` of an installed app, or in one that OPTIONS['modules'] names"
        )
    return found


def check_data(job: Job | ActiveJob, backend: BaseTaskBackend) -> None:
    """Raise TaskUnknown unless a job may belong to a task of this backend."""
    data = job.data
    if not isinstance(data, Mapping) or not isinstance(data.get("args"), list):
        raise TaskUnknown(f"job {job.id} is not that of a task: its data has no list of args")
    kwargs = data.get("kwargs")
    if not isinstance(kwargs, dict) or not all(isinstance(name, str) for name in kwargs):
        raise TaskUnknown(f"job {job.id} is not that of a task: its data has no map of kwargs")
    if backend.queues and job.queue not in backend.queues:
        known = ", ".join(sorted(backend.queues))
        raise TaskUnknown(
            f"job {job.id}: {job.queue!r} is not one of the backend's QUEUES, which are {known}"
        )


def result_of(job: Job, backend: str) -> TaskResult:
    """The result of a job.  Raises TaskResultDoesNotExist when the job does not belong to a task of this
    program."""
    try:
        check_data(job, task_backends[backend])
        task = task_named(job.name)
    except TaskUnknown as error:
        raise TaskResultDoesNotExist(f"job {job.id} is not that of a task: {error}") from None
    status = STATUS.get(job.state or "", TaskResultStatus.READY)
    ended = status in (TaskResultStatus.SUCCESSFUL, TaskResultStatus.FAILED)
    begun = job.attempts + (status in (TaskResultStatus.RUNNING, TaskResultStatus.SUCCESSFUL))
    result = TaskResult(
        task=task.using(priority=job.priority, queue_name=job.queue, backend=backend),
        id=job.id,
        status=status,
        enqueued_at=moment(job.created_at),
        started_at=moment(job.started_at),
        last_attempted_at=moment(job.started_at),
        finished_at=moment(job.completed_at or _last(job)) if ended else None,
        args=job.data["args"],
        kwargs=job.data["kwargs"],
        backend=backend,
        errors=[_error(job)] if job.error else [],
        worker_ids=[UNKNOWN_WORKER] * begun,
    )
    object.__setattr__(result, "_return_value", job.result)
    return result


def moment(at: datetime | None) -> datetime | None:
    """A time in the form that Django's settings require."""
    if at is None:
        return None
    return at if settings.USE_TZ else at.astimezone().replace(tzinfo=None)


def _last(job: Job) -> datetime | None:
    return job.timeline[-1].timestamp if job.timeline else None


def _error(job: Job) -> TaskError:
    stack = job.stacktrace or [job.error or ""]
    return TaskError(exception_class_path=_class_path(job.error or "", stack), traceback="\n".join(stack))


def _class_path(error: str, stack: list[str]) -> str:
    """The path of the exception's class: the traceback has the full path, the error has the name."""
    name = re.match(r"\w+", error)
    if name is not None:
        for line in reversed(stack):
            if found := re.match(rf"((?:\w+\.)*{name[0]})(?::|$)", line):
                return found[1] if "." in found[1] else f"builtins.{found[1]}"
        if hasattr(builtins, name[0]):
            return f"builtins.{name[0]}"
    return "builtins.Exception"

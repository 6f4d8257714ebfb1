"""`BunqueueBackend`: a task becomes a job of the queue that has the task's queue name."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import msgspec
from django.apps import apps
from django.core import checks
from django.utils import timezone

from bunqueue.client.blocking.queue import Queue
from bunqueue.client.connection.endpoint_options import EndpointOptions
from bunqueue.client.models.jobs import Job
from bunqueue.client.options.job import JobOptions
from bunqueue.errors import BunqueueError
from bunqueue.model.decoders import decoder
from bunqueue.protocol.commands.core import Push

from .compat import BaseTaskBackend, Task, TaskResult, TaskResultDoesNotExist, TaskResultStatus, task_enqueued
from .results import result_of

JOB_OPTIONS, MODULES, OUTBOX = "job_options", "modules", "outbox"
DEFAULTS: JobOptions = {
    "max_attempts": 1,
    "stack_trace_limit": 100,
}  # tracebacks are kept in full, as in Django
ANY_QUEUE = "default"  # questions about a job do not depend on the queue


OUTBOX_APP = "bunqueue.integrations.django.outbox"


def in_outbox(job_id: str) -> Job | None:
    """A job that waits in the outbox, as the server will show it."""
    from .outbox.models import OutboxJob

    row = OutboxJob.objects.filter(job_id=job_id).first()
    if row is None:
        return None
    command = decoder(Push).decode(row.command)
    return Job(
        id=row.job_id,
        name=row.name,
        queue=row.queue,
        data=msgspec.msgpack.decode(command.data),
        priority=int(command.priority or 0),
        run_at_ms=row.created_at.timestamp() * 1000,
        created_at_ms=row.created_at.timestamp() * 1000,
    )


def _check_arguments(task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """TypeError where the job would fail with one."""
    context = (None,) if task.takes_context else ()
    try:
        inspect.signature(task.func).bind(*context, *args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{task.module_path}: {error}") from None


class BunqueueBackend(BaseTaskBackend):  # type: ignore[misc]  # Django has no types
    """See docs/integrations.md.

    OPTIONS are those of `bunqueue.Queue` that give the server's address (`url`, `host`, `port`, `token`,
    `tls`, `embedded`, `data_path`), `job_options`, and `modules`: modules with tasks in addition to the
    modules `tasks` of the installed apps. With `outbox`, `enqueue` writes the job into the outbox of the
    default database, in the current transaction, instead of sending it to the server. A task runs once unless
    the job options say otherwise: `max_attempts`.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        options = dict(self.options)
        self.job_options = cast("JobOptions", {**DEFAULTS, **options.pop(JOB_OPTIONS, {})})
        self.modules: list[str] = list(options.pop(MODULES, ()))
        self.outbox: bool = options.pop(OUTBOX, False)
        self.place = cast("EndpointOptions", options)
        self._queues: dict[str, Queue] = {}

    def queue(self, name: str) -> Queue:
        """The queue with that name."""
        found = self._queues.get(name)
        if found is None:
            found = self._queues[name] = Queue(name, default_job_options=self.job_options, **self.place)
        return found

    def close(self) -> None:
        """Close the connections. They are opened again when needed."""
        queues, self._queues = self._queues, {}
        for queue in queues.values():
            queue.close()

    def enqueue(self, task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskResult:
        """Add the task's job. When this returns, the job is safe; with the outbox, once the transaction has
        been committed."""
        return self._enqueue(task, args, kwargs, outbox=self.outbox)

    def enqueue_in_outbox(self, task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskResult:
        """Add the task's job with the current transaction, whatever the setting is."""
        return self._enqueue(task, args, kwargs, outbox=True)

    def _enqueue(
        self, task: Task, args: Sequence[Any], kwargs: Mapping[str, Any], *, outbox: bool
    ) -> TaskResult:
        self.validate_task(task)
        _check_arguments(task, args, kwargs)
        result = TaskResult(
            task=task,
            id="",
            status=TaskResultStatus.READY,
            enqueued_at=timezone.now(),
            started_at=None,
            last_attempted_at=None,
            finished_at=None,
            args=list(args),
            kwargs=dict(kwargs),
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        data = {"args": result.args, "kwargs": result.kwargs, "backend": self.alias}
        options: JobOptions = {"priority": task.priority}
        if task.run_after is not None:
            options["delay"] = max(0, (task.run_after - timezone.now()).total_seconds() * 1000)
        object.__setattr__(result, "id", self._add(task, data, options, outbox))
        task_enqueued.send(type(self), task_result=result)
        return result

    def _add(self, task: Task, data: dict[str, Any], options: JobOptions, outbox: bool) -> str:
        if not outbox:
            return self.queue(task.queue_name).add(task.module_path, data, **options).id
        from .outbox import add  # its model exists only if it is an installed app

        given: JobOptions = {**self.job_options, **options}
        return add(task.queue_name, task.module_path, data, **given)

    def get_result(self, result_id: str) -> TaskResult:
        """The result of a task, as long as its job is kept."""
        job = self.queue(ANY_QUEUE).get_job(result_id)
        if job is None and self.outbox and (waiting := in_outbox(result_id)) is not None:
            return result_of(waiting, self.alias)
        if job is None:
            raise TaskResultDoesNotExist(result_id)
        return result_of(job, self.alias)

    def check(self, **kwargs: Any) -> Iterable[checks.CheckMessage]:
        """Check that the options are allowed."""
        yield from super().check(**kwargs)
        if not isinstance(self.outbox, bool) or (self.outbox and not apps.is_installed(OUTBOX_APP)):
            text = f"is True or False; True needs {OUTBOX_APP!r} in INSTALLED_APPS"
            yield checks.Error(f"TASKS[{self.alias!r}]['OPTIONS']: {OUTBOX} {text}", id="bunqueue.E002")
        try:
            Queue(ANY_QUEUE, default_job_options=self.job_options, **self.place).close()
        except (BunqueueError, TypeError) as error:
            yield checks.Error(f"TASKS[{self.alias!r}]['OPTIONS']: {error}", id="bunqueue.E001")

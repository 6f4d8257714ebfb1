"""`BunqueueBackend`: a task becomes a job of the queue that has the task's queue name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from django.core import checks
from django.utils import timezone

from bunqueue.client.blocking.queue import Queue
from bunqueue.client.connection.endpoint_options import EndpointOptions
from bunqueue.client.options.job import JobOptions
from bunqueue.errors import BunqueueError

from .compat import BaseTaskBackend, Task, TaskResult, TaskResultDoesNotExist, TaskResultStatus, task_enqueued
from .results import result_of

JOB_OPTIONS, MODULES = "job_options", "modules"
DEFAULTS: JobOptions = {
    "max_attempts": 1,
    "stack_trace_limit": 100,
}  # tracebacks are kept in full, as in Django
ANY_QUEUE = "default"  # questions about a job do not depend on the queue


class BunqueueBackend(BaseTaskBackend):  # type: ignore[misc]  # Django has no types
    """See docs/integrations.md.

    OPTIONS are those of `bunqueue.Queue` that give the server's address (`url`, `host`, `port`, `token`,
    `tls`, `embedded`, `data_path`), `job_options`, and `modules`: modules with tasks in addition to the
    modules `tasks` of the installed apps. A task runs once unless the job options say otherwise:
    `max_attempts`.
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
        """Add the task's job. When this returns, the job is safe."""
        self.validate_task(task)
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
        job = self.queue(task.queue_name).add(task.module_path, data, **options)
        object.__setattr__(result, "id", job.id)
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> TaskResult:
        """The result of a task, as long as its job is kept."""
        job = self.queue(ANY_QUEUE).get_job(result_id)
        if job is None:
            raise TaskResultDoesNotExist(result_id)
        return result_of(job, self.alias)

    def check(self, **kwargs: Any) -> Iterable[checks.CheckMessage]:
        """Check that the options are allowed."""
        yield from super().check(**kwargs)
        try:
            Queue(ANY_QUEUE, default_job_options=self.job_options, **self.place).close()
        except (BunqueueError, TypeError) as error:
            yield checks.Error(f"TASKS[{self.alias!r}]['OPTIONS']: {error}", id="bunqueue.E001")

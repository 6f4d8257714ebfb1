"""Makes log lines name the job whose handler writes them, wherever the handler writes them from.

Context variables hold the job. Coroutines and `asyncio.to_thread` inherit these; the executors of
`concurrent.futures`, which `run_in_executor` uses, do not, so `jobs_in_pools` hands them over with each call.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import partial, wraps
from typing import Any

from bunqueue.logs import JOB_FIELDS, Field, ForPeople, escaped, for_people, log_for_people
from bunqueue.worker.active_job import ActiveJob, current_job
from bunqueue.workflow.context import step_var

MAX_NAMED = 10  # jobs named in a line; more are only counted

given_fields: ContextVar[Mapping[str, Field] | None] = ContextVar("bunqueue.log_fields", default=None)
"""Where no single job is known: in a batch, and in a process of a pool, which may be a copy of a process that
was running another job."""


def batch_fields(jobs: Sequence[ActiveJob[Any]]) -> dict[str, Field]:
    """The same for the lines of a handler that runs several jobs at once."""
    return {"queue": jobs[0].queue, "job_name": escaped(jobs[0].name), **ids_of(jobs)}


def ids_of(jobs: Sequence[ActiveJob[Any]]) -> dict[str, Field]:
    """The number of jobs, and the ids of the first ones."""
    return {"jobs": len(jobs), "job_ids": escaped(", ".join(job.id for job in jobs[:MAX_NAMED]))}


def job_fields() -> dict[str, Field]:
    """What a log line says about the job whose handler is running here; empty outside of jobs."""
    if (given := given_fields.get()) is not None:
        return dict(given)
    job = current_job(None)
    if job is None:
        return {}
    fields: dict[str, Field] = {
        "queue": job.queue,
        "job_id": escaped(job.id),
        "job_name": escaped(job.name),
        "attempt": job.attempts + 1,
    }
    if job.is_workflow:
        fields["workflow"] = fields["job_name"]
    if (step := step_var.get()) is not None:
        fields["step"] = escaped(step.name)
    if (request := job.request_id) is not None:
        fields["request_id"] = escaped(request)
    return fields


class JobLogFilter(logging.Filter):
    """For a handler of `logging`: adds `queue`, `job_id`, `job_name`, `attempt` and, in workflows, `workflow`
    and `step` to the records that handlers of jobs make.

        handler.addFilter(JobLogFilter())
        handler.setFormatter(logging.Formatter("%(message)s %(job_id)s", defaults={"job_id": "-"}))

    What the code itself gave under such a name, as `extra`, is kept under the name with a `_` behind it.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Never drops a record."""
        if not hasattr(record, JOB_FIELDS) and not hasattr(
            record, "fields"
        ):  # those name their job themselves
            fields = job_fields()
            setattr(record, JOB_FIELDS, fields)
            for name, value in fields.items():
                if name in vars(record):
                    setattr(record, name + "_", getattr(record, name))
                setattr(record, name, value)
        return True


@contextmanager
def jobs_in_pools() -> Iterator[None]:
    """Carry the current job into the calls that it gives to thread pools and process pools: `current_job()`
    in threads, and the fields of log lines in both. Calls from outside of jobs stay as they are.
    """
    before = ThreadPoolExecutor.submit, ProcessPoolExecutor.submit
    _replace(ThreadPoolExecutor, before[0], _in_thread)
    _replace(ProcessPoolExecutor, before[1], _in_process)
    try:
        yield
    finally:
        ThreadPoolExecutor.submit, ProcessPoolExecutor.submit = before  # type: ignore[method-assign]


def _replace(kind: type[Executor], submit: Any, carrying: Callable[[Any], Any]) -> None:
    @wraps(submit)
    def carry(self: Executor, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        found: Future[Any] = submit(self, carrying(fn), *args, **kwargs)
        return found

    kind.submit = carry  # type: ignore[method-assign]


def _in_thread(function: Any) -> Any:
    return function if current_job(None) is None else partial(copy_context().run, function)


def _in_process(function: Any) -> Any:
    return partial(_call_for, job_fields(), for_people(), function)


def _call_for(
    fields: Mapping[str, Field], configured: ForPeople | None, function: Any, /, *args: Any, **kwargs: Any
) -> Any:
    """Runs in a process of a pool."""
    if configured is not None and not logging.getLogger().handlers:  # not forked, or before it was configured
        with log_for_people(*configured, JobLogFilter()):
            pass
    outer = given_fields.set(fields)
    try:
        return function(*args, **kwargs)
    finally:
        given_fields.reset(outer)

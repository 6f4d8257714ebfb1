"""Adds jobs together with the current transaction."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, Unpack, overload

from django.db import transaction

from bunqueue.client.flow_plan import FlowJob
from bunqueue.client.options.job import JobOptions
from bunqueue.integrations.outbox import P, Typed, row_of

from .models import OutboxJob

if TYPE_CHECKING:
    from bunqueue.client.blocking.queue import Queue


class DjangoTask(Protocol[P]):
    """What Django's `@task` makes of a function."""

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Any: ...


@overload
def add(
    queue: str, name: str, data: object = None, /, *, using: str | None = None, **options: Unpack[JobOptions]
) -> str: ...


@overload
def add(job: FlowJob[Any], /, *, using: str | None = None) -> str: ...


@overload
def add(task: Typed[P] | DjangoTask[P], /, *args: P.args, **kwargs: P.kwargs) -> str: ...


def add(what: Any, /, *args: Any, **options: Any) -> str:
    """Write a job into the outbox of a database (`using`; None: the default one). Returns the id that the job
    will have.

        outbox.add(charge, order.pk)  # a function with @app.job, and its arguments, which are checked
        outbox.add(send_welcome, user.pk)  # a function with Django's @task, whose backend is bunqueue's
        outbox.add(charge.job(order.pk), using="orders")
        outbox.add("orders", "charge", {"order": order.pk}, max_attempts=5)

    The job is added when the current transaction has been committed and a relay has read the row; never if
    the transaction is rolled back. Raises OptionError, or PayloadError if `data` cannot be encoded.
    """
    if callable(make_backend := getattr(what, "get_backend", None)):
        return _add_task(make_backend(), what, args, options)
    using = None if _is_function(what) else options.pop("using", None)
    row = row_of(what, args, options)
    OutboxJob(**row._asdict()).save(using=using, force_insert=True)
    return row.job_id


def _add_task(backend: Any, task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Write the job of one of Django's tasks, which may have another backend."""
    if not hasattr(backend, "enqueue_in_outbox"):
        raise TypeError(f"{task.module_path}: the outbox needs BunqueueBackend, not {type(backend).__name__}")
    return str(backend.enqueue_in_outbox(task, args, kwargs).id)


def _is_function(what: object) -> bool:
    """Whether all keyword arguments are those of a function."""
    return not isinstance(what, str | FlowJob)


def add_on_commit(
    queue: Queue, name: str, data: object = None, *, using: str | None = None, **options: Unpack[JobOptions]
) -> None:
    """Add a job right after the commit of the current transaction, or at once outside of one.

    This needs no table and no relay. But if this process dies, or the server is unavailable, between the
    commit and the adding, the job is lost. `add` avoids that.
    """
    transaction.on_commit(partial(queue.add, name, data, **options), using=using)

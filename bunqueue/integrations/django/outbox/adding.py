"""Adds jobs together with the current transaction."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Unpack

from django.db import transaction

from bunqueue.client.options.job import JobOptions
from bunqueue.integrations.outbox import packed

from .models import OutboxJob

if TYPE_CHECKING:
    from bunqueue.client.blocking.queue import Queue


def add(
    queue: str, name: str, data: object = None, *, using: str | None = None, **options: Unpack[JobOptions]
) -> str:
    """Write a job into the outbox of a database (None: the default one). Returns the id that the job will
    have.

    The job is added when the current transaction has been committed and a relay has read the row; never if
    the transaction is rolled back. Raises OptionError, or PayloadError if `data` cannot be encoded.
    """
    job_id, command = packed(queue, name, data, options)
    row = OutboxJob(job_id=job_id, queue=queue, name=name, command=command)
    row.save(using=using, force_insert=True)
    return job_id


def add_on_commit(
    queue: Queue, name: str, data: object = None, *, using: str | None = None, **options: Unpack[JobOptions]
) -> None:
    """Add a job right after the commit of the current transaction, or at once outside of one.

    This needs no table and no relay. But if this process dies, or the server is unavailable, between the
    commit and the adding, the job is lost. `add` avoids that.
    """
    transaction.on_commit(partial(queue.add, name, data, **options), using=using)

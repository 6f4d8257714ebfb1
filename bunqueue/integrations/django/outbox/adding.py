"""Adding jobs with the transaction that goes on."""

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
    """Write a job into the outbox of a database (None: the default one); the id that it will have.

    It is added when the transaction that goes on has been committed and a relay has come by: never if it is
    rolled back. Raises OptionError, or PayloadError if `data` cannot be encoded.
    """
    job_id, command = packed(queue, name, data, options)
    row = OutboxJob(job_id=job_id, queue=queue, name=name, command=command)
    row.save(using=using, force_insert=True)
    return job_id


def add_on_commit(
    queue: Queue, name: str, data: object = None, *, using: str | None = None, **options: Unpack[JobOptions]
) -> None:
    """Add a job right after the commit of the current transaction, or at once outside of one.

    It needs no table and no relay; but should this process die, or the server be away, between the commit
    and the adding, the job is lost, which `add` rules out.
    """
    transaction.on_commit(partial(queue.add, name, data, **options), using=using)

"""The outbox, in the form that its relay uses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from django.db import close_old_connections, connections, router, transaction

from bunqueue.integrations.outbox import Batch, Row

from .models import OutboxJob


class DjangoBatch(Batch):
    """Rows of a table of this kind."""

    def write(self, using: str) -> None:
        """Write the outcomes to the database."""
        jobs = OutboxJob.objects.using(using)
        if self._done:
            jobs.filter(pk__in=self._done).delete()
        for pk, why in self._refused:
            jobs.filter(pk=pk).update(error=why)


class DjangoOutbox:
    """Implements `bunqueue.integrations.outbox.Outbox`."""

    def __init__(self, using: str | None = None) -> None:
        """`using` is the alias of a database. None: the database to which the model is written."""
        self._using = using or router.db_for_write(OutboxJob)

    @contextmanager
    def batch(self, limit: int) -> Iterator[DjangoBatch]:
        """The oldest rows. If the database supports it, they are locked, and rows that another relay has
        locked are skipped. Otherwise two relays may send the same row, which adds one job."""
        close_old_connections()
        locks = connections[self._using].features.has_select_for_update_skip_locked
        with transaction.atomic(using=self._using) if locks else nullcontext():
            batch = DjangoBatch(self._read(limit, locks=locks))
            yield batch
            batch.write(self._using)

    def _read(self, limit: int, *, locks: bool) -> list[Row]:
        found = OutboxJob.objects.using(self._using).filter(error__isnull=True).order_by("pk")
        if locks:
            found = found.select_for_update(skip_locked=True)
        columns = found.values_list("pk", "command", "created_at")[:limit]
        return [Row(pk, bytes(command), at.timestamp()) for pk, command, at in columns]

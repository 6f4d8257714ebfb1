"""The table of the outbox."""

from __future__ import annotations

from django.db import models


class OutboxJob(models.Model):  # type: ignore[misc]  # Django has no types
    """A job to add once its row is committed. The relay then removes the row."""

    job_id = models.CharField(max_length=1024)
    queue = models.CharField(max_length=256)
    name = models.TextField()
    command = models.BinaryField()
    created_at = models.DateTimeField(auto_now_add=True)
    error = models.TextField(null=True)
    """Why the server has refused it. Such rows wait for a person to handle them."""

    def __str__(self) -> str:
        return f"{self.name} in queue {self.queue}"

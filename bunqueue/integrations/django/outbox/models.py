"""The table."""

from __future__ import annotations

from django.db import models


class OutboxJob(models.Model):  # type: ignore[misc]  # Django has no types
    """A job that is to be added once its row is committed; the relay removes it then."""

    job_id = models.CharField(max_length=1024)
    queue = models.CharField(max_length=256)
    name = models.TextField()
    command = models.BinaryField()
    created_at = models.DateTimeField(auto_now_add=True)
    error = models.TextField(null=True)
    """Why the server has refused it; such rows wait for people."""

    def __str__(self) -> str:
        return f"{self.name} in queue {self.queue}"

"""Made by scripts/unasync.py from client/queue/__init__.py; do not edit."""

from __future__ import annotations

from bunqueue.client.blocking.queue.groups import JobGroup
from bunqueue.client.blocking.queue.handle import JobHandle
from bunqueue.client.blocking.queue.queue import Queue
from bunqueue.client.blocking.queue.workflow import WorkflowHandle

__all__ = ["JobGroup", "JobHandle", "Queue", "WorkflowHandle"]

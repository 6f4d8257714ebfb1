"""The public queue and job objects. `client/blocking/queue` is the same for threads."""

from __future__ import annotations

from bunqueue.client.queue.groups import AsyncJobGroup
from bunqueue.client.queue.handle import AsyncJobHandle
from bunqueue.client.queue.queue import AsyncQueue
from bunqueue.client.queue.workflow import AsyncWorkflowHandle

__all__ = ["AsyncJobGroup", "AsyncJobHandle", "AsyncQueue", "AsyncWorkflowHandle"]

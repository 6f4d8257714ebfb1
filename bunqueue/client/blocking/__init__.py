"""The blocking twins of the asynchronous client, made by `scripts/unasync.py`."""

from bunqueue.client.blocking.events import QueueEvents
from bunqueue.client.blocking.flow import FlowProducer
from bunqueue.client.blocking.group import QueueGroup
from bunqueue.client.blocking.queue import JobGroup, JobHandle, Queue

__all__ = ["FlowProducer", "JobGroup", "JobHandle", "Queue", "QueueEvents", "QueueGroup"]

"""Unique keys: which job holds a key, and how to release it early."""

from __future__ import annotations

from msgspec import Struct

from bunqueue.protocol.commands.base import Command, JobId, Key, QueueName, Reply, Route, Tag, command, http


class Holder(Struct, rename="camel", gc=False):
    """``job_id`` is null when the key is free."""

    job_id: str | None


class HolderReply(Reply, kw_only=True):
    data: Holder


class Freed(Struct, gc=False):
    count: int  # 0 or 1


class FreedReply(Reply, kw_only=True):
    data: Freed


class Removed(Struct, gc=False):
    removed: bool


class RemovedReply(Reply, kw_only=True):
    data: Removed


@http("GET /queues/{queue}/unique-keys/{deduplicationId}", Tag.JOBS_OF_A_QUEUE)
@command(Route.QUEUE)
class GetDeduplicationJobId(Command[HolderReply], tag="GetDeduplicationJobId"):
    """Get the id of the job that holds a unique key of a queue."""

    queue: QueueName
    deduplication_id: Key


@http("DELETE /queues/{queue}/unique-keys/{deduplicationId}", Tag.JOBS_OF_A_QUEUE)
@command(Route.QUEUE, writes=True, repeatable=True)
class RemoveDeduplicationKey(Command[FreedReply], tag="RemoveDeduplicationKey"):
    """Release a unique key of a queue; the job that holds it stays."""

    queue: QueueName
    deduplication_id: Key


@http("DELETE /jobs/{id}/unique-key", Tag.JOBS)
@command(Route.ID, writes=True, repeatable=True)
class RemoveJobDeduplicationKey(Command[RemovedReply], tag="RemoveJobDeduplicationKey"):
    """Release the unique key that a job holds; the job stays."""

    id: JobId

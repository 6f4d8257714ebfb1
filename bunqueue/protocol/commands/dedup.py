"""Unique keys: which job holds a key, and how to release it early."""

from msgspec import Struct

from bunqueue.model.rights import Verb
from bunqueue.protocol.commands.base import (
    Data,
    IdOf,
    Key,
    OfJob,
    OfQueue,
    Removed,
    Route,
    Tag,
    command,
    http,
)


class Holder(Struct, rename="camel", gc=False):
    """``job_id`` is null when the key is free."""

    job_id: IdOf | None


class Freed(Struct, gc=False):
    count: int  # 0 or 1


@http("GET /queues/{queue}/unique-keys/{deduplicationId}", Tag.JOBS_OF_A_QUEUE)
@command(Route.QUEUE, Verb.SEE)
class GetDeduplicationJobId(OfQueue[Data[Holder]], tag="GetDeduplicationJobId"):
    """Get the id of the job that holds a unique key of a queue."""

    deduplication_id: Key


@http("DELETE /queues/{queue}/unique-keys/{deduplicationId}", Tag.JOBS_OF_A_QUEUE)
@command(Route.QUEUE, Verb.OPERATE, writes=True, repeatable=True)
class RemoveDeduplicationKey(OfQueue[Data[Freed]], tag="RemoveDeduplicationKey"):
    """Release a unique key of a queue; the job that holds it stays."""

    deduplication_id: Key


@http("DELETE /jobs/{id}/unique-key", Tag.JOBS)
@command(Route.ID, Verb.OPERATE, writes=True, repeatable=True)
class RemoveJobDeduplicationKey(OfJob[Data[Removed]], tag="RemoveJobDeduplicationKey"):
    """Release the unique key that a job holds; the job stays."""

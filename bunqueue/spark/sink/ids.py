"""The id of a row without one: always the same for the same row within one write.

It is made of the row's content alone, not of its position or of the task's attempt: Spark may run a task
again elsewhere, with its rows in another order.
"""

from __future__ import annotations

from hashlib import blake2b

from msgspec.msgpack import Encoder

from bunqueue.model.ids import slot_of_queue

# Maps come from Spark in no order of their own.
_canonical = Encoder(order="deterministic").encode


def row_id(write_id: str, queue: str, name: str, options: dict[str, object], data: object) -> str:
    """An id for a job of this content.

    It has the slot of its queue where the server's own ids have theirs, so that the job and its id belong
    to the same shard. The digit after it is no UUID variant, so the id is never taken for a UUID.
    """
    content = _canonical([write_id, queue, name, options, data])
    text = blake2b(content, digest_size=16).hexdigest()
    return f"{text[:8]}-{text[8:12]}-7{slot_of_queue(queue):03x}-f{text[12:15]}-{text[15:27]}"

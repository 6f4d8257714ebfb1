"""The id of a row that comes without an id: always the same for the same row within one write.

It is made from the row's content alone, not from its position or the attempt of the task: Spark may run a
task again elsewhere, with its rows in another order.
"""

from __future__ import annotations

from hashlib import blake2b

from msgspec.msgpack import Encoder

from bunqueue.model.ids import slot_of_queue

# Spark gives maps in arbitrary order.
_canonical = Encoder(order="deterministic").encode


def row_id(write_id: str, queue: str, name: str, options: dict[str, object], data: object) -> str:
    """An id for a job with this content.

    It has the slot of its queue in the same place as the server's own ids, so the job and its id belong to
    the same shard. The digit after it is not a UUID variant, so the id is never taken for a UUID.
    """
    content = _canonical([write_id, queue, name, options, data])
    text = blake2b(content, digest_size=16).hexdigest()
    return f"{text[:8]}-{text[8:12]}-7{slot_of_queue(queue):03x}-f{text[12:15]}-{text[15:27]}"

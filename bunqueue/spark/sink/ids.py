"""The id of a row that brings none: the same one each time the row is written in one write.

It is made of what the row says and of nothing else, neither its place nor the attempt of a task: Spark may
have a task run again elsewhere, with its rows in another order.
"""

from __future__ import annotations

from hashlib import blake2b

from msgspec.msgpack import Encoder

from bunqueue.model.ids import slot_of_queue

# Maps come from Spark in no order of their own.
_canonical = Encoder(order="deterministic").encode


def row_id(write_id: str, queue: str, name: str, options: dict[str, object], data: object) -> str:
    """An id for a job of this content.

    It has the slot of its queue where the server's own ids have theirs, so that the job and its id are the
    same shard's business. What follows there is no variant of UUIDs, so it is never taken for one of these.
    """
    content = _canonical([write_id, queue, name, options, data])
    text = blake2b(content, digest_size=16).hexdigest()
    return f"{text[:8]}-{text[8:12]}-7{slot_of_queue(queue):03x}-f{text[12:15]}-{text[15:27]}"

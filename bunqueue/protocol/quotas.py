"""What is said of a namespace that is at one of its bounds, by routers and shards alike."""

from __future__ import annotations

from bunqueue.model.quota import Excess

from .codes import Code
from .commands import CommandError

_TEXTS = {
    "connections": "has {value} connections to this router, and may have {bound}: close one first",
    "commands": "has sent {value} commands within this second, and may send {bound}",
    "bytes": "has sent {value} bytes within this second, and may send {bound}",
    "payload": "may send commands of up to {bound} bytes, and this one has {value}: send less at a time",
    "queues": "has {value} queues on this shard, and may have {bound}: obliterate an unused one",
    "jobs": "has {value} jobs on this shard that have not ended, and may have {bound}: "
    "add less, or try again when some have ended",
    "schedules": "has {value} schedules on this shard, and may have {bound}: delete one first",
    "webhooks": "has {value} webhooks, and may have {bound}: remove one first",
}


def refusal(namespace: str, excess: Excess) -> CommandError:
    """Why a command, or a connection, of a namespace is refused."""
    text = f"the namespace {namespace} {_TEXTS[excess.field].format(value=excess.value, bound=excess.bound)}"
    if excess.retry_after is None:
        return CommandError(text, Code.QUOTA, field=excess.field, value=excess.value, bound=excess.bound)
    return CommandError(
        f"{text}: try again in {excess.retry_after} ms",
        Code.QUOTA,
        field=excess.field,
        value=excess.value,
        bound=excess.bound,
        retry_after=excess.retry_after,
    )

"""When an active job counts as stalled."""

from msgspec import UNSET, Struct, UnsetType

from bunqueue.model.rights import Verb
from bunqueue.model.stall import StallConfig
from bunqueue.protocol.commands.base import (
    Number,
    OfQueue,
    Ok,
    Reply,
    Route,
    Tag,
    command,
    http,
)


class StallSettings(Struct, rename="camel", omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """The changes to a queue's StallConfig; numbers may be given as text."""

    enabled: bool | UnsetType = UNSET
    stall_interval: Number | UnsetType = UNSET
    max_stalls: Number | UnsetType = UNSET
    grace_period: Number | UnsetType = UNSET


@http("PUT /queues/{queue}/stall-config", Tag.QUEUES)
@command(Route.QUEUE, Verb.OPERATE, writes=True, repeatable=True, since=3)
class SetStallConfig(OfQueue[Ok], tag="SetStallConfig"):
    """Change when jobs of a queue count as stalled; absent fields keep their values.

    The detector runs every 5 s.  A job that has sent no heartbeat for ``stallInterval`` ms in two of its
    passes returns to its queue; the ``maxStalls``-th time it becomes a dead letter.  The first
    ``gracePeriod`` ms of an attempt do not count.  A job may have its own ``stallTimeout``.  An unexpired
    lock protects its job from the default configuration, but not from one set by this command or with the
    job.
    """

    config: StallSettings


class StallConfigReply(Reply, kw_only=True):
    config: StallConfig


@http("GET /queues/{queue}/stall-config", Tag.QUEUES)
@command(Route.QUEUE, Verb.SEE, since=3)
class GetStallConfig(OfQueue[StallConfigReply], tag="GetStallConfig"):
    """Get when jobs of a queue count as stalled."""

"""When an active job counts as stalled."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from bunqueue.model.stall import StallConfig
from bunqueue.protocol.commands.base import Command, Number, Ok, QueueName, Reply, Route, command


class StallSettings(Struct, rename="camel", omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """What of a queue's StallConfig to change; numbers may be given as text."""

    enabled: bool | UnsetType = UNSET
    stall_interval: Number | UnsetType = UNSET
    max_stalls: Number | UnsetType = UNSET
    grace_period: Number | UnsetType = UNSET


@command(Route.QUEUE, Ok, writes=True, repeatable=True, since=3)
class SetStallConfig(Command, tag="SetStallConfig"):
    """Change when jobs of a queue count as stalled; what is not given stays as it is.

    A job that was silent for ``stallInterval`` ms in two passes of the detector, which are 5 s apart, goes
    back to its queue, and the ``maxStalls``-th time to the dead letters.  The first ``gracePeriod`` ms of
    an attempt do not count.  Jobs may have a ``stallTimeout`` of their own.  A lock that still runs protects
    its job from the default configuration, but not from one that was set here or with the job.
    """

    queue: QueueName
    config: StallSettings


class StallConfigReply(Reply, kw_only=True):
    config: StallConfig


@command(Route.QUEUE, StallConfigReply, since=3)
class GetStallConfig(Command, tag="GetStallConfig"):
    """When jobs of a queue count as stalled."""

    queue: QueueName

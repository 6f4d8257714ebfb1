"""What a host of a cluster reads from the store: rows, as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .placement import Shard


@dataclass(frozen=True, slots=True)
class HostRow:
    """A host as it has entered itself."""

    id: str
    name: str
    number: int
    link: str
    certificate: str
    clients: str
    version: str
    schema: int
    oldest: int
    newest: int
    heartbeat: int
    draining: bool


@dataclass(frozen=True, slots=True)
class ShardRow:
    """A shard, and who owns it."""

    id: int
    home: str
    token: str
    epoch: int
    heartbeat: int
    position: int
    schema: int
    wanted: str
    snapshot: int
    followers: Mapping[str, int]

    @property
    def owner(self) -> str:
        """The host that owns it; "" without one."""
        return self.token.partition("/")[0]

    @property
    def for_plan(self) -> Shard:
        """The same, as `router.core.placement` wants it."""
        return Shard(self.id, self.home, self.owner, self.position, self.schema, self.followers)


@dataclass(frozen=True, slots=True)
class View:
    """All of it, at one moment."""

    hosts: Sequence[HostRow]
    shards: Sequence[ShardRow]

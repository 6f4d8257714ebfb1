"""Where each shard is served: by a process on this host, by another host, or by nobody."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from .ports import Endpoint, LocalEndpoint, RemoteEndpoint
from .routing import Routes


class ShardMap:
    """The shards of the server, by number."""

    __slots__ = ("_leaving", "damaged", "links", "routes")

    def __init__(self, shards: int) -> None:
        self.routes = Routes(shards)
        """Which shard each queue and id belongs to."""
        self.links: list[Endpoint | None] = [None] * shards
        """Where commands for each shard go; None: it has no owner that is reached."""
        self.damaged: dict[int, str] = {}
        """Shards that are out of service until their files are repaired, and how to do that."""
        self._leaving: dict[int, Endpoint] = {}  # shards that are given up, and still answer

    def answering(self, shard: int) -> tuple[Endpoint | None, Endpoint | None]:
        """The owner of a shard, and the one that is giving it up, which still answers; None without one."""
        return self.links[shard], self._leaving.get(shard)

    def local(self, shard: int) -> LocalEndpoint | None:
        """The shard's process on this host, while it serves, or answers what it still has."""
        here = (link for link in self.answering(shard) if link is not None and link.is_local)
        return cast("LocalEndpoint | None", next(here, None))

    def remote(self, shard: int) -> RemoteEndpoint | None:
        """The same of a shard at another host."""
        elsewhere = (link for link in self.answering(shard) if link is not None and not link.is_local)
        return cast("RemoteEndpoint | None", next(elsewhere, None))

    @property
    def served(self) -> Sequence[Endpoint]:
        """The shards that have an owner."""
        return [link for link in self.links if link is not None]

    @property
    def served_here(self) -> Sequence[LocalEndpoint]:
        """Those of them that are owned by this host."""
        return [cast("LocalEndpoint", link) for link in self.links if link is not None and link.is_local]

    def is_overtaken(self, link: Endpoint) -> bool:
        """Whether the shard has a later owner than this one."""
        known = self.links[link.shard]
        return known is not None and known.epoch > link.epoch

    def serve(self, link: Endpoint) -> None:
        """From now on commands for the shard go there."""
        self.links[link.shard] = link
        self.damaged.pop(link.shard, None)

    def serve_here(self, link: Endpoint) -> None:
        """The same; the owner before has nothing more to answer."""
        self.serve(link)
        self._leaving.pop(link.shard, None)

    def pause(self, link: Endpoint) -> None:
        """Its owner gives the shard up: send it nothing more; it still answers."""
        if self.links[link.shard] is link:
            self.links[link.shard] = None
            self._leaving[link.shard] = link

    def lost(self, link: Endpoint) -> bool:
        """An endpoint has ended; whether it had anything to answer here."""
        if self.links[link.shard] is link:
            self.links[link.shard] = None
            return True
        return self._leaving.get(link.shard) is link or not link.is_local

    def handed_over(self, shard: int) -> None:
        """The owner that gives the shard up answers nothing more."""
        self._leaving.pop(shard, None)

    @property
    def missing(self) -> list[int]:
        """Shards without an owner that may still get one."""
        return [at for at, link in enumerate(self.links) if link is None and at not in self.damaged]

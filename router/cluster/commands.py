"""The cluster commands: what this host knows of the cluster, and what operators want of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from bunqueue.protocol import namespaces
from bunqueue.protocol.codec import encode_frame, request_id
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import COMMANDS, Command, CommandError, Data, refused
from bunqueue.protocol.commands.cluster import (
    ClusterDrain,
    ClusterForget,
    ClusterMove,
    ClusterRebalance,
    ClusterView,
    CopyView,
    HostView,
    PlaceView,
)
from bunqueue.protocol.commands.workers import ControlWorker
from bunqueue.protocol.framing import HEADER
from bunqueue.protocol.framing import frame as as_frame
from bunqueue.store.database import StoreError

from ..core.cluster_view import HostRow, ShardRow, View
from ..core.ports import Asks
from ..core.routing import decode
from .forwards import Forwards
from .store import ClusterStore

ANSWER_S = 10.0  # less than clients wait for a reply


def _unavailable(why: str) -> CommandError:
    text = f"the store cannot be changed now: {why}; see bunqueue store check"
    return CommandError(text, Code.STORE_UNAVAILABLE, retry_after=1000)


class ClusterState(Protocol):
    """What these commands see of the cluster."""

    store: ClusterStore
    forwards: Forwards

    @property
    def view(self) -> View | None:
        """As this host saw it last; None: it has seen nothing yet."""

    @property
    def cluster_name(self) -> str: ...

    @property
    def me(self) -> HostRow: ...

    @property
    def store_error(self) -> str:
        """Why the store cannot be read; "" while it can."""

    @property
    def reached(self) -> frozenset[str]:
        """The hosts that this one has a connection to."""

    def name(self, host: str) -> str: ...

    def is_alive(self, host: str) -> bool: ...

    def heartbeat_age_ms(self, host: str) -> float | None: ...

    def load_of(self, host: str) -> float | None: ...

    async def refresh(self) -> None:
        """See what has just been changed.  StoreError."""


class ClusterCommands:
    """Answers them on one host; any host can."""

    def __init__(self, cluster: ClusterState) -> None:
        self._cluster = cluster
        self._answering: set[asyncio.Task[None]] = set()

    def status(self) -> Data[ClusterView]:
        """As this host saw it last, about a second ago."""
        return Data(data=self.view())

    def view(self) -> ClusterView:
        """The same, as it is shown."""
        cluster, view = self._cluster, self._cluster.view
        hosts = [] if view is None else view.hosts
        shards = [] if view is None else view.shards
        owned = Counter(shard.owner for shard in shards)
        followed = Counter(host for shard in shards for host in shard.followers)
        return ClusterView(
            cluster=cluster.cluster_name,
            host=cluster.me.name,
            hosts=[self._host(host, owned[host.id], followed[host.id]) for host in hosts],
            shards=[self._shard(shard) for shard in shards],
            error=cluster.store_error or None,
        )

    def _host(self, host: HostRow, owns: int, follows: int) -> HostView:
        cluster = self._cluster
        return HostView(
            name=host.name,
            id=host.id,
            link=host.link,
            clients=host.clients,
            version=host.version,
            alive=cluster.is_alive(host.id),
            reached=host.id == cluster.me.id or host.id in cluster.reached,
            draining=host.draining,
            owns=owns,
            follows=follows,
            beat_age=cluster.heartbeat_age_ms(host.id),
            load=cluster.load_of(host.id),
        )

    def _shard(self, shard: ShardRow) -> PlaceView:
        name = self._cluster.name
        copies = [
            CopyView(name(host), position, max(0, shard.position - position))
            for host, position in sorted(shard.followers.items())
        ]
        return PlaceView(
            shard=shard.id,
            owner=name(shard.owner),
            home=name(shard.home),
            wanted=name(shard.wanted),
            epoch=shard.epoch,
            position=shard.position,
            snapshot=shard.snapshot,
            copies=copies,
        )

    def answer_later(self, client: Asks, payload: bytes) -> None:
        """Answer a command that takes as long as the store, or another host, takes."""
        task = asyncio.get_running_loop().create_task(self._answer_later(client, payload))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _answer_later(self, client: Asks, payload: bytes) -> None:
        prefix = "" if client.scope is None else client.scope.prefix
        try:
            command = decode(payload)
            if isinstance(command, ControlWorker):
                namespaces.enter(prefix, command)
                found = await self._cluster.forwards.control_worker(command, client.scope)
                kind = COMMANDS[str(command.__struct_config__.tag)].reply
                frame = as_frame(namespaces.shown_encoded(prefix, kind, found[HEADER:]))
            else:
                reply = await self.answer(command)
                reply.req_id = command.req_id
                frame = encode_frame(reply)
        except CommandError as error:
            frame = encode_frame(namespaces.shown(prefix, refused(error, request_id(payload))))
        if not client.finished:
            client.gathered(frame)

    async def answer(self, command: Command) -> Data[ClusterView]:
        """Carry out a command that changes something. CommandError if it cannot be done."""
        if self._cluster.store_error:
            raise _unavailable(self._cluster.store_error)
        try:
            async with asyncio.timeout(ANSWER_S):
                await _CHANGES[type(command)](self, command)
                await self._cluster.refresh()
        except StoreError as error:
            raise _unavailable(str(error)) from error
        except TimeoutError as error:
            raise _unavailable(f"it has not answered within {ANSWER_S:g} s") from error
        return self.status()

    def _known(self, name: str) -> HostRow:
        view = self._cluster.view
        for host in [] if view is None else view.hosts:
            if name in (host.name, host.id):
                return host
        names = ", ".join(sorted(host.name for host in view.hosts)) if view is not None else ""
        raise CommandError(
            f"there is no host {name!r} in the cluster; there are {names}",
            Code.HOST_NOT_FOUND,
            field="host",
            value=name,
        )

    async def _drain(self, command: ClusterDrain) -> None:
        host = self._known(command.host)
        view = self._cluster.view
        others = [row for row in view.hosts if row.id != host.id and not row.draining] if view else []
        if command.draining and not any(self._cluster.is_alive(row.id) for row in others):
            raise CommandError(
                f"no other host could have the shards of {host.name!r}: start one, or end its draining",
                Code.HOST_STATE,
                field="host",
                value=command.host,
            )
        await self._cluster.store.drain(host.id, draining=command.draining)

    async def _move(self, command: ClusterMove) -> None:
        host, view = self._known(command.host), self._cluster.view
        last = len(view.shards) - 1 if view is not None else 0
        if command.shard > last:
            raise CommandError(
                f"shard must be at most {last}",
                Code.INVALID_FIELD,
                field="shard",
                value=command.shard,
                bound=last,
            )
        if not self._cluster.is_alive(host.id) or host.draining:
            drains = f"is draining: end that first, with bunqueue cluster drain --undo {host.name}"
            what = drains if host.draining else "is dead: start its server, or give another host"
            raise CommandError(
                f"the host {host.name!r} {what}", Code.HOST_STATE, field="host", value=command.host
            )
        await self._cluster.store.want(command.shard, host.id)

    async def _rebalance(self, command: ClusterRebalance) -> None:
        view = self._cluster.view
        for shard in [] if view is None else view.shards:
            if shard.wanted:
                await self._cluster.store.want(shard.id, "")

    async def _forget(self, command: ClusterForget) -> None:
        host = self._known(command.host)
        if self._cluster.is_alive(host.id):
            raise CommandError(
                f"the host {host.name!r} is alive: stop its server first",
                Code.HOST_STATE,
                field="host",
                value=command.host,
            )
        await self._cluster.store.forget(host.id)


_CHANGES: dict[type, Callable[[ClusterCommands, Any], Awaitable[None]]] = {
    ClusterDrain: ClusterCommands._drain,
    ClusterMove: ClusterCommands._move,
    ClusterRebalance: ClusterCommands._rebalance,
    ClusterForget: ClusterCommands._forget,
}

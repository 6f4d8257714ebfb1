"""One client's subscription to the events of a queue, on the router's side.

The shard pushes events, so this is where their flow meets a client that does not read: its events are dropped
and counted, and it gets their number once it has caught up.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from bunqueue.model.names import queue_name_problem
from bunqueue.protocol.event_frames import lost_frame
from bunqueue.protocol.framing import frame
from bunqueue.protocol.namespaces import shown_push
from bunqueue.server.links import shard_protocol as link_protocol

from ..core.ports import Endpoint
from .ports import Client, Clients


class Subscription:
    """Lasts until it is ended or replaced, or its connection ends."""

    __slots__ = ("_client", "_link", "_lost", "_queue", "shard")

    def __init__(self, client: Client, shard: int, link: Endpoint | None, queue: str) -> None:
        """``link``: None while the command that asks for it waits for the shard's next owner."""
        self._client = client
        self._link = link
        self._queue = queue
        self._lost = 0  # events dropped since the client stopped reading
        self.shard = shard

    def end(self) -> None:
        """The client wants no more events."""
        if self._link is not None:
            self._link.control(link_protocol.UNSUBSCRIBE, self._client.number)

    def resume(self, link: Endpoint) -> None:
        """The shard has another process, perhaps on another host, which continues the events.  The client
        is notified that some may be missing."""
        begins, self._link = self._link is None, link
        if begins:
            return  # the command is about to be sent
        link.control(link_protocol.SUBSCRIBE, self._client.number, self._queue.encode())
        self._lost += 1
        if not self._client.behind:
            self.caught_up()

    def deliver(self, shard: int, frames: bytes) -> None:
        """Events of a shard; those of a former subscription may still arrive."""
        if shard != self.shard:
            return
        if self._client.behind:
            self._lost += len(link_protocol.split_frames(frames))
        else:
            self._client.write(self._shown(frames))

    def caught_up(self) -> None:
        """The client has taken what it was sent."""
        if self._lost:
            lost, self._lost = self._lost, 0
            self._client.write(self._shown(lost_frame(self._queue, lost, time.time_ns() // 1_000_000)))

    def _shown(self, frames: bytes) -> bytes:
        """The events as the client may see them."""
        scope = self._client.scope
        if scope is None or not scope.prefix:
            return frames
        events = link_protocol.split_frames(frames)
        return b"".join([frame(shown_push(scope.prefix, event)) for event in events])


def subscribe(
    client: Client,
    links: Sequence[Endpoint | None],
    shard: int,
    queue: str,
    *,
    may_wait: bool = False,
) -> None:
    """Subscribe the client to the events of a queue, in place of any other; a command that will be refused
    changes nothing. ``may_wait``: while the shard has no owner, the command waits for one."""
    link = links[shard]
    if queue_name_problem(queue) or (link is None and not may_wait):
        return
    if client.subscription is not None and client.subscription.shard != shard:
        client.subscription.end()
    client.subscription = Subscription(client, shard, link, queue)


def resume_all(clients: Clients, link: Endpoint) -> None:
    """Clients continue with the events of a shard that had another process before; some may be missing."""
    for client in clients.values():
        if client.subscription is not None and client.subscription.shard == link.shard:
            client.subscription.resume(link)

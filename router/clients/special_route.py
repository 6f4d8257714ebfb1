"""Commands that do not simply go to the one shard of their key, along with the other frames of a read."""

from __future__ import annotations

from typing import Protocol

from bunqueue.protocol.codec import request_id
from bunqueue.protocol.commands import CommandError, Spec

from ..core.ports import Buffer
from ..core.routing import AUDITED, FIRST, HERE, IDS, SLOW, SUBSCRIBE, Peek
from .admission import may_wait
from .hub import Hub
from .own_commands import Session, answer, first_shard, refusal
from .ports import Client
from .subscription import subscribe

Batches = dict[int, list[Buffer]]


class Asking(Client, Session, Protocol):
    """A client that sends commands."""

    def audit(self, spec: Spec, payload: bytes) -> None:
        """A command is about to be carried out that leaves an entry in the trail."""


def special_route(
    client: Asking, hub: Hub, peeked: Peek, payload: Buffer, batches: Batches, out: list[bytes]
) -> int | None:
    """The shard of a command that is not of the plain kinds; None if it has been dealt with."""
    routes, handling = hub.shards.routes, peeked.handling
    if handling == SLOW:  # as in `_late_shard`, inlined: once for every pull
        shard = routes.of_peek(peeked)
        if may_wait(peeked) and (hub.shards.links[shard] is not None or hub.pending.waits):
            client.count_slow()
        return shard
    if peeked.spec.is_audited and client.limited:  # what comes through the gateway has an entry there
        client.audit(peeked.spec, bytes(payload))
    if handling == AUDITED:
        return _late_shard(client, hub, peeked)
    if handling == FIRST:
        return first_shard(client, peeked, payload, out)
    if handling == SUBSCRIBE:
        shard = routes.of_queue(peeked.key)
        if client.subscription is not None and client.subscription.shard != shard:
            client.forward(batches, out)  # an earlier subscription goes first, so it can be ended
            batches.clear()
        subscribe(client, hub.shards.links, shard, peeked.key, may_wait=hub.pending.waits)
        return shard
    if handling == IDS:
        try:
            one = routes.of_ids(peeked.key)
        except CommandError as error:
            out.append(refusal(error, request_id(payload)))
            return None
        if one is not None:
            return one
    # It does not travel with the rest, so the rest goes first: in the order of arrival, and in the version
    # agreed on until now.
    client.forward(batches, out)
    batches.clear()
    if hub.siblings.answers(peeked):
        client.count_slow()
        hub.siblings.ask(client, bytes(payload))
    elif hub.hosts.answers(peeked):
        client.count_slow()
        hub.hosts.answer_later(client, bytes(payload))
    elif handling == HERE:
        out.append(answer(client, bytes(payload)))
    else:
        hub.tickets.gather(client, peeked, bytes(payload), out)
    return None


def _late_shard(client: Asking, hub: Hub, peeked: Peek) -> int:
    """The shard of a command that may be answered late, or at once."""
    shard = hub.shards.routes.of_peek(peeked)
    is_late = (peeked.spec.heavy or peeked.spec.parks) and may_wait(peeked)
    if is_late and (hub.shards.links[shard] is not None or hub.pending.waits):
        client.count_slow()
    return shard

"""Commands that several shards answer together.

Each gets a *ticket*: a number used in place of the connection's, which distinguishes these answers from those
that go straight to the client. Numbers are reused, because a shard remembers every "connection" that has sent
it something.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from bunqueue.model.marks import Mark
from bunqueue.protocol.codec import request_id
from bunqueue.protocol.commands import CommandError, Spec
from bunqueue.protocol.commands.base import RequestId
from bunqueue.protocol.namespaces import place_of
from bunqueue.server.commands.additions import ScopedAddition
from bunqueue.server.links.gather import Gather, Part, for_some, split
from bunqueue.server.links.shard_protocol import ASKER, SEVERED, TICKET, pack_connections

from ..core.ports import Asks
from ..core.routing import IDS, Peek, decode
from ..core.sending import send
from ..core.shard_map import ShardMap
from .own_commands import refusal
from .pending import PendingCommands
from .turns import Turns


def _within(prefix: str, mark: Mark, shard_of: Callable[[str], int]) -> Callable[[str], int]:
    """The same for names that clients in a namespace give."""
    return (lambda name: shard_of(place_of(prefix, mark, name))) if prefix else shard_of


class _Ticket(NamedTuple):
    gather: Gather
    client: Asks
    req_id: RequestId
    once: bool  # parts of it may be done, and it must not be repeated
    partial: bool  # the answers of some shards are enough
    lost: list[int]  # the shards that died over it; once there is one, the client has had its answer


class Tickets:
    """All gathered commands in flight."""

    def __init__(self, shards: ShardMap, turns: Turns, pending: PendingCommands) -> None:
        self._shards, self._turns, self._pending = shards, turns, pending
        self.additions: Mapping[
            str, ScopedAddition
        ] = {}  # by command: what the router adds to a merged answer
        self._open: dict[int, _Ticket] = {}
        self._free: list[int] = []
        self.base = 0  # of the numbers of this router

    def gather(self, client: Asks, peeked: Peek, payload: bytes, out: list[bytes]) -> None:
        """Send a command to several shards; it counts as slow, so there are never many of these at once."""
        routes, ids = self._shards.routes, list[str]()
        prefix = "" if client.scope is None else client.scope.prefix
        try:
            command = decode(payload)
            if peeked.handling == IDS:
                ids = command.ids  # type: ignore[attr-defined]  # what Route.IDS promises
                parts = split(peeked.spec, command, _within(prefix, Mark.ID, routes.of_id))
            else:
                of_queue = _within(prefix, Mark.QUEUE, routes.of_queue)
                parts = for_some(peeked.spec, command, routes.shards, of_queue)
        except CommandError as error:
            out.append(refusal(error, request_id(payload)))
            return
        client.count_slow()
        self.ask(client, peeked.spec, parts, command.req_id, ids)

    def ask(
        self,
        client: Asks,
        spec: Spec,
        parts: Mapping[int, Part],
        req_id: RequestId,
        ids: Sequence[str] = (),
    ) -> None:
        """Send each shard its part; the client gets one answer. If a shard is down, that is a refusal; in a
        cluster only if it stays down, as another host will soon own it."""
        down = self._ask(client, spec, parts, req_id, ids)
        if not down:
            return

        def refuse() -> None:
            client.gathered(self._pending.refusal(down[0], req_id))

        if self._shards.damaged.keys() & set(down):
            refuse()
        else:
            size = sum(len(part.frame) for part in parts.values())

            def again() -> bool:
                return not self._ask(client, spec, parts, req_id, ids)

            self._pending.add_gathered(client, size, again, refuse)

    def _ask(
        self,
        client: Asks,
        spec: Spec,
        parts: Mapping[int, Part],
        req_id: RequestId,
        ids: Sequence[str],
    ) -> list[int]:
        """Ask them, unless shards are down whose answers are needed: these."""
        down = [shard for shard in sorted(parts) if self._shards.links[shard] is None]
        if spec.partial and len(down) < len(parts):
            parts = {shard: part for shard, part in parts.items() if shard not in down}
        elif down:
            return down
        first = TICKET | self.base
        number = self._free.pop() if self._free else first + len(self._open)
        once = spec.writes and not spec.repeatable
        addition = self.additions.get(spec.name)
        add = None if addition is None else partial(addition, scope=client.scope)
        gather = Gather(spec.merge, parts, ids, add, spec.reply)
        self._open[number] = _Ticket(gather, client, req_id, once, spec.partial, [])
        asker = pack_connections([client.number])
        for shard, part in parts.items():
            link = self._shards.links[shard]
            assert link is not None
            link.control(ASKER, number, asker)
            send(link, number, client.kind, client.scope, [part.frame])
        return []

    def answer(self, number: int, shard: int, reply: bytes) -> None:
        """The answer of one shard."""
        ticket = self._open.get(number)
        if ticket is None:
            return
        ticket.gather.add(shard, reply)
        self._end(number, ticket)

    def _end(self, number: int, ticket: _Ticket) -> None:
        """Send the answer, if it is complete."""
        if ticket.gather.waiting:
            return
        self._close(number)
        if not ticket.lost:
            self._turns.begin(ticket.client, lambda: self._reply(ticket))

    def shard_lost(self, shard: int) -> None:
        """A shard died: commands that wait for its answer will not get it.

        The outcome of a command that may be partly done is unknown, so its client is disconnected, like
        clients that had a command at that shard alone.
        """
        for number in list(self._open):
            self.lost(number, shard)

    def lost(self, number: int, shard: int) -> None:
        """A shard will not answer one of the tickets."""
        ticket = self._open.get(number)
        if ticket is None or shard not in ticket.gather.waiting:
            return
        ticket.gather.waiting.discard(shard)
        if ticket.partial and (ticket.gather.waiting or ticket.gather.answered):
            self._end(number, ticket)
            return
        if ticket.once and not ticket.client.finished:
            ticket.client.finish(SEVERED)
        elif not ticket.lost and not ticket.client.finished:
            ticket.client.gathered(self._pending.refusal(shard, ticket.req_id))
        ticket.lost.append(shard)
        if not ticket.gather.waiting:
            self._close(number)

    def _close(self, number: int) -> None:
        del self._open[number]
        self._free.append(number)

    def _reply(self, ticket: _Ticket) -> None:
        """Merge the answers, which counts towards the client's share of time, and send the result."""
        if not ticket.client.finished:
            ticket.client.gathered(ticket.gather.result(ticket.req_id))

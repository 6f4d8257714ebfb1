"""One client: reads its bytes, sends frames to the shards they are for, and passes replies back as they come.

The hot path of the server is `ClientConnection._take`. It costs about a microsecond per command because it
does so little: it decodes no frame beyond the command's name and key, and creates no object, task or number
for a command. All frames of one read that are for one shard go there as one envelope.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Callable, Mapping
from typing import cast

from bunqueue.logs import get_logger
from bunqueue.model.scope import Scope
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError, Spec
from bunqueue.protocol.framing import HEADER, FrameTooLarge
from bunqueue.protocol.lenient import DECODE_ERRORS
from bunqueue.server.commands.server_commands import ServerCommands
from bunqueue.server.host.acceptor import Counted
from bunqueue.server.host.auth_throttle import DELAY_S
from bunqueue.server.host.pace import Slice
from bunqueue.server.identities.directory import Grant, names_of_certificate
from bunqueue.server.links import shard_protocol as link_protocol

from ..core.ports import Buffer, Endpoint, Subscribed
from ..core.routing import ID, QUEUE, SLOW
from ..core.sending import send
from .access import Access
from .admission import MAX_SLOW
from .audit_tap import TCP, AuditTap
from .backpressure import DEFERRED, SHUTDOWN, SLOW_READER, SLOWED, ReadGate
from .hub import Hub
from .in_flight import MAX_BYTES_AHEAD, InFlight
from .incoming import Incoming
from .memory_bounds import longest_frame
from .own_commands import refusal
from .special_route import Batches, special_route
from .turns import SLICE_S

HIGH_WATER = 1024 * 1024  # bytes that the client has not taken; beyond, it is not read either
MAX_DEFERRED = 64 * 1024  # bytes behind 50 long polls before reading pauses; reading on is how we see its end
PIECE = 8 * 1024  # bytes that are routed between two checks of the clock

_length_at = struct.Struct(">I").unpack_from
_log = get_logger("router")


class ClientConnection(asyncio.Protocol):
    """A client, from accept to its end."""

    __slots__ = (
        "_counted",
        "_finished",
        "_hub",
        "_tap",
        "_transport",
        "access",
        "gate",
        "half_closed",
        "in_flight",
        "incoming",
        "kind",
        "number",
        "silent",
        "subscription",
        "write",
    )

    write: Callable[[bytes], None]  # the transport's, or one that limits how much is unread
    limited = True  # refused when there are too many clients

    def __init__(self, hub: Hub, counted: Counted = lambda: None) -> None:
        self._hub, self._counted = hub, counted  # ``counted`` is called once the hub counts it as open
        self.access = Access(hub.limits.directory, hub.limits.rate_limit, hub.limits.quotas)
        self.kind = hub.limits.protocol
        self.number = 0
        self.incoming = Incoming()
        self.in_flight = InFlight()
        self.subscription: Subscribed | None = None
        self.silent = 0  # sweeps since it last sent something
        self.half_closed = False  # the client sends nothing more, but may still read
        self._tap: AuditTap | None = None  # once it has sent a command that leaves an entry in the trail
        self._finished = False  # no longer in the hub; further input is discarded

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=HIGH_WATER)
        self.write = self._transport.write
        self.gate = ReadGate(self._transport)
        clients, limits = self._hub.clients, self._hub.limits
        clients.open += self.limited
        self._counted()
        limit = min(limits.connections, limits.in_all)
        if clients.draining:
            self.abort()
        elif self.limited and self._hub.is_full and not self._hub.unauthenticated.drop_oldest():
            limits.refused += 1
            text = f"Too many connections (max {limit})"
            self.finish(link_protocol.CLOSED, CommandError(text, Code.TOO_MANY_CONNECTIONS, bound=limit))
        else:
            self.number = self._hub.add(self)
            if not self._has_certificate and self._hub.unauthenticated.enter(self, self._transport):
                self.incoming.defer()  # wrong tokens came from that address: delay reading
                asyncio.get_running_loop().call_later(DELAY_S, self.release)

    @property
    def _has_certificate(self) -> bool:
        """Whether it need not authenticate, or its certificate has done so."""
        directory = self._hub.limits.directory
        if self.access.known or not directory.knows_certificates:
            return self.access.known
        certificate = self._transport.get_extra_info("peercert")
        try:
            if self.access.present_certificate(names_of_certificate(certificate), directory):
                self._note_use(certificate)
        except CommandError as error:
            self.finish(link_protocol.CLOSED, error)
            return True
        return self.access.known

    def _note_use(self, certificate: Mapping[str, object] | None = None) -> None:
        if self.access.grant is not None:
            self._hub.limits.last_used.note(self.access.grant, self._address, time.time(), certificate)

    def connection_lost(self, exc: Exception | None) -> None:
        self._hub.lost(self, exc)
        if self._tap is not None:
            self._tap.end()
        self.access.leave()
        self._hub.clients.open -= self.limited
        self._finished = True

    def data_received(self, data: bytes) -> None:
        self.silent = 0
        self._hub.received(len(data))
        if self.incoming.rest is None:
            self._hub.turns.asked(self)
            self._take(data)
        else:
            self._continue(data)

    def eof_received(self) -> bool:
        """The client sends nothing more. It may still read, so the connection stays until everything is
        answered. With TLS, it ends now."""
        if self._finished or not self._transport.can_write_eof():
            return False
        self.half_closed = True
        for shard in self.in_flight:
            self.send_half_closed(self._hub.shards.links[shard])
        return not self._is_answered

    def send_half_closed(self, link: Endpoint | None) -> None:
        """After what was sent to a shard: that nothing else comes from this client, if that is so."""
        if self.half_closed and link is not None:
            link.control(link_protocol.HALF_CLOSED, self.number)

    def pause_writing(self) -> None:
        self.gate.close(SLOW_READER)
        self._write_with(self._write_to_slow_reader)

    def resume_writing(self) -> None:
        self._write_with(self._transport.write)
        if self.subscription is not None:
            self.subscription.caught_up()
        self.gate.open(SLOW_READER)

    # Called by the hub and the links

    def deliver(self, shard: int, replies: int, slow: int, body: bytes) -> None:
        """Replies of a shard, ready to send."""
        in_flight = self.in_flight
        in_flight[shard] -= replies
        self.write(body)
        if slow or in_flight.is_paused:
            in_flight.answered(slow)
            self._go_on()
        if self.half_closed:
            self._end_if_answered()

    def count_slow(self) -> None:
        """A command was sent that may be answered late."""
        self.in_flight.slow += 1

    def gathered(self, reply: bytes) -> None:
        """The reply to a gathered command."""
        self.write(reply)
        self.in_flight.answered(1)
        self._go_on()
        if self.half_closed:
            self._end_if_answered()

    @property
    def finished(self) -> bool:
        """True once the connection has ended for the rest of the server."""
        return self._finished

    @property
    def granted(self) -> Grant | None:
        """Who it is; None before it has authenticated."""
        return self.access.grant

    @property
    def scope(self) -> Scope | None:
        """To which queues its commands are limited, and what it may not read."""
        return self.access.scope

    def limit_to(self, scope: Scope | None) -> None:
        """The gateway sends what follows for somebody who is limited to this."""
        self.access.limit_to(scope)

    @property
    def behind(self) -> bool:
        """Whether it does not take what it was sent."""
        return self.gate.is_closed_for(SLOW_READER)

    @property
    def stuck(self) -> bool:
        """Whether it is in the middle of a frame although its socket is being read."""
        return bool(self.incoming.rest) and not self.incoming.deferred and not self.gate.closed

    @property
    def unrouted(self) -> int:
        """Bytes that it has sent and that are not routed yet."""
        return self.incoming.size

    @property
    def unread(self) -> int:
        """Bytes that it was sent and has not taken."""
        return self._transport.get_write_buffer_size()

    def finish(self, kind: int, error: CommandError | None = None) -> None:
        """End the connection, after sending the error if there is one.

        For the rest of the server it is gone at once. The socket stays open until the client has closed its
        side or some seconds have passed: closing it over unread bytes would reset the connection, and the
        client might never read the error.
        """
        if self._finished:
            return
        self._finished = True
        self.incoming.discard()
        self.access.leave()
        self._hub.remove(self, kind)
        if self._transport.is_closing():
            return
        if error:
            self.write(refusal(error))
        lingering = self._hub.clients.lingering
        if len(lingering) >= self._hub.limits.lingering:
            self._transport.close()
            return
        lingering[self] = 0
        plain = self._transport.can_write_eof()  # else TLS says goodbye, and waits for the client to do so
        (self._transport.write_eof if plain else self._transport.close)()
        self.gate.open_for_good()

    def abort(self) -> None:
        """End the connection at once, even with unsent data."""
        self._transport.abort()

    def drop(self, why: str) -> None:
        """`vanish`, and log why."""
        _log.warning(why, connection=self.number)
        self.vanish()

    def vanish(self) -> None:
        """`abort`, and discard all that is kept for the client."""
        self._hub.remove(self, link_protocol.BROKEN)
        self._finished = True
        self.incoming.discard()
        self.abort()

    def stop_reading(self) -> None:
        """The server stops: take no more commands, but deliver replies."""
        self.gate.close(SHUTDOWN)

    def close(self) -> None:
        """The server stops: close when everything is sent."""
        self._transport.close()

    @property
    def commands(self) -> ServerCommands:
        """Answers the commands that no shard does."""
        return self._hub.commands

    def authenticate(self, token: str) -> bool:
        """It has presented a token; whether that is known."""
        if not self.access.present_token(token, self._hub.limits.directory):
            self._hub.unauthenticated.wrong(self)
            return False
        self._note_use()
        self._hub.unauthenticated.leave(self)
        return True

    # The trail

    def audit(self, spec: Spec, payload: bytes) -> None:
        """A command is about to be carried out that leaves an entry in the trail."""
        if self._tap is None:
            self._tap = AuditTap(self._hub.limits.trail, self.write)
            self.write = self._tap
        assert self.access.grant is not None
        self._tap.expect(self.access.grant.identity, self._address, spec, payload)

    def _write_with(self, write: Callable[[bytes], None]) -> None:
        if self._tap is None:
            self.write = write
        else:
            self._tap.write = write

    def _note_refusal(self) -> None:
        grant = self.access.grant
        if self.limited and grant is not None:  # what comes through the gateway has an entry there
            self._hub.limits.trail.refused(grant.identity, self._address, TCP, self.access.refused)
        self.access.refused = ""

    @property
    def _address(self) -> str:
        return str((self._transport.get_extra_info("peername") or ("",))[0])

    # Bytes in

    def _take(self, data: Buffer) -> None:
        """Route the whole frames in ``data``, as far as one turn allows, and keep the rest. The hot path."""
        batches: Batches = {}
        out: list[bytes] = []
        start, size = 0, len(data)
        most = size - HEADER  # the last position where a frame may begin
        turn: Slice | None = None
        while True:
            start, is_whole = self._route(data, start, min(most, start + PIECE), batches, out)
            if start > most or not is_whole or self.in_flight.slow >= MAX_SLOW:
                break
            if not self.access.known and self._hub.unauthenticated.is_at_limit(self, len(out)):
                break
            if turn is None:
                turn = Slice(SLICE_S)
            elif turn.is_over or start > MAX_BYTES_AHEAD:
                break
        self.forward(batches, out)
        must_wait = self.in_flight.add_bytes(start)
        deferred = must_wait or (is_whole and start <= most)
        if out or start < size or deferred:
            self._answer_and_keep(out, data[start:], deferred=deferred)

    def _route(
        self, data: Buffer, start: int, last: int, batches: Batches, out: list[bytes]
    ) -> tuple[int, bool]:
        """Route frames that begin at or before ``last``, and stop after one that is not simply passed on.
        Returns the position after them, and whether the next frame may be whole."""
        routes, peek, size = self._hub.shards.routes, self.access.peek, len(data)
        shard_of = routes.queues.get
        while start <= last:
            body = start + HEADER
            end = body + _length_at(data, start)[0]
            if end > size:
                return start, False
            payload = data[body:end]
            try:
                peeked = peek(payload)
            except DECODE_ERRORS as error:
                last = start
                peeked = self.access.peek_again(bytes(payload), error, out)
                if peeked is None:
                    if self.access.refused:
                        self._note_refusal()
                    start = end
                    continue
            handling = peeked.handling
            if handling == QUEUE:
                shard = shard_of(peeked.key)
                if shard is None:
                    shard = routes.of_queue(peeked.key)
            elif handling == ID:
                shard = routes.of_id(peeked.key)
            else:
                shard = special_route(self, self._hub, peeked, payload, batches, out)
                if handling != SLOW or self.in_flight.slow >= MAX_SLOW:
                    last = start
                if shard is None:
                    start = end
                    continue
            batch = batches.get(shard)
            if batch is None:
                batches[shard] = [data[start:end]]
            else:
                batch.append(data[start:end])
            start = end
        return start, True

    def _answer_and_keep(self, out: list[bytes], rest: Buffer, *, deferred: bool) -> None:
        """Send what was answered here, and keep the rest."""
        if out:
            if not self.access.known and self._hub.unauthenticated.is_slowed(self):
                self._answer_late(b"".join(out))
                return
            self.write(b"".join(out))
            if not self.access.known and self._hub.unauthenticated.refused(self, len(out)):
                self.finish(link_protocol.CLOSED)
                return
        if deferred:
            self._defer(rest)
        elif rest:
            self._keep(rest)

    def _answer_late(self, frames: bytes) -> None:
        """Its address guesses tokens: it waits for the answer, and that was its last try."""
        self.incoming.defer()
        self.gate.close(SLOWED)
        asyncio.get_running_loop().call_later(DELAY_S, self._end_slowed, frames)

    def _end_slowed(self, frames: bytes) -> None:
        if not self._finished:
            self.write(frames)
            self.finish(link_protocol.CLOSED)

    def forward(self, batches: Batches, out: list[bytes]) -> None:
        """Send each shard its frames.  Those for a shard that is down are answered here."""
        links, in_flight = self._hub.shards.links, self.in_flight
        for shard, batch in batches.items():
            link = links[shard]
            if link is None:
                out += self._hub.pending.add(shard, self, self.kind, batch)
                continue
            in_flight.add(shard, len(batch))
            if self.access.scope is None:
                link.send(self.number, self.kind, batch)
            else:
                send(link, self.number, self.kind, self.access.scope, batch)
            if self.half_closed:
                self.send_half_closed(link)
            if link.full:
                link.throttle(self)

    def _keep(self, rest: Buffer) -> None:
        """Keep the beginning of a frame until its rest arrives."""
        need = HEADER
        if len(rest) >= HEADER:
            length = _length_at(rest)[0]
            if length > (limit := longest_frame(known=self.access.known)):
                text = str(FrameTooLarge(length, limit))
                self.finish(link_protocol.CLOSED, CommandError(text, Code.FRAME_TOO_LARGE, bound=limit))
                return
            need += length
        self.incoming.keep(rest, need)
        self._hub.bounds.grew(len(rest))

    def _defer(self, rest: Buffer) -> None:
        """Keep what has to wait for answers, or for its next turn."""
        self.incoming.defer(rest)
        waits = self.in_flight.must_wait
        if not waits or len(rest) > MAX_DEFERRED:
            self.gate.close(DEFERRED)  # reading more would only add to the bytes that wait
        if not waits:
            self.incoming.in_line = True
            self._hub.turns.wait(self, self._have_turn)

    def _go_on(self) -> None:
        """Something was answered: continue, in its turn, with what waited for that."""
        incoming = self.incoming
        if incoming.deferred and not incoming.in_line and not self.in_flight.must_wait:
            incoming.in_line = True
            self._hub.turns.begin(self, self._have_turn)

    def _have_turn(self) -> None:
        self.incoming.in_line = False
        self.release()

    def release(self) -> None:
        """Continue with what was deferred, if it may."""
        if not self.incoming.deferred or self.in_flight.must_wait:
            return
        if self._finished or self._hub.clients.draining:
            return
        deferred = self.incoming.release()
        self.gate.open(DEFERRED)
        if deferred:
            self._take(deferred)
        if self.half_closed:
            self._end_if_answered()

    @property
    def _is_answered(self) -> bool:
        return not self.incoming.deferred and self.in_flight.is_empty

    def _end_if_answered(self) -> None:
        self.silent = 0
        if self._is_answered:
            self._transport.close()

    def _continue(self, data: bytes) -> None:
        """Bytes that arrive while earlier ones wait."""
        if self._finished:
            return
        incoming = self.incoming
        whole = incoming.add(data)
        if whole is not None:
            self._take(whole)
            return
        if incoming.deferred and incoming.size > MAX_DEFERRED:
            self.gate.close(DEFERRED)
        self._hub.bounds.grew(len(data))

    def _write_to_slow_reader(self, data: bytes) -> None:
        """`write` while the client does not take what it was sent."""
        self._transport.write(data)
        if not self._finished:
            self._hub.bounds.wrote(self, len(data))

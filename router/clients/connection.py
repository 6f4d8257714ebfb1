"""One client: reads its bytes, sends frames to the shards they are for, and passes replies back as they come.

The hot path of the server is `ClientConnection._take`. It costs about a microsecond per command because it
does so little: it decodes no frame beyond the command's name and key, and creates no object, task or number
for a command. All frames of one read that are for one shard go there as one envelope.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any, cast

from bunqueue.logs import get_logger
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError
from bunqueue.protocol.framing import HEADER, FrameTooLarge
from bunqueue.protocol.lenient import DECODE_ERRORS
from bunqueue.server.commands.commands import ServerCommands
from bunqueue.server.host.acceptor import Counted
from bunqueue.server.host.auth_throttle import DELAY_S
from bunqueue.server.host.pace import Slice
from bunqueue.server.links import shard_protocol as link_protocol

from ..core.ports import Buffer, Endpoint, Subscribed
from ..core.routing import ID, QUEUE, SLOW, Peek, peek
from .admission import MAX_SLOW, RateLimit
from .backpressure import HELD, SHUTDOWN, SLOW_READER, ReadGate
from .bounds import longest_frame
from .hub import Hub
from .own_commands import guarded_peek, refusal, second_look
from .special_route import Batches, special_route
from .turns import SLICE_S

HIGH_WATER = 1024 * 1024  # bytes that the client has not taken; beyond, it is not read either
MAX_HELD = 64 * 1024  # bytes behind 50 long polls before reading pauses; reading on is how we see its end
LARGE = 256 * 1024  # frames from here on are sliced as views: copying them costs more than the view

PIECE = 8 * 1024  # bytes that are routed between two checks of the clock
MAX_AHEAD = 1024  # unanswered commands of one client at its shards; half of them keep the shards busy
MAX_BYTES_AHEAD = 1024 * 1024  # bytes of these commands; one frame may be larger

_length_at = struct.Struct(">I").unpack_from
_log = get_logger("router")


class ClientConnection(asyncio.Protocol):
    """A client, from accept to its end."""

    __slots__ = (
        "_counted",
        "_enough",
        "_finished",
        "_held",
        "_hub",
        "_in_line",
        "_need",
        "_peek",
        "_rate",
        "_since",
        "_transport",
        "behind",
        "carry",
        "gate",
        "half_closed",
        "in_flight",
        "kind",
        "known",
        "number",
        "reader",
        "silent",
        "slow",
        "subscription",
        "tokens",
        "write",
    )

    write: Callable[[bytes], None]  # the transport's, or one that limits how much is unread
    limited = True  # refused when there are too many clients

    def __init__(self, hub: Hub, counted: Counted = lambda: None) -> None:
        self._hub, self._counted = hub, counted  # ``counted`` is called once the hub counts it as open
        limits = hub.limits
        self.kind = limits.protocol
        self.tokens = limits.tokens
        self.known = not limits.tokens.full  # has shown a token
        self.reader = False  # has shown a token that may only read
        self._rate = RateLimit(limits.rate_limit) if limits.rate_limit else None
        self._peek: Any = peek if self.known and self._rate is None else self._guarded_peek
        self.in_flight: dict[int, int] = {}  # shard -> commands; a shard stays in it once used
        self.slow = 0  # commands in flight that may be answered late, including gathered ones
        self.carry: bytearray | None = None  # bytes not yet routed; None when nothing is pending
        self._need = 0  # length of ``carry`` when it contains a whole frame
        self._held = False  # ``carry`` waits for something other than more bytes
        self._in_line = False  # for its next turn
        self._since = 0  # bytes sent to shards since the last pause for answers
        self._enough = -1  # resume sending at this many commands in flight; -1: not paused
        self._finished = False  # no longer in the hub; further input is discarded
        self.half_closed = False  # the client sends nothing more, but may still read
        self.silent = 0  # sweeps since it last sent something
        self.number = 0
        self.subscription: Subscribed | None = None
        self.behind = False  # does not take what it was sent

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
        elif self.limited and self._hub.is_full and not self._hub.strangers.give_way():
            limits.refused += 1
            text = f"Too many connections (max {limit})"
            self.finish(link_protocol.CLOSED, CommandError(text, Code.TOO_MANY_CONNECTIONS, bound=limit))
        else:
            self.number = self._hub.add(self)
            if not self.known and self._hub.strangers.enter(self, self._transport):
                self._held, self.carry = True, bytearray()  # many guesses from that address: delay reading
                asyncio.get_running_loop().call_later(DELAY_S, self.release)

    def connection_lost(self, exc: Exception | None) -> None:
        self._hub.lost(self, exc)
        self._hub.clients.open -= self.limited
        self._finished = True

    def data_received(self, data: bytes) -> None:
        self.silent = 0
        self._hub.heard(len(data))
        if self.carry is None:
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
            self.tell_if_half_closed(self._hub.shards.links[shard])
        return not self._is_answered

    def tell_if_half_closed(self, link: Endpoint | None) -> None:
        """After what was sent to a shard: that nothing else comes from this client, if that is so."""
        if self.half_closed and link is not None:
            link.control(link_protocol.HALF_CLOSED, self.number)

    def pause_writing(self) -> None:
        self.gate.close(SLOW_READER)
        self.behind = True
        self.write = self._write_to_slow_reader

    def resume_writing(self) -> None:
        self.write = self._transport.write
        self.behind = False
        if self.subscription is not None:
            self.subscription.caught_up()
        self.gate.open(SLOW_READER)

    # Called by the hub and the links

    def deliver(self, shard: int, replies: int, slow: int, body: bytes) -> None:
        """Replies of a shard, ready to send."""
        self.in_flight[shard] -= replies
        self.write(body)
        if slow:
            self._relieve(slow)
        if self._enough >= 0:
            self._look_whether_answered()
        if self.half_closed:
            self._end_if_answered()

    def gathered(self, reply: bytes) -> None:
        """The reply to a gathered command."""
        self.write(reply)
        self._relieve(1)
        if self.half_closed:
            self._end_if_answered()

    @property
    def finished(self) -> bool:
        """True once the connection has ended for the rest of the server."""
        return self._finished

    @property
    def stuck(self) -> bool:
        """Whether it is in the middle of a frame although its socket is being read."""
        return bool(self.carry) and not self._held and not self.gate.closed

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
        self.carry = bytearray()
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
        self.carry = bytearray()
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

    def admitted(self, *, reader: bool = False) -> None:
        """It has authenticated; ``reader``: with a read-only token."""
        self.known, self.reader = True, reader
        self._hub.strangers.leave(self)
        self._peek = peek if self._rate is None and not reader else self._guarded_peek

    def guessed(self) -> None:
        """It has presented a wrong token."""
        self._hub.strangers.wrong(self)

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
            if start > most or not is_whole or self.slow >= MAX_SLOW:
                break
            if not self.known and self._hub.strangers.has_enough(self, len(out)):
                break
            if turn is None:
                turn = Slice(SLICE_S)
            elif turn.is_over or start > MAX_BYTES_AHEAD:
                break
        self.forward(batches, out)
        self._since += start
        if self._since > MAX_BYTES_AHEAD:
            self._wait_for_answers()
        held = (is_whole and start <= most) or self._waits_for_answers
        if out or start < size or held:
            self._answer_and_keep(out, data[start:], held=held)

    def _route(
        self, data: Buffer, start: int, last: int, batches: Batches, out: list[bytes]
    ) -> tuple[int, bool]:
        """Route frames that begin at or before ``last``, and stop after one that is not simply passed on.
        Returns the position after them, and whether the next frame may be whole."""
        routes, look_at, size = self._hub.shards.routes, self._peek, len(data)
        shard_of = routes.queues.get
        while start <= last:
            body = start + HEADER
            end = body + _length_at(data, start)[0]
            if end > size:
                return start, False
            payload = data[body:end]
            try:
                look = look_at(payload)
            except DECODE_ERRORS as error:
                last = start
                look = second_look(self, bytes(payload), error, out)
                if look is None:
                    start = end
                    continue
            handling = look.handling
            if handling == QUEUE:
                shard = shard_of(look.key)
                if shard is None:
                    shard = routes.of_queue(look.key)
            elif handling == ID:
                shard = routes.of_id(look.key)
            else:
                shard = special_route(self, self._hub, look, payload, batches, out)
                if handling != SLOW or self.slow >= MAX_SLOW:
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

    def _answer_and_keep(self, out: list[bytes], rest: Buffer, *, held: bool) -> None:
        """Send what was answered here, and keep the rest."""
        if out:
            self.write(b"".join(out))
            if not self.known and self._hub.strangers.refused(self, len(out)):
                self.finish(link_protocol.CLOSED)
                return
        if held:
            self._hold(rest)
        elif rest:
            self._keep(rest)

    def forward(self, batches: Batches, out: list[bytes]) -> None:
        """Send each shard its frames.  Those for a shard that is down are answered here."""
        links, in_flight = self._hub.shards.links, self.in_flight
        for shard, batch in batches.items():
            link = links[shard]
            if link is None:
                out += self._hub.pending.add(shard, self, self.kind, batch)
                continue
            under_way = in_flight[shard] = in_flight.get(shard, 0) + len(batch)
            if under_way > MAX_AHEAD:
                self._wait_for_answers()
            link.send(self.number, self.kind, batch)
            self.tell_if_half_closed(link)
            if link.full:
                link.hold_back(self)

    def _keep(self, rest: Buffer) -> None:
        """Keep the beginning of a frame until its rest arrives."""
        self._need = HEADER
        if len(rest) >= HEADER:
            length = _length_at(rest)[0]
            if length > (limit := longest_frame(known=self.known)):
                text = str(FrameTooLarge(length, limit))
                self.finish(link_protocol.CLOSED, CommandError(text, Code.FRAME_TOO_LARGE, bound=limit))
                return
            self._need = HEADER + length
        self.carry = bytearray(rest)
        self._hub.bounds.grew(len(rest))

    def _hold(self, rest: Buffer) -> None:
        """Keep what has to wait for answers, or for its next turn."""
        self._held = True
        self.carry = bytearray(rest)
        waits = self._waits_for_answers
        if not waits or len(rest) > MAX_HELD:
            self.gate.close(HELD)  # reading more would only add to the bytes that wait
        if not waits:
            self._in_line = True
            self._hub.turns.wait(self, self._have_turn)

    @property
    def _waits_for_answers(self) -> bool:
        return self.slow >= MAX_SLOW or self._enough >= 0

    def _go_on(self) -> None:
        """Something was answered: continue, in its turn, with what waited for that."""
        if self._held and not self._in_line and not self._waits_for_answers:
            self._in_line = True
            self._hub.turns.begin(self, self._have_turn)

    def _have_turn(self) -> None:
        self._in_line = False
        self.release()

    def release(self) -> None:
        """Go on with what was held, if it may."""
        if not self._held or self._waits_for_answers or self._finished or self._hub.clients.draining:
            return
        carry, self.carry, self._held = self.carry, None, False
        self.gate.open(HELD)
        if carry:
            self._take(bytes(carry))
        if self.half_closed:
            self._end_if_answered()

    @property
    def _is_answered(self) -> bool:
        return not (self._held or self.slow or any(self.in_flight.values()))

    def _end_if_answered(self) -> None:
        self.silent = 0
        if self._is_answered:
            self._transport.close()

    def _continue(self, data: bytes) -> None:
        """Bytes that arrive while earlier ones wait."""
        carry = self.carry
        if self._finished or carry is None:
            return
        carry += data
        self._hub.bounds.grew(len(data))
        if self._held:
            if len(carry) > MAX_HELD:
                self.gate.close(HELD)
        elif len(carry) >= self._need:
            self.carry = None
            self._take(memoryview(carry) if self._need > LARGE else bytes(carry))

    def _relieve(self, count: int) -> None:
        """Slow commands were answered: resume what was held back."""
        self.slow -= count
        self._go_on()

    def _wait_for_answers(self) -> None:
        """Too much is in flight: pause until half of it is answered."""
        self._since = 0
        if (ahead := sum(self.in_flight.values()) - self.slow) > 0:
            self._enough = ahead // 2

    def _look_whether_answered(self) -> None:
        if sum(self.in_flight.values()) - self.slow <= self._enough:
            self._since, self._enough = 0, -1
            self._go_on()

    def _guarded_peek(self, payload: Buffer) -> Peek:
        """`peek` for a connection that has a rate limit, may only read, or has not authenticated yet."""
        return guarded_peek(self, payload, self._rate)

    def _write_to_slow_reader(self, data: bytes) -> None:
        """`write` while the client does not take what it was sent."""
        self._transport.write(data)
        if not self._finished:
            self._hub.bounds.wrote(self, len(data))

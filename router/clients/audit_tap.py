"""What clients of the router leave in the trail: certain commands, with their outcome.

While such a command of a connection is unanswered, what the connection is sent is read as well. All others
cost nothing here.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import UNSET, Raw, msgpack

from bunqueue.model.rights import Identity
from bunqueue.protocol.codec import InvalidCommand
from bunqueue.protocol.commands import Spec
from bunqueue.protocol.framing import HEADER
from bunqueue.protocol.lenient import DECODE_ERRORS
from bunqueue.server.audit.entries import Entry, count_in, decode_answer, fields_of, shown
from bunqueue.server.audit.trail import Trail, ms
from bunqueue.server.links.shard_protocol import split_frames

from ..core.routing import decode

MAX_ANSWER = 64 * 1024  # bytes of an answer that is read; those of audited commands are small
TCP = "tcp"
UNANSWERED = "unanswered"  # the connection ended before: the command may have been carried out


class AuditTap:
    """Stands in for a connection's ``write``, and enters each audited command once it is answered."""

    __slots__ = ("_pending", "_trail", "write")

    def __init__(self, trail: Trail, write: Callable[[bytes], None]) -> None:
        self._trail, self.write = trail, write
        self._pending: dict[bytes, list[Entry]] = {}

    def expect(self, who: Identity, address: str, spec: Spec, payload: bytes) -> None:
        """A command is about to be carried out."""
        try:
            command = decode(payload)
        except InvalidCommand:
            return  # it is refused, and changes nothing
        on = shown(fields_of(command))
        what = spec.name
        entry = Entry(
            at=ms(),
            who=who.name,
            namespace=who.namespace,
            address=address,
            over=TCP,
            what=what,
            on=on,
            outcome=UNANSWERED,
        )
        request = command.req_id
        if request is UNSET or not isinstance(request, Raw):
            self._trail.add(entry)  # its client does not learn the outcome either
            return
        entry.request = _text(bytes(request))
        self._pending.setdefault(bytes(request), []).append(entry)

    def __call__(self, data: bytes) -> None:
        if self._pending:  # first, so that what a client knows to be done is in the trail
            for frame in split_frames(bytes(data)):
                if len(frame) + HEADER <= MAX_ANSWER:
                    self._answered(frame)
        self.write(data)

    def _answered(self, frame: bytes) -> None:
        try:
            answer = decode_answer(frame)
        except DECODE_ERRORS:
            return  # not an answer to such a command
        if answer.req_id is UNSET or not (waiting := self._pending.get(bytes(answer.req_id))):
            return
        entry = waiting.pop(0)
        if not waiting:
            del self._pending[bytes(answer.req_id)]
        entry.outcome = "ok" if answer.ok else answer.code or "error"
        entry.count = count_in(answer) if answer.ok else UNSET
        self._trail.add(entry)

    def end(self) -> None:
        """The connection has ended."""
        for entries in self._pending.values():
            for entry in entries:
                self._trail.add(entry)
        self._pending.clear()


def _text(request: bytes) -> str:
    """A request's id as people read it."""
    try:
        return str(msgpack.decode(request))[:64]
    except DECODE_ERRORS:
        return request.hex()[:64]

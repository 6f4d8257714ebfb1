"""Commands that only one router of the cluster can carry out: the one that a worker is connected to.

Each host asks all others, as its list of where workers are registered is a second old.
"""

from __future__ import annotations

import asyncio
from itertools import count

from msgspec import Struct
from msgspec.msgpack import Decoder

from bunqueue.model.scope import Scope
from bunqueue.protocol.codec import encode_frame, encode_reply, request_id
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError
from bunqueue.protocol.commands.workers import ControlWorker
from bunqueue.protocol.framing import HEADER
from bunqueue.server.commands.workers import seen_by, unknown
from bunqueue.server.links import host_protocol as host_link

from ..clients.hub import Hub
from ..clients.own_commands import now_ms, refusal
from ..core.routing import decode
from .links import Links
from .uplink import Uplink
from .wire import HostConnection

ANSWER_S = 5.0  # less than clients wait for a reply


class _AnswerCode(Struct):
    """The fields of an answer that are read here."""

    code: str = ""


_decode_code = Decoder(_AnswerCode).decode


class Forwards:
    """Requests from this host to the others, and from the others to this one."""

    def __init__(self, hub: Hub, links: Links) -> None:
        self._hub, self._links = hub, links
        self._numbers = count(1)
        self._asked: dict[int, asyncio.Future[bytes]] = {}

    async def control_worker(self, command: ControlWorker, scope: Scope | None = None) -> bytes:
        """Have the worker's router carry it out; returns the frame of its answer. CommandError if none can,
        and for a worker that the scope does not see."""
        if scope is not None and not scope.is_everywhere:
            seen = seen_by(scope, self._hub.workers.listing(now_ms())).workers
            if all(worker.id != command.worker_id for worker in seen):
                raise unknown(command.worker_id)
        try:
            return self._control_here(command)
        except CommandError as error:
            if error.code != Code.WORKER_NOT_FOUND:
                raise
            not_here = error
        hosts = sorted(self._links.reached)
        answers = await asyncio.gather(*(self._ask(host, encode_reply(command)) for host in hosts))
        for answer in answers:
            if answer is not None and _decode_code(answer[HEADER:]).code != Code.WORKER_NOT_FOUND:
                return answer
        if silent := [host for host, answer in zip(hosts, answers, strict=True) if answer is None]:
            names = ", ".join(self._links.name(host) for host in silent)
            text = f"Worker not found, but it may be at a host that does not answer ({names}): try again"
            raise CommandError(text, Code.SHARD_UNAVAILABLE, field="workerId", value=command.worker_id)
        raise not_here

    def _control_here(self, command: ControlWorker) -> bytes:
        reply = self._hub.workers.control(command, now_ms())
        reply.req_id = command.req_id
        return encode_frame(reply)

    async def _ask(self, host: str, payload: bytes) -> bytes | None:
        """The frame that a host answers; None if it is unreachable, or does not answer in time."""
        uplink: Uplink | None = self._links.uplink(host)
        if uplink is None:
            return None
        number = next(self._numbers) & 0xFFFF_FFFF
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        uplink.send(host_link.FORWARD, payload, conn=number)
        try:
            await asyncio.wait([answer, uplink.closed], timeout=ANSWER_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            del self._asked[number]
        return answer.result() if answer.done() else None

    # Messages from other hosts

    def receive(self, connection: HostConnection, number: int, payload: bytes) -> None:
        """Another host asks."""
        try:
            command = decode(payload)
            if not isinstance(command, ControlWorker):
                raise CommandError("No command that a host answers for another", Code.UNKNOWN_COMMAND)
            frame = self._control_here(command)
        except CommandError as error:
            frame = refusal(error, request_id(payload))
        connection.send(host_link.FORWARDED, frame, conn=number)

    def answered(self, number: int, frame: bytes) -> None:
        """Another host has answered."""
        answer = self._asked.get(number)
        if answer is not None and not answer.done():
            answer.set_result(frame)

"""GET /ws: commands and events over one WebSocket, as JSON.

A message of the client is a command: ``{"cmd": ..., "reqId": ..., fields}``.  The answer has its ``reqId``.
Three commands are about the socket itself.  ``Auth`` with a ``token`` is for browsers, which cannot send a
token in a header.  ``Subscribe`` with ``queues``, ``types``, ``jobId`` and ``after``, all optional, replaces
an earlier subscription; its answer has the ``id`` of the place where it begins.  ``Unsubscribe`` ends the
subscription.  Events come as ``{"type": "events", "id": place after them, "events": [...]}``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import ExitStack, aclosing, suppress
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect

from bunqueue.logs import get_logger
from bunqueue.model.rights import Identity
from bunqueue.protocol.commands import COMMANDS
from bunqueue.server.identities.directory import Grant

from ..http import status
from ..http.access import TOO_MANY, Access, Forbidden, Known, authorise, known_of, peer_of
from ..http.commands import Caller, CommandEndpoint
from ..http.problems import Problem, problem_answer
from ..http.resources import OFFERED
from ..http.transcode import NotJson, TooManyValues, read_json, write_json
from ..http.unknown_fields import check_names
from .entries import EventBatch, parse_position
from .feed import Feed
from .log_reader import LogUnreadable
from .sse import MAX_LISTENERS, STUCK_S, begin, check_room, filter_of

MAX_COMMANDS = 50  # in progress on one socket; at the limit, it is not read until one is answered
AUTH_S = 10.0  # to send a token
MAX_ID = 128  # characters of a message's id in the trail
END_S = 1.0  # for the close handshake with a socket that reads nothing
UNAUTHORIZED, OVERLOADED, GOING_AWAY = 4401, 1013, 1001  # close codes

Message = dict[str, Any]

_log = get_logger("gateway")


class Sockets:
    """The endpoint, and all open sockets."""

    def __init__(self, carrier: CommandEndpoint, feed: Feed, access: Access, shards: int) -> None:
        self.carrier = carrier
        self.feed = feed
        self.access = access
        self.shards = shards
        self._open: dict[Session, None] = {}  # in the order of their arrival

    async def endpoint(self, socket: WebSocket) -> None:
        """Serve one socket until it ends."""
        try:
            check_names(socket.query_params, ())
        except Problem as problem:
            await socket.send_denial_response(problem_answer(problem))
            return
        await socket.accept()
        if len(self._open) >= MAX_LISTENERS and not self._give_way():
            await socket.close(OVERLOADED, "too many sockets")
            return
        session = Session(self, socket)
        self._open[session] = None
        try:
            await session.run()
        finally:
            self._open.pop(session, None)

    def _give_way(self) -> bool:
        """Close the oldest socket that has sent no token.  Returns False if all of them have."""
        unauthenticated = next((session for session in self._open if session.is_unauthenticated), None)
        if unauthenticated is not None:
            del self._open[unauthenticated]
            unauthenticated.leave()
        return unauthenticated is not None

    async def close(self) -> None:
        """End all sockets."""
        await asyncio.gather(*(session.end(GOING_AWAY) for session in list(self._open)))


class Session:
    """One socket."""

    def __init__(self, sockets: Sockets, socket: WebSocket) -> None:
        self._sockets = sockets
        self._socket = socket
        self._grant = known_of(socket).grant
        self._kept = ExitStack()
        self._room = asyncio.Semaphore(MAX_COMMANDS)
        self._turn = asyncio.Lock()  # for sending
        self._changing = asyncio.Lock()  # for changing the subscription
        self._tasks: set[asyncio.Task[None]] = set()
        self._listening: asyncio.Task[None] | None = None

    @property
    def is_unauthenticated(self) -> bool:
        """Whether it has sent no token, though it needs one."""
        return self._grant is None

    async def run(self) -> None:
        """Serve the socket until the client leaves."""
        loop = asyncio.get_running_loop()
        self._become(self._grant)
        self._admitted()
        late = loop.call_later(AUTH_S, self.leave)
        try:
            while True:
                text = await self._socket.receive_text()
                await self._room.acquire()
                task = loop.create_task(self._handle(text))
                self._tasks.add(task)
                task.add_done_callback(self._done)
        except (WebSocketDisconnect, RuntimeError, KeyError):  # the last one is raised for a binary message
            pass
        finally:
            late.cancel()
            self._kept.close()
            running = [*self._tasks, *([self._listening] if self._listening else [])]
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            await self.end(1003)

    def _admitted(self) -> None:
        """Lift the limits for unauthenticated sockets, if it has sent a token."""
        if not self.is_unauthenticated:
            self._socket.state.admit()

    def _become(self, grant: Grant | None) -> None:
        """The socket's rights are those of this grant, as long as it counts."""
        self._kept.close()
        self._grant = grant
        self._kept.enter_context(self._sockets.access.kept(Known(grant), self._lose_rights))

    def _lose_rights(self) -> None:
        self._grant = None
        self._unsubscribe()
        for task in self._tasks:
            task.cancel()
        self.leave()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._room.release()
        if not task.cancelled():
            task.exception()  # the socket has ended: nobody can receive the error

    async def end(self, code: int) -> None:
        """Close the socket, if it is open."""
        with suppress(RuntimeError, WebSocketDisconnect, OSError, TimeoutError):
            async with asyncio.timeout(END_S):
                await self._socket.close(code)

    def leave(self) -> None:
        """Close the socket soon, unless it has sent a token."""
        if self.is_unauthenticated:
            task = asyncio.get_running_loop().create_task(self.end(UNAUTHORIZED))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _send(self, body: bytes) -> None:
        async with self._turn, asyncio.timeout(STUCK_S):
            await self._socket.send_text(body.decode())

    async def _handle(self, text: str) -> None:
        """Answer one message."""
        number: Any = None
        caller = Caller(peer_of(self._socket.scope), "ws")
        try:
            with self._sockets.carrier.room.share() as take:
                take(len(text))
                message = _message(text)
                number = message.pop("reqId", None)
                caller = caller._replace(request=_shown_id(number))
                self._admit()
                reply = await self._answer(message, caller)
        except Problem as problem:
            reply = problem.reply
            if isinstance(problem, Forbidden):
                self._sockets.carrier.trail.refused(problem.who, *caller[:2], problem.what, caller.request)
        except Exception:  # an internal error: the client must not wait forever
            _log.exception("a message on a WebSocket could not be answered")
            reply = Problem(status.FAILED, "The gateway has made a mistake: see its log").reply
        if number is not None:
            reply["reqId"] = number
        await self._send(write_json(reply))
        if self._grant is None:
            await self.end(UNAUTHORIZED)

    def _admit(self) -> None:
        """Count a message like a request, for the rate limit."""
        if not self._sockets.access.admit(peer_of(self._socket.scope)):
            raise Problem(status.TOO_MANY, TOO_MANY)

    async def _answer(self, message: Message, caller: Caller) -> Message:
        name = message.pop("cmd", None)
        if name == "Auth":
            check_names(message, ("token",))
            access = self._sockets.access
            self._become(access.grant_of(str(message.get("token", "")), peer_of(self._socket.scope)))
            self._admitted()
            if self._grant is not None:
                return {"ok": True}
            await access.wrong_token(peer_of(self._socket.scope))
            return {"ok": False, "error": "Invalid token"}
        if self._grant is None:
            raise Problem(status.UNAUTHORIZED, "Not authenticated")
        if name == "Subscribe":
            authorise(self._grant.identity, COMMANDS["GetEvents"].verbs, name)
            check_names(message, ("queues", "types", "jobId", "after"))
            return await self._subscribe(message, self._grant.identity)
        if name == "Unsubscribe":
            check_names(message, ())
            async with self._changing:
                self._unsubscribe()
            return {"ok": True}
        spec, identity = OFFERED.get(name) if isinstance(name, str) else None, self._grant.identity
        if spec is None:
            raise Problem(status.NOT_FOUND, f"Unknown command: {name}")
        return await self._sockets.carrier.carry_out(spec, message, identity=identity, caller=caller)

    # Events

    async def _subscribe(self, message: Message, identity: Identity) -> Message:
        sockets = self._sockets
        queues, types = (_texts(message, name) for name in ("queues", "types"))
        job, after = (_text(message, name) for name in ("jobId", "after"))
        wanted = filter_of(queues, types, job, identity)
        places = parse_position(after, sockets.shards) if after else None
        if after and places is None:
            raise Problem(status.BAD_REQUEST, "after is no place of this server's; subscribe without it")
        async with self._changing:
            self._unsubscribe()
            check_room(sockets.feed)
            events = sockets.feed.listen(wanted, places)
            place = await begin(events)
            self._listening = asyncio.get_running_loop().create_task(self._forward(events))
        return {"ok": True, "id": place}

    def _unsubscribe(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
            self._listening = None

    async def _forward(self, events: AsyncGenerator[EventBatch, None]) -> None:
        try:
            async with aclosing(events) as found:
                async for batch in found:
                    if batch.entries:
                        await self._send(rendered(batch))
        except (LogUnreadable, TimeoutError):
            await self.end(OVERLOADED)
        except (WebSocketDisconnect, RuntimeError, OSError):
            pass  # the socket has ended
        except Exception:  # an internal error: the client must not mistake it for a quiet time
            _log.exception("events could not be sent over a WebSocket")
            await self.end(OVERLOADED)
        else:
            await self.end(GOING_AWAY)


def _shown_id(number: Any) -> str:
    """The id of a message, as the trail shows it."""
    return "" if number is None else str(number)[:MAX_ID]


def rendered(batch: EventBatch) -> bytes:
    """Events as a message."""
    head = b'{"type":"events","id":"' + batch.place.encode() + b'","events":['
    return head + b",".join([entry.body for entry in batch.entries]) + b"]}"


def _message(text: str) -> Message:
    try:
        message = read_json(text.encode())
    except TooManyValues as error:
        raise Problem(status.TOO_LARGE, _of_message(error)) from None
    except (NotJson, UnicodeEncodeError) as error:
        raise Problem(status.BAD_REQUEST, _of_message(error)) from None
    if not isinstance(message, dict):
        raise Problem(status.BAD_REQUEST, "a message must be a JSON object")
    return message


def _of_message(error: Exception) -> str:
    return str(error).replace("the body", "the message")


def _texts(message: Message, name: str) -> list[str]:
    value = message.get(name) or []
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise Problem(status.INVALID, f"{name} must be a list of texts")
    return value


def _text(message: Message, name: str) -> str | None:
    value = message.get(name)
    if value is not None and not isinstance(value, str):
        raise Problem(status.INVALID, f"{name} must be a string")
    return value

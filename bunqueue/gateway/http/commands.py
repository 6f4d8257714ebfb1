"""From a request to a command, and from its reply to an answer."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from msgspec import UNSET, Raw, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from bunqueue.model.addresses import without_secrets
from bunqueue.model.rights import ANYBODY, EVERYBODY, Identity, may
from bunqueue.model.scope import Scope, scope_of
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import COMMANDS, Spec
from bunqueue.protocol.from_text import from_texts
from bunqueue.protocol.readable import MARK
from bunqueue.protocol.unknown_fields import MAX_SHOWN
from bunqueue.server.audit.entries import Entry, shown
from bunqueue.server.audit.trail import Trail, ms

from ..router_client.backend import Backend, Busy, Unanswered
from ..router_client.connection import RouterDisconnected
from . import status
from .access import authorise, is_lured, need, peer_of
from .bodies import Bodies, MemoryBudget
from .problems import Problem, answer
from .resources import OFFERED, Resource, with_defaults
from .segments import decoded
from .transcode import NotJson, read_packed, write_json, write_packed
from .unknown_fields import check_fields

_PULLS = frozenset({"PULL", "PULLB"})
MAX_WAIT_MS = 600_000  # the longest wait of any command

Endpoint = Callable[[Request], Awaitable[Response]]


class Caller(NamedTuple):
    """From where a command comes, and the id of its request, for the trail."""

    address: str
    over: str
    request: str = ""

    @classmethod
    def of(cls, request: Request) -> Caller:
        """That of an HTTP request."""
        return cls(peer_of(request.scope), "http", request.state.request_id)


INTERNAL = Caller("", "")
"""The gateway itself."""


class CommandEndpoint:
    """Carries out commands for HTTP."""

    def __init__(self, backend: Backend, trail: Trail) -> None:
        self._backend = backend
        self.trail = trail
        self.room = MemoryBudget()
        self._bodies = Bodies(self.room)
        self._stopping = asyncio.Event()

    def resource(self, resource: Resource) -> Endpoint:
        """The endpoint of a resource."""
        spec = resource.spec

        async def endpoint(request: Request) -> Response:
            identity = need(request, spec.verbs | spec.masked, spec.name)
            if spec.writes and request.method == "GET" and is_lured(request.headers):
                text = "a browser may be made to send a GET by any page: send POST to {}/pull"
                raise Problem(status.FORBIDDEN, text.format(request.url.path))
            async with self._bodies.read(request, resource.whole) as given:
                if resource.has_body:
                    _check_no_query(request)
                else:
                    given |= _from_query(request, spec, resource.whole)
                _add(given, _from_path(request, spec))
                return answered(await self.carry_out(spec, given, request, identity, Caller.of(request)))

        return endpoint

    async def command(self, request: Request) -> Response:
        """POST /commands/{command}: any command."""
        name = decoded(request.path_params)["command"]
        spec = OFFERED.get(name)
        if spec is None:
            need(request, ANYBODY, name)
            known = COMMANDS.get(name)
            hint = "; /events and /ws do what it does" if known is not None and known.of_connection else ""
            raise Problem(status.NOT_FOUND, f"Unknown command: {name}{hint}")
        identity = need(request, spec.verbs | spec.masked, name)
        async with self._bodies.read(request) as fields:
            _check_no_query(request)
            return answered(await self.carry_out(spec, fields, request, identity, Caller.of(request)))

    def stop(self) -> None:
        """End all waiting requests."""
        self._stopping.set()

    async def carry_out(
        self,
        spec: Spec,
        fields: dict[str, Any],
        request: Request | None = None,
        identity: Identity = EVERYBODY,
        caller: Caller = INTERNAL,
    ) -> dict[str, Any]:
        """The reply to a command, as `_carry_out` gets it.  The trail gets an entry of it, if it is audited.
        Raises Problem, also if the identity may not use the command."""
        authorise(identity, spec.verbs_of(fields.get("action")) | spec.masked, spec.name)
        if not spec.is_audited or caller is INTERNAL:
            return await self._carry_out(spec, fields, request, identity, caller)
        who, namespace, on = identity.name, identity.namespace, shown(fields)
        what, from_ = spec.name, caller._asdict()
        entry = Entry(at=ms(), who=who, namespace=namespace, **from_, what=what, on=on, outcome="ok")
        try:
            reply = await self._carry_out(spec, fields, request, identity, caller)
            entry.outcome = "ok" if reply.get("ok") else str(reply.get("code", "error"))
            entry.count = _count_in(reply)
        except Problem as problem:
            entry.outcome = str(problem.reply["code"])
            raise
        except BaseException:  # the client has left
            entry.outcome = "unanswered"
            raise
        finally:
            self.trail.add(entry)
        return reply

    async def _carry_out(
        self,
        spec: Spec,
        fields: dict[str, Any],
        request: Request | None,
        identity: Identity,
        caller: Caller,
    ) -> dict[str, Any]:
        """The reply to a command.  Raises Problem.  A refusal by the server is an ordinary reply.

        If the client disconnects while the command waits, the server drops the command.  ``fields`` is
        emptied when the command is sent: as values they take many times the memory that was reserved for
        them.
        """
        check_fields(spec.request, fields)
        filled = with_defaults(spec.name, fields)
        waits = filled.get("timeout")
        try:
            packed = {name: write_packed(value) for name, value in filled.items()}
            filled.clear()
            fields.clear()
            payload = await self._call(spec, packed, waits, request, identity)
            reply: dict[str, Any] = read_packed(payload)
        except RouterDisconnected as error:
            raise Problem(status.UNAVAILABLE, _lost(error)) from None
        except Unanswered:
            raise Problem(status.UNAVAILABLE, f"{spec.name} was not answered in time; {_UNKNOWN}") from None
        except Busy:
            raise Problem(status.UNAVAILABLE, "too many requests wait already, try again") from None
        except NotJson as error:
            raise Problem(status.NO_JSON, str(error)) from None
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise Problem(status.INVALID, f"a value cannot be sent to the server: {error}") from None
        reply.pop("reqId", None)
        if reply.get("code") == Code.FORBIDDEN and caller is not INTERNAL:
            self.trail.refused(identity, caller.address, caller.over, spec.name)
        if spec.name in _PULLS and reply.get("ok"):
            await self._without_unreadable(reply, scope_of(identity))
        if spec.masked and not may(identity, spec.verbs) and reply["ok"]:
            for hook in reply["data"]["webhooks"]:
                hook["url"] = without_secrets(hook["url"])
        return reply

    async def _without_unreadable(self, reply: dict[str, Any], scope: Scope | None) -> None:
        """Fail the jobs of a pull with data that cannot be decoded, at once and for good.  The other jobs
        stay in the reply.

        No worker could process the failed jobs, and the other jobs must not wait for their locks to expire.
        """
        pulled = reply["jobs"] if "jobs" in reply else [reply.get("job")]
        tokens = reply.get("tokens") or [reply.get("token")] * len(pulled)
        good = []
        for job, token in zip(pulled, tokens, strict=False):
            if job is None or MARK not in job:
                good.append((job, token))
                continue
            fields = {"id": job["id"], "error": f"the job's {job[MARK]}", "unrecoverable": True}
            await self._backend.call("FAIL", fields | ({"token": token} if token else {}), scope)
        if len(good) == len(pulled):
            return
        if "jobs" not in reply:
            reply["job"] = None
            reply.pop("token", None)
            return
        reply["jobs"] = [job for job, _ in good]
        if reply.get("tokens"):
            reply["tokens"] = [token for _, token in good]

    async def _call(
        self, spec: Spec, fields: dict[str, Raw], waits: Any, request: Request | None, identity: Identity
    ) -> bytes:
        scope = scope_of(identity)
        if scope is not None and not scope.limits and (spec.parks or not spec.writes):
            scope = None  # it adds no jobs, so its name is not needed: it shares connections with others
        if not spec.parks or not spec.is_slow(waits):
            return await self._backend.call(spec.name, fields, scope)
        longest = waits if isinstance(waits, int | float) else spec.default_timeout
        limit, reads = min(longest, MAX_WAIT_MS), not identity.changes
        waiting = self._backend.wait(spec.name, fields, limit, scope, reads=reads)
        return await (waiting if request is None else self._while_there(request, waiting))

    async def _while_there(self, request: Request, waiting: Awaitable[bytes]) -> bytes:
        """The result of ``waiting``, which is cancelled when the client disconnects or the server stops."""
        task = asyncio.ensure_future(waiting)
        ends = [asyncio.create_task(each) for each in (_until_disconnect(request), self._stopping.wait())]
        try:
            await asyncio.wait((task, *ends), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise Problem(status.UNAVAILABLE, "the server is stopping, try again")  # or nobody reads it
            return await task
        finally:
            for each in (task, *ends):
                each.cancel()


def _count_in(reply: dict[str, Any]) -> int | UnsetType:
    data = reply.get("data")
    places = (reply, data if isinstance(data, dict) else {})
    counts = [place[name] for place in places for name in ("count", "changed") if place.get(name) is not None]
    return counts[0] if counts and isinstance(counts[0], int) else UNSET


_UNKNOWN = "nobody knows whether it was carried out, so look before you repeat it"


def _lost(error: RouterDisconnected) -> str:
    if error.asked:
        return f"a part of the server restarted before it answered: {_UNKNOWN}"
    return "the server is not there at present; nothing was changed, try again"


def _from_query(request: Request, spec: Spec, whole: str | None) -> dict[str, Any]:
    query = request.query_params
    if whole is not None and whole in query:
        text = f"{whole} is the body; leave it out of the query"
        raise Problem(status.INVALID, text, reason=Code.UNKNOWN_FIELD, field=whole)
    return {name: from_texts(spec.request, name, query.getlist(name)) for name in dict.fromkeys(query.keys())}


def _check_no_query(request: Request) -> None:
    """Raise Problem for a query if the fields belong in the body, because the query would be ignored."""
    for name in request.query_params:
        text = f"{name[:MAX_SHOWN]} is in the query; send the fields of a {request.method} in the body"
        raise Problem(status.INVALID, text, reason=Code.UNKNOWN_FIELD, field=name[:MAX_SHOWN])


def _from_path(request: Request, spec: Spec) -> dict[str, Any]:
    return {
        name: from_texts(spec.request, name, [text]) for name, text in decoded(request.path_params).items()
    }


def _add(given: dict[str, Any], path: dict[str, Any]) -> None:
    """Add the fields that are in the path.  Raise Problem for a field that is also given elsewhere."""
    for name in path.keys() & given.keys():
        text = f"{name} is in the path already; leave it out of the body and the query"
        raise Problem(status.INVALID, text, reason=Code.UNKNOWN_FIELD, field=name)
    given |= path


async def _until_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def answered(reply: dict[str, Any]) -> Response:
    """A reply as an HTTP answer."""
    code = 200 if reply.get("ok") else status.status_of(str(reply.get("code")))
    wait = reply.get("retryAfter")
    headers = {"Retry-After": str(max(1, math.ceil(wait / 1000)))} if isinstance(wait, int) else None
    return answer(write_json(reply), code, headers)

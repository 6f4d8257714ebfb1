"""Sessions over HTTP: what one may do here, sign in with a token, sign out; list and end those of others."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, get_args

from starlette.requests import Request
from starlette.responses import Response

from bunqueue.model.rights import ANYBODY, Identity, Verb, may, names_of
from bunqueue.model.scope import scope_of
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import COMMANDS
from bunqueue.protocol.commands.find import Action
from bunqueue.protocol.scoping import of_server
from bunqueue.server.audit.trail import Trail
from bunqueue.server.settings.settings import Settings

from ..http import status
from ..http.access import END, Access, cookie_of, is_secure, known_of, need, need_everywhere, peer_of
from ..http.problems import Problem, answer
from ..http.resources import OFFERED
from ..http.segments import decoded
from ..http.sessions import Session, cookie
from ..http.transcode import write_json
from ..http.unknown_fields import check_names
from .notes import Notes
from .oidc import OidcSignIn


class SignIn:
    """The endpoints."""

    def __init__(self, settings: Settings, access: Access, trail: Trail, *, overheard: bool) -> None:
        """``overheard``: tokens come unencrypted over a network."""
        self._access = access
        self._notes = Notes(trail)
        self.oidc = OidcSignIn(access, self._notes)
        self._cluster = settings.cluster
        self._overheard = overheard

    async def shown(self, request: Request) -> Response:
        """GET /session: who the client is, and what it may do. Nobody needs a token for that."""
        check_names(request.query_params, ())
        grant, session = known_of(request)
        data: dict[str, Any] = {"plaintext": self._overheard, "known": grant is not None}
        if grant is not None:
            data |= _rights(grant.identity)
        if grant is not None and may(grant.identity, Verb.SEE):
            data["cluster"] = self._cluster
        if host := self.oidc.host:
            data["oidc"] = host
        if session is not None:
            data["until"] = round(session.until_s * 1000)
        return answer(write_json({"ok": True, "data": data}))

    async def begin(self, request: Request) -> Response:
        """POST /session: a session for the token in the header Authorization."""
        check_names(request.query_params, ())
        identity = need(request, ANYBODY, "a session")
        grant, before = known_of(request)
        if self._access.directory.is_open or grant is None:
            raise Problem(status.BAD_REQUEST, "this server wants no token, so there is nothing to sign in to")
        if before is not None:
            text = "this is a session already; send a token in the header Authorization to begin another"
            raise Problem(status.BAD_REQUEST, text)
        secret, session = self._access.sessions.begin(grant, peer_of(request.scope), time.time())
        self._notes.signed_in(request, identity)
        body = {"ok": True, "data": _described(session)}
        return answer(write_json(body), 200, self._cookie(request, secret))

    async def end_own(self, request: Request) -> Response:
        """DELETE /session: sign out."""
        check_names(request.query_params, ())
        grant, session = known_of(request)
        if grant is not None and session is not None:
            self._notes.signed_out(request, grant.identity)
            self._access.end_session(session.id, spared=getattr(request.state, END, None))
        return answer(write_json({"ok": True}), 200, self._cookie(request, ""))

    async def listed(self, request: Request) -> Response:
        """GET /sessions: those of everybody."""
        need_everywhere(request, Verb.ADMINISTER, "sessions")
        check_names(request.query_params, ())
        own = known_of(request).session
        found = [
            {**_described(each), "own": own is not None and each.id == own.id}
            for each in self._access.sessions.listed(time.time())
        ]
        return answer(write_json({"ok": True, "data": {"sessions": found}}))

    async def end(self, request: Request) -> Response:
        """DELETE /sessions/{id}: end one."""
        identity = need_everywhere(request, Verb.ADMINISTER, "sessions")
        check_names(request.query_params, ())
        number = decoded(request.path_params)["id"]
        ended = self._access.end_session(number, spared=getattr(request.state, END, None))
        if ended is None:
            text = "there is no session with this id; GET /sessions lists them"
            raise Problem(status.NOT_FOUND, text, reason=Code.SESSION_NOT_FOUND)
        self._notes.ended(request, identity, {"session": number, "of": ended.grant.identity.name})
        return answer(write_json({"ok": True}))

    def _cookie(self, request: Request, secret: str) -> dict[str, str]:
        name, secure = cookie_of(request.scope), is_secure(request.scope)
        return {"Set-Cookie": cookie(name, secret, self._access.sessions.max_age_s, secure=secure)}


def _rights(identity: Identity) -> dict[str, Any]:
    """What an identity may do, as the declarations of the commands say.  ``everywhere``: also with what is
    about the whole server."""
    bulk, scope = COMMANDS["ChangeJobs"], scope_of(identity)
    offered = [spec for spec in OFFERED.values() if scope is None or of_server(scope, spec) is None]
    return {
        "identity": identity.name,
        "verbs": names_of(identity.verbs),
        "commands": [spec.name for spec in offered if may(identity, spec.verbs | spec.masked)],
        "everywhere": scope is None or scope.is_everywhere,
        "bulk": _allowed(identity, bulk.verbs_of, get_args(Action)),
    }


def _allowed(identity: Identity, verbs_of: Any, actions: Iterable[str]) -> list[str]:
    return [action for action in actions if may(identity, verbs_of(action))]


def _described(session: Session) -> dict[str, Any]:
    return {
        "id": session.id,
        "identity": session.grant.identity.name,
        "address": session.address,
        "since": round(session.since_s * 1000),
        "until": round(session.until_s * 1000),
    }

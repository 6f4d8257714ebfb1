"""What the trail and the log say of people who sign in and out."""

from __future__ import annotations

import time
from typing import Any

from starlette.requests import Request

from bunqueue.model.rights import Identity
from bunqueue.protocol.codes import Code
from bunqueue.server.audit.entries import Entry
from bunqueue.server.audit.trail import Trail, ms

from ..http.access import peer_of

LOG_S = 5.0  # between two log lines about sign-ins that have failed: anybody may cause them


class Notes:
    """Writes them."""

    def __init__(self, trail: Trail) -> None:
        self._trail = trail
        self._next_s = 0.0

    def signed_in(self, request: Request, who: Identity) -> None:
        """A session has begun."""
        self._trail.add_once(_entry(request, who.name, "SignIn"))

    def signed_out(self, request: Request, who: Identity) -> None:
        """Somebody has ended their session."""
        self._trail.add_once(_entry(request, who.name, "SignOut"))

    def ended(self, request: Request, who: Identity, on: dict[str, Any]) -> None:
        """Somebody has ended the session of another."""
        self._trail.add(_entry(request, who.name, "EndSession", on=on))

    def refused(self, request: Request, who: str) -> None:
        """Somebody who is known elsewhere has no role here."""
        self._trail.add_once(_entry(request, who, "SignIn", outcome=Code.FORBIDDEN))

    def is_due(self) -> bool:
        """Whether the log may have another line."""
        now_s = time.monotonic()
        due = now_s >= self._next_s
        if due:
            self._next_s = now_s + LOG_S
        return due


def _entry(
    request: Request, who: str, what: str, *, outcome: str = "ok", on: dict[str, Any] | None = None
) -> Entry:
    address, number = peer_of(request.scope), request.state.request_id
    return Entry(
        at=ms(),
        who=who,
        address=address,
        over="http",
        what=what,
        on=on or {},
        outcome=outcome,
        request=number,
    )

"""Sessions of people who have signed in: a random cookie stands for what they were granted.

Pure. A session is made at a sign-in only, never from what a client brings, and its cookie counts only beside
a header that no form, link or page of another origin can send. Sessions are in memory: they end with the
gateway.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from hashlib import blake2b
from http.cookies import Morsel, SimpleCookie
from typing import NamedTuple

from bunqueue.server.identities.directory import Grant

HEADER = "x-bunqueue-session"
"""What a request with a cookie needs to have, with any value: pages of other origins may not send it."""
SECRET_BYTES = 32
ID_BYTES = 8
MAX_ALL = 10_000
MAX_EACH = 100  # of one identity: a team may share a token
SECURE_PREFIX = "__Host-"  # browsers take such a cookie only from this host itself, over TLS


class Session(NamedTuple):
    """Somebody who has signed in. Times are in seconds since the epoch."""

    id: str
    """For lists; it is no secret."""
    grant: Grant
    address: str
    since_s: float
    until_s: float


class Sessions:
    """All sessions of a gateway, the oldest first."""

    def __init__(self, max_age_s: float) -> None:
        self.max_age_s = max_age_s
        self._all: dict[bytes, Session] = {}

    def begin(self, grant: Grant, address: str, now_s: float) -> tuple[str, Session]:
        """A new session, and the secret of its cookie. If there are too many, the oldest ends."""
        self.keep(lambda session: now_s < session.until_s)
        own = [
            key for key, session in self._all.items() if session.grant.identity.name == grant.identity.name
        ]
        for key in own[: max(0, len(own) - MAX_EACH + 1)]:
            del self._all[key]
        if len(self._all) >= MAX_ALL:
            del self._all[next(iter(self._all))]
        secret = secrets.token_urlsafe(SECRET_BYTES)
        made = Session(secrets.token_hex(ID_BYTES), grant, address, now_s, now_s + self.max_age_s)
        self._all[_key(secret)] = made
        return secret, made

    def of(self, secret: str, now_s: float) -> Session | None:
        """The session of a cookie; None if it has ended."""
        found = self._all.get(_key(secret))
        return found if found is not None and now_s < found.until_s else None

    def end(self, number: str) -> Session | None:
        """End the session with this id; None if there is none."""
        key = next((key for key, session in self._all.items() if session.id == number), None)
        return None if key is None else self._all.pop(key)

    def keep(self, wanted: Callable[[Session], bool]) -> None:
        """End all others."""
        self._all = {key: session for key, session in self._all.items() if wanted(session)}

    def listed(self, now_s: float) -> list[Session]:
        """Those that go on."""
        return [session for session in self._all.values() if now_s < session.until_s]


def _key(secret: str) -> bytes:
    """Sessions are found by a hash, so that the time of a look-up says nothing about the secret."""
    return blake2b(secret.encode("utf-8", "surrogatepass"), digest_size=32).digest()


def cookie_name(port: int, *, secure: bool) -> str:
    """The cookie of a server. Browsers share cookies between the ports of a machine, so the name tells them
    apart."""
    return f"{SECURE_PREFIX if secure else ''}bunqueue-{port}"


def cookie(name: str, secret: str, max_age_s: float, *, secure: bool, same_site: str = "Strict") -> str:
    """The header that sets a cookie; one with no secret removes it."""
    made: SimpleCookie = SimpleCookie()
    made[name] = secret
    found: Morsel[str] = made[name]
    found["path"], found["httponly"], found["samesite"] = "/", True, same_site
    found["max-age"] = str(int(max_age_s) if secret else 0)
    if secure:
        found["secure"] = True
    return found.OutputString()

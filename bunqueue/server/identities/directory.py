"""The identities of a server: who presents a token or a certificate, and whether that still counts.

Every surface asks the same `Directory`, at authentication only. What a connection got there is a `Grant`;
once the directory does not hold it any more (revoked, expired, or with other rights), the connection ends.

Tokens are found by one keyed BLAKE2 hash and one look-up, whatever their number, so a wrong token costs next
to nothing. A slow hash such as Argon2 protects passwords that people choose; a made token has 256 random
bits, which nobody finds by trying, however fast the hash is.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from math import inf
from typing import NamedTuple

from bunqueue.model.quota import Quota
from bunqueue.model.rights import ALL, EVERYBODY, FULL_ACCESS, READ_ONLY, ROLES, Identity

from .people import NO_PEOPLE, People, is_name

KEY_BYTES = 16
SOON_S = 14 * 86_400
MADE = "bq"  # made tokens are "bq_ID_SECRET"; the id finds the identity and is no secret
ADMIN, READER = Identity(FULL_ACCESS, ALL), Identity(READ_ONLY, ROLES["reader"])
RESERVED = frozenset({ADMIN.name, READER.name})
"""The identities of the settings with these names."""


class StoredToken(NamedTuple):
    """What the file keeps of a made token. ``until`` is in seconds since the epoch."""

    salt: bytes
    digest: bytes
    until: float = inf


class Entry(NamedTuple):
    """An identity, and how one proves to be it."""

    identity: Identity
    expires: float = inf
    stored: Mapping[str, StoredToken] = {}
    plain: tuple[str, ...] = ()
    certificates: tuple[str, ...] = ()

    @property
    def ends(self) -> float:
        """When nobody can prove to be it any more."""
        made = max((token.until for token in self.stored.values()), default=-inf)
        return min(self.expires, inf if self.plain or self.certificates else made)


class Grant(NamedTuple):
    """What a connection got at authentication: its identity, and the credential that proved it."""

    identity: Identity
    credential: str
    groups: tuple[str, ...] = ()
    """Those of a person whose rights come from there."""


FULL = Grant(EVERYBODY, "")


class Directory:
    """All identities. It does not change: after a change of the file there is a new one."""

    def __init__(
        self,
        entries: Iterable[Entry] = (),
        key: bytes = b"",
        *,
        is_open: bool = False,
        people: People = NO_PEOPLE,
        quotas: Mapping[str, Quota] = {},
    ) -> None:
        """``key``: random bytes, so that nobody knows the hashes by which tokens are found."""
        self.is_open = is_open
        """Whether everybody may do everything, without a token."""
        self.people = people
        self.quotas = quotas
        """The bounds of namespaces."""
        self.entries = {entry.identity.name: entry for entry in entries}
        self._key = key
        self._until: dict[Grant, float] = {}
        self._stored: dict[str, tuple[Grant, StoredToken]] = {}
        self._plain: dict[bytes, Grant] = {}
        self._certificates: dict[str, Grant] = {}
        for entry in self.entries.values():
            self._enter(entry)

    def _enter(self, entry: Entry) -> None:
        for number, token in entry.stored.items():
            grant = Grant(entry.identity, f"token {number}")
            self._stored[number] = grant, token
            self._until[grant] = min(entry.expires, token.until)
        for text in entry.plain:
            # The same credential after a reload, so it must not depend on this object's key.
            grant = Grant(entry.identity, f"plain {blake2b(_bytes(text), digest_size=16).hexdigest()}")
            self._plain[self._digest(text)] = grant
            self._until[grant] = entry.expires
        for name in entry.certificates:
            self._certificates[name] = grant = Grant(entry.identity, f"certificate {name}")
            self._until[grant] = entry.expires

    @property
    def knows_certificates(self) -> bool:
        """Whether a client's certificate may be an identity."""
        return bool(self._certificates)

    def of_token(self, token: str, now_s: float) -> Grant | None:
        """Who presents this token; None for a wrong or expired one."""
        number = made_id(token)
        if number is not None and (found := self._stored.get(number)) is not None:
            grant, stored = found
            right = hmac.compare_digest(hashed(token, stored.salt), stored.digest)
            return grant if right and self.holds(grant, now_s) else None
        plain = self._plain.get(self._digest(token))
        return plain if plain is not None and self.holds(plain, now_s) else None

    def of_certificate(self, names: Iterable[str], now_s: float) -> Grant | None:
        """Who presents a certificate with these names; the first that is known counts."""
        for name in names:
            grant = self._certificates.get(name)
            if grant is not None and self.holds(grant, now_s):
                return grant
        return None

    def of_person(self, way: str, name: str, groups: Iterable[str]) -> Grant | None:
        """Who somebody is that a provider or a proxy knows; None if none of the groups has a role."""
        known = tuple(sorted({group for group in groups if group in self.people.groups}))
        if not known or not is_name(name) or not self.people.knows(way):
            return None
        return Grant(Identity(f"{way}:{name}", self.people.verbs_of(known)), way, known)

    def holds(self, grant: Grant, now_s: float) -> bool:
        """Whether a grant still counts: not revoked, not expired, with the same rights."""
        if grant.groups:
            people = self.people
            return people.knows(grant.credential) and people.verbs_of(grant.groups) == grant.identity.verbs
        return self.is_open if grant is FULL else now_s < self._until.get(grant, -inf)

    def next_end(self, now_s: float) -> float:
        """When the next grant expires, in seconds since the epoch."""
        return min((until for until in self._until.values() if until > now_s), default=inf)

    def by_time_left(self, now_s: float) -> dict[str, int]:
        """How many identities have ended, will end within `SOON_S`, or have longer."""
        left = [entry.ends - now_s for entry in self.entries.values()]
        ended, soon = sum(each <= 0 for each in left), sum(0 < each < SOON_S for each in left)
        return {"ended": ended, "ending": soon, "valid": len(left) - ended - soon}

    def _digest(self, text: str) -> bytes:
        return hashed(text, self._key)


def hashed(token: str, salt: bytes) -> bytes:
    """The hash of a token, with a salt of at most 64 bytes."""
    return blake2b(_bytes(token), key=salt, digest_size=32).digest()


def made_id(token: str) -> str | None:
    """The id within a made token; None for any other text."""
    parts = token.split("_", 2)
    return parts[1] if len(parts) == 3 and parts[0] == MADE else None


def names_of_certificate(certificate: Mapping[str, object] | None) -> list[str]:
    """The names in a verified certificate, as `ssl` shows it: alternative names, then common names."""
    found = certificate or {}
    others = [str(name) for _, name in found.get("subjectAltName", ())]  # type: ignore[attr-defined]
    parts = [pair for part in found.get("subject", ()) for pair in part]  # type: ignore[attr-defined]
    return [*others, *(str(value) for key, value in parts if key == "commonName")]


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")

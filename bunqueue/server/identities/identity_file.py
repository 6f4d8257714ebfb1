"""The file of identities: what it may say, and which `Entry` objects it means.

A mistake is refused with its line, and changes nothing. The file holds hashes only; a token in plain text is
in a file of its own that ``token_file`` names, such as a credential of systemd.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from datetime import datetime
from math import inf
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from bunqueue.model.names import NAMESPACE, hint, namespace_problem
from bunqueue.model.quota import Quota
from bunqueue.model.rights import MEANINGS, ROLES, Identity, Verb, names_of, verbs_named
from bunqueue.model.scope import MAX_PATTERNS, pattern_problem

from .directory import RESERVED, Entry, StoredToken
from .people import OIDC, PROXY, OidcRow, People, ProxyRow

MAX_BYTES = 8 * 1024 * 1024  # some 20,000 identities
MAX_TOKEN_LINE = 4096
MIN_PLAIN = 32  # characters of a token that people made: what is shorter may be guessed
NAME = r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}"
TOKEN_ID = r"[0-9a-f]{8}"
CREDENTIALS = "CREDENTIALS_DIRECTORY"  # systemd sets it for a service with LoadCredential=

_MOMENTS = {
    "`datetime | null`": "a moment such as 2027-01-31T12:00:00Z",
    "`datetime` with a timezone component": "a moment with its time zone, such as 2027-01-31T12:00:00Z",
}
TABLES = frozenset({"roles", "identities", "namespaces", "groups", OIDC, PROXY})
_Row = TypeVar("_Row", OidcRow, ProxyRow)
_Moment = Annotated[datetime, Meta(tz=True)]


class IdentitiesError(ValueError):
    """The file cannot be read, or has a mistake. The text is one line that can be shown as it is."""


class TokenRow(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A made token: its id, ``salt$hash`` in hex, and until when it works."""

    id: Annotated[str, Meta(pattern=f"^{TOKEN_ID}$")]
    hash: Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\$[0-9a-f]{64}$")]
    until: _Moment | None = None


class IdentityRow(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """One table of the file."""

    role: str
    expires: _Moment | None = None
    certificate: str | list[str] = []
    token_file: str = ""
    tokens: Annotated[list[TokenRow], Meta(max_length=64)] = []
    queues: Annotated[list[str], Meta(min_length=1, max_length=MAX_PATTERNS)] | None = None
    """Patterns of the queues that it is for; None: all queues."""
    namespace: Annotated[str, Meta(pattern=rf"^({NAMESPACE})?\Z")] = ""
    """What it lives in; "": in none."""

    def __post_init__(self) -> None:
        self.certificate = self.names

    @property
    def names(self) -> list[str]:
        """Those of its certificates."""
        return [self.certificate] if isinstance(self.certificate, str) else self.certificate


_Bound = Annotated[int, Meta(ge=1, le=2**53 - 1)]


class QuotaRow(Struct, forbid_unknown_fields=True):
    """The bounds of a namespace: see `Quota`."""

    connections: _Bound | None = None
    commands: _Bound | None = None
    bytes: _Bound | None = None
    payload: _Bound | None = None
    queues: _Bound | None = None
    jobs: _Bound | None = None
    schedules: _Bound | None = None
    webhooks: _Bound | None = None


class IdentityFile(Struct):
    """The whole file."""

    roles: Mapping[str, Verb]
    """Its own roles and the usual ones."""
    rows: Mapping[str, IdentityRow]
    people: People
    quotas: Mapping[str, Quota]
    """The bounds of namespaces."""


def read(path: str) -> str:
    """The text of the file. Raises IdentitiesError."""
    try:
        with open(path, "rb") as file:
            found = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise IdentitiesError(f"{path}: cannot be read: {error.strerror}") from None
    if len(found) > MAX_BYTES:
        raise IdentitiesError(f"{path}: has more than {MAX_BYTES} bytes")
    try:
        return found.decode()
    except UnicodeDecodeError as error:
        line = found.count(b"\n", 0, error.start) + 1
        raise IdentitiesError(f"{path}, line {line}: is not UTF-8") from None


def parse(text: str, path: str) -> IdentityFile:
    """What the file says. Raises IdentitiesError with the line of a mistake."""
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise IdentitiesError(_located(path, str(error))) from None
    places = _Places(text, path)
    if unknown := found.keys() - TABLES:
        name = min(unknown)
        only = "[roles], [identities.NAME], [namespaces.NAME], [groups], [oidc] and [proxy]"
        raise places.error(name, "", f"{name}: there are only {only}")
    roles = dict(ROLES)
    for name, verbs in _table(found, "roles", places).items():
        roles[name] = _own_role(name, verbs, places)
    rows = {
        name: _row(name, value, roles, places) for name, value in _table(found, "identities", places).items()
    }
    _check_twice(rows, places)
    quotas = {
        name: _quota(name, value, places) for name, value in _table(found, "namespaces", places).items()
    }
    return IdentityFile(roles, rows, _people(found, roles, places), quotas)


def entries_of(file: IdentityFile, path: str) -> list[Entry]:
    """The identities, with the tokens that other files hold. Raises IdentitiesError."""
    namespaces = tuple(sorted({row.namespace for row in file.rows.values() if row.namespace}))
    return [_entry(name, row, file.roles, path, namespaces) for name, row in file.rows.items()]


def load(path: str) -> tuple[list[Entry], People, Mapping[str, Quota]]:
    """The identities of a file, who else there is, and the bounds of namespaces. Raises IdentitiesError."""
    found = parse(read(path), path)
    people, oidc = found.people, found.people.oidc
    if oidc is not None and oidc.client_secret_file:
        people = people._replace(
            secret=_secret("the client_secret_file of [oidc]", oidc.client_secret_file, path, 1)
        )
    return entries_of(found, path), people, found.quotas


class _Places:
    """Finds the line of a table or key, for refusals."""

    def __init__(self, text: str, path: str) -> None:
        self._lines, self._path = text.splitlines(), path

    def error(self, table: str, key: str, text: str) -> IdentitiesError:
        return IdentitiesError(f"{self._path}, line {self._line(table, key)}: {text}")

    def _line(self, table: str, key: str) -> int:
        """The line of a key in a table, or else of the table, or else the first with its last name."""
        last = table.rpartition(".")[2]
        start = self._first(rf"\s*\[+\s*{re.escape(table)}\s*\]", 0)
        if start is None:
            start = self._first(rf'\s*"?{re.escape(last)}"?\s*=|.*\b{re.escape(last)}\b', 0)
            return (start or 0) + 1
        end = self._first(r"\s*\[+\s*[A-Za-z]", start + 1)
        found = self._first(rf"\s*{re.escape(key)}\s*=", start + 1) if key else None
        inside = found is not None and (end is None or found < end)
        return (found if found is not None and inside else start) + 1

    def _first(self, pattern: str, start: int) -> int | None:
        for number, line in enumerate(self._lines[start:], start):
            if re.match(pattern, line):
                return number
        return None


def _located(path: str, text: str) -> str:
    """The message of tomllib, with the line in front."""
    found = re.search(r"\(at line (\d+), column \d+\)", text)
    if found is None:  # "at end of document"
        return f"{path}: is not valid TOML: {text}"
    return f"{path}, line {found[1]}: is not valid TOML: {text[: found.start()].strip()}"


def _table(found: Mapping[str, Any], name: str, places: _Places) -> Mapping[str, Any]:
    value = found.get(name, {})
    if not isinstance(value, dict):
        raise places.error("", name, f"{name} must be a table")
    return value


def _own_role(name: str, verbs: object, places: _Places) -> Verb:
    if name in ROLES:
        raise places.error("roles", name, f"the role {name!r} exists already; give yours another name")
    if not re.fullmatch(NAME, name):
        raise places.error("roles", name, f"{name!r} is no name for a role: give up to 63 of A-Z a-z 0-9 _ -")
    known = names_of(Verb(sum(verb.value for verb in MEANINGS)))
    if not isinstance(verbs, list) or not verbs or not all(isinstance(verb, str) for verb in verbs):
        raise places.error("roles", name, f"the role {name!r} must be a list of verbs: {', '.join(known)}")
    for verb in verbs:
        if verb not in known:
            raise places.error("roles", name, f"there is no verb {verb!r}; {hint(verb, known)}")
    return verbs_named(verbs)


def _row(name: str, value: object, roles: Mapping[str, Verb], places: _Places) -> IdentityRow:
    table = f"identities.{name}"
    if not re.fullmatch(NAME, name) or name in RESERVED:
        raise places.error(
            table, "", f"{name!r} is no name for an identity: give up to 63 of A-Z a-z 0-9 _ -"
        )
    try:
        row = msgspec.convert(value, IdentityRow)
    except msgspec.ValidationError as error:
        field = re.search(r"\$\.(\w+)|unknown field `(\w+)`", str(error))
        key = (field[1] or field[2]) if field else ""
        text = str(error).replace("`$.", "`").removeprefix("Object ")
        for known, meant in _MOMENTS.items():
            text = text.replace(known, meant)
        raise places.error(table, key, f"{name}: {text[:1].lower()}{text[1:]}") from None
    if row.role not in roles:
        raise places.error(
            table, "role", f"there is no role {row.role[:80]!r}; {hint(row.role, list(roles))}"
        )
    if problem := next(filter(None, map(pattern_problem, row.queues or ())), ""):
        raise places.error(table, "queues", f"{name}: {problem}")
    return row


def _quota(name: str, value: object, places: _Places) -> Quota:
    table = f"namespaces.{name}"
    if problem := namespace_problem(name):
        raise places.error(table, "", problem)
    try:
        row = msgspec.convert(value, QuotaRow)
    except msgspec.ValidationError as error:
        field = re.search(r"\$\.(\w+)|unknown field `(\w+)`", str(error))
        key = (field[1] or field[2]) if field else ""
        text = str(error).replace("`$.", "`").removeprefix("Object ")
        raise places.error(table, key, f"{name}: {text[:1].lower()}{text[1:]}") from None
    return Quota(**msgspec.structs.asdict(row))


def _people(found: Mapping[str, Any], roles: Mapping[str, Verb], places: _Places) -> People:
    groups: dict[str, Verb] = {}
    for name, role in _table(found, "groups", places).items():
        if role not in roles:
            text = f"there is no role {str(role)[:80]!r}; {hint(str(role), list(roles))}"
            raise places.error("groups", name, text)
        groups[name] = roles[role]
    oidc = _converted(found, OIDC, OidcRow, places)
    proxy = _converted(found, PROXY, ProxyRow, places)
    if (oidc or proxy) and not groups:
        table = OIDC if oidc else PROXY
        raise places.error(table, "", f"[{table}]: give [groups], too; without roles nobody may do anything")
    return People(groups, oidc, "", proxy)


def _converted(found: Mapping[str, Any], table: str, kind: type[_Row], places: _Places) -> _Row | None:
    if table not in found:
        return None
    try:
        return msgspec.convert(found[table], kind)
    except msgspec.ValidationError as error:
        field = re.search(r"`\$?\.?(\w+)`|unknown field `(\w+)`", str(error))
        key = (field[1] or field[2]) if field else ""
        raise places.error(table, key, f"[{table}]: {str(error).removeprefix('Object ')}") from None


def _check_twice(rows: Mapping[str, IdentityRow], places: _Places) -> None:
    """Raise IdentitiesError if a credential stands for two identities."""
    seen: dict[str, str] = {}
    for name, row in rows.items():
        own = [("tokens", f"the token {token.id}") for token in row.tokens]
        own += [("certificate", f"the certificate {each!r}") for each in row.names]
        for key, what in own:
            if (other := seen.setdefault(what, name)) != name or own.count((key, what)) > 1:
                raise places.error(f"identities.{name}", key, f"{what} of {name} is also that of {other}")


def _entry(
    name: str, row: IdentityRow, roles: Mapping[str, Verb], path: str, namespaces: tuple[str, ...]
) -> Entry:
    stored = {token.id: _stored(token) for token in row.tokens}
    plain = (_secret(f"the token_file of {name}", row.token_file, path, MIN_PLAIN),) if row.token_file else ()
    elsewhere = namespaces if row.queues and not row.namespace else ()
    identity = Identity(name, roles[row.role], tuple(row.queues or ()), row.namespace, elsewhere)
    return Entry(identity, _epoch(row.expires), stored, plain, tuple(row.names))


def _stored(token: TokenRow) -> StoredToken:
    salt, _, digest = token.hash.partition("$")
    return StoredToken(bytes.fromhex(salt), bytes.fromhex(digest), _epoch(token.until))


def _epoch(moment: datetime | None) -> float:
    return inf if moment is None else moment.timestamp()


def _secret(what: str, file: str, path: str, least: int) -> str:
    """The secret in another file: a credential of the service, or a path relative to that of the
    identities."""
    base = os.environ.get(CREDENTIALS, "")
    places = [Path(base, file)] if base and "/" not in file else []
    places.append(Path(path).parent / file)
    for place in places:
        try:
            with open(place, "rb") as opened:
                token = opened.readline(MAX_TOKEN_LINE).strip().decode("ascii")
        except FileNotFoundError:
            continue
        except (OSError, UnicodeDecodeError) as error:
            raise IdentitiesError(f"{path}: {what} cannot be read: {error}") from None
        if len(token) < least:
            text = f"{what}, {place}, has {len(token)} characters; give at least {least}"
            raise IdentitiesError(f"{path}: {text}, such as: openssl rand -hex 32")
        return token
    raise IdentitiesError(f"{path}: {what} is missing: {places[-1]}")

"""``bunqueue identity``: who may use a server, and for what. It changes the file that the server watches."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Annotated

import typer

from bunqueue.model.names import hint, namespace_problem
from bunqueue.model.rights import names_of
from bunqueue.model.scope import pattern_problem
from bunqueue.server.identities import edit
from bunqueue.server.identities.identity_file import (
    NAME,
    IdentitiesError,
    IdentityFile,
    IdentityRow,
    TokenRow,
)
from bunqueue.server.identities.last_used import Used, last_uses
from bunqueue.server.settings import SettingsError
from bunqueue.server.settings.settings import Settings, resolve_settings

from ..framework.offline import offline_verb
from ..framework.reading import PlainGroup
from ..framework.values import WHEN, option, span, span_or_moment
from ..output.output import Column, Kind, Output

app = typer.Typer(cls=PlainGroup, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.callback()
def _identity() -> None:
    """Who may use the server, and for what: list, add, rotate, revoke."""


Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the identity.")]
File = Annotated[
    str | None,
    option("--file", metavar="FILE", about="The file of identities. Default: that of the server's settings."),
]
Config = Annotated[
    str | None, option("--config", metavar="FILE", about="The server's config file, which names the file.")
]
DataDir = Annotated[
    str | None, option("--data-dir", metavar="DIR", about="The data folder, for the last uses.")
]
Role = Annotated[str, option("--role", metavar="ROLE", about="What it may do, as in docs/security.md.")]
Queues = Annotated[
    list[str] | None,
    option(
        "--queues",
        metavar="PATTERN",
        about="The queues that it is for, with * for any characters; may be repeated. Default: all.",
    ),
]
Namespace = Annotated[
    str,
    option(
        "--namespace",
        metavar="NAME",
        about="What it lives in: its names are its own, and it sees no others. Default: none.",
    ),
]
Expires = Annotated[
    str | None, option("--expires", metavar=WHEN, about="When it ends: 90d, or 2027-01-31T12:00Z.")
]
Certificate = Annotated[
    list[str] | None,
    option(
        "--certificate",
        metavar="NAME",
        about="A name in its client certificate, instead of a token; may be repeated.",
    ),
]
TokenFile = Annotated[
    str | None,
    option(
        "--secret-in",
        metavar="FILE",
        about="A file on the server, or credential of its service, that holds its token; none is made.",
    ),
]
Keep = Annotated[
    str, option("--keep", metavar="TIME", about="How long tokens that it has still work. Default: 1h.")
]
Token = Annotated[
    str | None, option("--token-id", metavar="ID", about="Revoke only this token, as list shows it.")
]

COLUMNS = (
    Column("name"),
    Column("role"),
    Column("verbs"),
    Column("namespace"),
    Column("queues"),
    Column("proof", Kind.PROSE),
    Column("expires"),
    Column("lastUsed"),
    Column("from"),
)


@offline_verb(
    app,
    "bunqueue identity add billing-worker --role worker --queues 'billing.*' --expires 90d",
    "bunqueue identity add acme-app --role admin --namespace acme",
    "bunqueue identity add grafana --role scraper > grafana.token",
)
def add(
    output: Output,
    name: Name,
    role: Role,
    queues: Queues = None,
    namespace: Namespace = "",
    expires: Expires = None,
    certificate: Certificate = None,
    secret_in: TokenFile = None,
    file: File = None,
    config: Config = None,
) -> None:
    """Add an identity, and print its token, which is shown only now: the file keeps a hash of it."""
    end = _moment(expires)
    made = None if certificate or secret_in else edit.make_token()

    def new(found: IdentityFile) -> IdentityRow:
        if name in found.rows:
            raise SettingsError(f"the identity {name} exists already; rotate gives it another token")
        if not re.fullmatch(NAME, name):
            raise SettingsError(f"{name!r} is no name for an identity: give up to 63 of A-Z a-z 0-9 _ -")
        if role not in found.roles:
            raise SettingsError(f"--role: there is no role {role!r}; {hint(role, list(found.roles))}")
        if problem := next(filter(None, map(pattern_problem, queues or ())), ""):
            raise SettingsError(f"--queues: {problem}")
        if namespace and (problem := namespace_problem(namespace)):
            raise SettingsError(f"--namespace: {problem}")
        tokens = [] if made is None else [made.row]
        return IdentityRow(role, end, certificate or [], secret_in or "", tokens, queues or None, namespace)

    _change(file, config, name, new)
    if made is None:
        output.done(f"{name} may use the server as {role}.", {"name": name, "role": role})
    else:
        facts = {"name": name, "role": role, "token": made.text, "tokenId": made.row.id}
        output.done(f"The token of {name}, which is shown only now:\n{made.text}", facts, "token")


@offline_verb(app, "bunqueue identity list", "bunqueue identity list --json | jq '.[].expires'", name="list")
def list_identities(
    output: Output, file: File = None, config: Config = None, data_dir: DataDir = None
) -> None:
    """List identities: what they may do, how they prove who they are, until when, and their last use."""
    settings = _settings(file, config, data_dir)
    path, used = _path(settings), {} if settings.in_memory else last_uses(settings.data_dir)
    with _refusing():
        found = edit.load(path)
    rows = [_shown(name, row, found, used.get(name)) for name, row in found.rows.items()]
    output.rows(rows, COLUMNS, none="No identities. bunqueue identity add NAME --role ROLE adds one.")


@offline_verb(app, "bunqueue identity rotate billing-worker --keep 2h")
def rotate(output: Output, name: Name, keep: Keep = "1h", file: File = None, config: Config = None) -> None:
    """Make another token for an identity. Those that it has work for a while, so nobody is cut off."""
    made, now = edit.make_token(), _now()
    end = now + timedelta(milliseconds=float(span(keep)))

    def new(found: IdentityFile) -> IdentityRow:
        row = _row(found, name)
        old = [_until(token, end) for token in row.tokens if token.until is None or token.until > now]
        row.tokens = [*(old if end > now else []), made.row]
        return row

    _change(file, config, name, new)
    facts = {"name": name, "token": made.text, "tokenId": made.row.id, "oldUntil": end.isoformat()}
    sentence = f"The new token of {name}, which is shown only now; older ones work until {end:%H:%M:%S} UTC:"
    output.done(f"{sentence}\n{made.text}", facts, "token")


@offline_verb(
    app, "bunqueue identity revoke billing-worker", "bunqueue identity revoke ci --token-id 8f3a1c2e"
)
def revoke(
    output: Output, name: Name, token_id: Token = None, file: File = None, config: Config = None
) -> None:
    """Remove an identity, or one of its tokens. Its open connections end within a second."""

    def new(found: IdentityFile) -> IdentityRow | None:
        row = _row(found, name)
        if token_id is None:
            return None
        left = [token for token in row.tokens if token.id != token_id]
        if len(left) == len(row.tokens):
            raise SettingsError(f"{name} has no token {token_id}; bunqueue identity list shows them")
        row.tokens = left
        return row

    _change(file, config, name, new)
    what = name if token_id is None else f"the token {token_id} of {name}"
    output.done(f"Revoked {what}.", {"name": name, "tokenId": token_id})


def _change(
    file: str | None, config: str | None, name: str, new: Callable[[IdentityFile], IdentityRow | None]
) -> None:
    path = _path(_settings(file, config))
    with _refusing():
        edit.change(path, name, new)


class _refusing:
    """Shows what is wrong with the file as a refusal of the command line."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, IdentitiesError):
            raise SettingsError(str(error)) from None
        if isinstance(error, OSError):
            raise SettingsError(f"the file of identities cannot be written: {error}") from None


def _settings(file: str | None, config: str | None, data_dir: str | None = None) -> Settings:
    flags = {"identities": file, "config": config, "data_dir": data_dir}
    return resolve_settings(flags, os.environ).settings


def _path(settings: Settings) -> str:
    if not settings.identities:
        raise SettingsError("which file of identities? Give --file, --config or BUNQUEUE_IDENTITIES")
    return settings.identities


def _row(found: IdentityFile, name: str) -> IdentityRow:
    if name not in found.rows:
        raise SettingsError(f"there is no identity {name}; bunqueue identity list shows them")
    return found.rows[name]


def _moment(expires: str | None) -> datetime | None:
    if expires is None:
        return None
    found = span_or_moment(expires)
    moment = found if isinstance(found, datetime) else _now() + timedelta(milliseconds=found)
    return moment.astimezone(UTC).replace(microsecond=0)


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


def _until(token: TokenRow, end: datetime) -> TokenRow:
    return TokenRow(token.id, token.hash, end if token.until is None else min(token.until, end))


def _shown(name: str, row: IdentityRow, found: IdentityFile, used: Used | None) -> dict[str, object]:
    proof = [f"token {token.id}" + _while(token.until) for token in row.tokens]
    ends = None if used is None or used.ends == inf else datetime.fromtimestamp(used.ends, UTC)
    proof += [f"certificate {each}{_while(ends)}" for each in row.names]
    proof += [f"secret in {row.token_file}"] if row.token_file else []
    return {
        "name": name,
        "role": row.role,
        "verbs": " ".join(names_of(found.roles[row.role])),
        "namespace": row.namespace or None,
        "queues": " ".join(row.queues or ["*"]),
        "proof": ", ".join(proof) or "none",
        "expires": _date(row.expires),
        "lastUsed": None if used is None else _date(datetime.fromtimestamp(used.at, UTC)),
        "from": None if used is None else used.address,
    }


def _while(until: datetime | None) -> str:
    if until is None:
        return ""
    return " (ended)" if until.timestamp() <= time.time() else f" (until {_date(until)})"


def _date(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")

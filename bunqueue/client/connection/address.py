"""Finds the engine's address: from arguments, from a URL, or from the environment.

    bunqueue://TOKEN@HOST:PORT?pool_size=8&command_timeout=5000
    bunqueue://TOKEN@ONE:PORT,TWO:PORT                              several hosts of a cluster
    bunqueues://TOKEN@HOST:PORT?ca_file=/etc/bunqueue/ca.pem        with TLS

The variables BUNQUEUE_URL and BUNQUEUE_TOKEN count only if the program itself names no server. There are no
variables for host and port: BUNQUEUE_HOST is the address a server listens on, and Kubernetes sets a
BUNQUEUE_PORT of its own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from bunqueue.client.codecs.codec import Codec, checked
from bunqueue.client.connection.options import ConnectionOptions, milliseconds, refused, shown, unfit
from bunqueue.client.connection.tls import Tls, TlsOptions, tls_options
from bunqueue.client.connection.transport import HOST, PORT, Endpoint
from bunqueue.errors import OptionError

URL_VARIABLE, TOKEN_VARIABLE = "BUNQUEUE_URL", "BUNQUEUE_TOKEN"
PLAIN, WITH_TLS = "bunqueue", "bunqueues"  # schemes of URLs
MAX_PORT = 65535


@dataclass(frozen=True, slots=True)
class Target:
    """The parts of a URL."""

    host: str = HOST
    port: int | str = PORT
    token: str | None = None
    tls: TlsOptions | None = None
    others: tuple[tuple[str, int], ...] = ()
    """More addresses of the same server: the other hosts of a cluster."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Fields of ConnectionOptions."""


def endpoint(
    host: str | None = None,
    port: int | str | None = None,
    token: str | None = None,
    embedded: bool = False,
    data_path: str | os.PathLike[str] | None = None,
    connection: ConnectionOptions | None = None,
    url: str | None = None,
    tls: Tls | None = None,
    codec: Codec | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
) -> Endpoint:
    """The engine that a program's arguments describe. Raises OptionError for invalid or conflicting values.

    Arguments override the URL. The options in a URL's query override single fields of `connection`.
    """
    server = {"host": host, "port": port, "token": token, "connection": connection, "url": url, "tls": tls}
    codec = checked(codec)
    if embedded:
        for name, given in server.items():
            if given is not None:
                raise unfit(name, f"embedded=True means no server; leave out {name} or embedded")
        path = None if data_path is None else _path(data_path)
        return Endpoint(embedded=True, data_path=path, codec=codec)
    if data_path is not None:
        raise unfit(
            "data_path",
            "only with embedded=True; a server's folder is given to it: bunqueue start --data-dir",
        )
    target = _target(host, port, url, environ)
    return Endpoint(
        _host(target.host),
        _port(target.port),
        _token(target.token if token is None else token),
        options=replace(connection or ConnectionOptions(), **target.options),
        tls=tls_options(target.tls if tls is None else tls),
        others=target.others,
        codec=codec,
    )


def _target(host: str | None, port: int | str | None, url: str | None, environ: Mapping[str, str]) -> Target:
    if url is not None:
        if host is not None or port is not None:
            raise unfit("url", "it says where the server is, so leave out host and port")
        return parse_url(url)
    if host is not None or port is not None:
        return Target(HOST if host is None else host, PORT if port is None else port)
    given = environ.get(URL_VARIABLE)
    target = parse_url(given, f"variable {URL_VARIABLE}") if given else Target()
    return target if target.token else replace(target, token=environ.get(TOKEN_VARIABLE) or None)


def parse_url(url: str, source: str = "url") -> Target:
    """Parse a URL. Raises OptionError, whose text begins with `source` and never shows a token."""
    example = f"give {PLAIN}://HOST:PORT or {PLAIN}://TOKEN@HOST:PORT, with TLS {WITH_TLS}://"
    if not isinstance(url, str):
        raise refused(source, url, f"is not allowed; {example}")
    try:
        parts, others = _several(url.strip())
        port = PORT if parts.port is None else parts.port
    except ValueError as error:
        raise unfit(source, f"{error}; {example}") from None
    if parts.scheme not in (PLAIN, WITH_TLS) or not parts.hostname:
        raise unfit(source, f"it is no address of a server (the value is not shown); {example}")
    if parts.path.strip("/") or parts.fragment:
        raise unfit(source, f"nothing may stand between the port and the options; {example}")
    secure = parts.scheme == WITH_TLS
    options, tls = _query(parts.query, source)
    if tls and not secure:
        raise OptionError(f"{source}: {next(iter(tls))}: only with TLS; write {WITH_TLS}://")
    if parts.username and parts.password:
        raise unfit(source, f"there are no users, only a token; write {parts.scheme}://TOKEN@HOST")
    token = unquote(parts.username or parts.password or "") or None
    return Target(parts.hostname, port, token, TlsOptions(**tls) if secure else None, others, options)


def _several(url: str) -> tuple[SplitResult, tuple[tuple[str, int], ...]]:
    """A URL reduced to its first address, and the other addresses. Raises ValueError for an invalid one."""
    parts = urlsplit(url)
    user, at, places = parts.netloc.rpartition("@")
    first, *rest = places.split(",")
    others = [urlsplit(f"//{place}") for place in rest]
    if "@" in user:
        raise ValueError("one token in front of the first address holds for all of them")
    if not all(place.hostname and not place.path for place in others):
        raise ValueError("an address between commas is missing")
    found = tuple((str(place.hostname), PORT if place.port is None else place.port) for place in others)
    return parts._replace(netloc=f"{user}{at}{first}"), found


_TLS_FIELDS = {each.name: "bool" if each.name == "verify" else "str" for each in fields(TlsOptions)}
_FIELDS = {each.name: str(each.type) for each in fields(ConnectionOptions)}


def _query(query: str, source: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The query of a URL, split into fields of ConnectionOptions and fields of TlsOptions."""
    options: dict[str, Any] = {}
    tls: dict[str, Any] = {}
    for name, text in parse_qsl(query, keep_blank_values=True):
        kind = _FIELDS.get(name) or _TLS_FIELDS.get(name)
        if kind is None:
            known = ", ".join((*_FIELDS, *_TLS_FIELDS))
            raise OptionError(
                f"{source}: there is no option {shown(name)}; there are {known}", field=source, value=name
            )
        if name in options or name in tls:
            raise unfit(source, f"{name} is given twice")
        (options if name in _FIELDS else tls)[name] = _value(kind, text, f"{source}: {name}")
    try:
        ConnectionOptions(**options)
    except OptionError as error:
        raise error.within(source) from None
    return options, tls


def _value(kind: str, text: str, what: str) -> object:
    if kind == "str":
        return text
    if kind == "bool":
        if text not in ("true", "false"):
            raise refused(what, text, "is not allowed; give true or false")
        return text == "true"
    if kind == "Duration":
        return milliseconds(text, what)
    try:
        return int(text)
    except ValueError:
        raise refused(what, text, "is not allowed; give a whole number") from None


def _path(value: str | os.PathLike[str]) -> str:
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(path, str) or not path or "\0" in path:
        raise refused("data_path", value, "is not allowed; give the path of a file")
    return path


def _host(value: str) -> str:
    if not isinstance(value, str) or not value or not value.isprintable() or " " in value:
        raise refused("host", value, "is not allowed; give a host name or an IP address")
    return value


def _port(value: int | str) -> int:
    port = int(value) if isinstance(value, str) and value.isdecimal() and len(value) <= 5 else value
    if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= MAX_PORT:
        raise refused("port", value, f"is not allowed; give a number from 0 to {MAX_PORT}")
    return port


def _token(value: str | None) -> str | None:
    if value is None or (isinstance(value, str) and value):
        return value
    raise unfit("token", "the value (not shown) is not allowed; give a text, or None")  # it is a secret

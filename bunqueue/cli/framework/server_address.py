"""The server's address, from the shared options and the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode, urlsplit, urlunsplit

from bunqueue.client.connection.address import PLAIN, URL_VARIABLE, WITH_TLS, endpoint, parse_url
from bunqueue.client.connection.options import ConnectionOptions
from bunqueue.client.connection.transport import HOST, PORT, Endpoint
from bunqueue.server.settings import SettingsError

# The TLS flags, and the fields of TlsOptions in a URL.
_TLS = {
    "tls_ca": "ca_file",
    "tls_cert": "cert_file",
    "tls_key": "key_file",
    "tls_server_name": "server_name",
}
HASTY = ConnectionOptions(refused_timeout=250, connect_timeout=5000, max_reconnect_attempts=2)
"""A program that starts along with its server waits for it; a person does not."""
PATIENT_MS = 3_600_000
"""The time limit of commands that wait, or whose work grows with the queue."""


def url_of(place: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> str | None:
    """The URL that the shared options give; None when they leave it to the environment.

    Raises SettingsError for options that exclude each other.
    """
    url, host, port = place.get("url"), place.get("host"), place.get("port")
    if host is not None or port is not None:
        if url is not None:
            raise SettingsError("--url says what --host and --port say; give one or the other")
        where = f"[{host}]" if host and ":" in host else host or HOST
        url = f"{PLAIN}://{where}:{PORT if port is None else port}"
    query = {field: place[name] for name, field in _TLS.items() if place.get(name)}
    if place.get("tls_no_verify"):
        query["verify"] = "false"
    if not query and not place.get("tls"):
        return url
    return _with_tls(url or environ.get(URL_VARIABLE) or f"{PLAIN}://{HOST}:{PORT}", query)


def _with_tls(url: str, query: dict[str, str]) -> str:
    parts = urlsplit(url)
    if parts.scheme not in (PLAIN, WITH_TLS):
        return url  # the parser refuses it
    joined = "&".join(part for part in (parts.query, urlencode(query)) if part)
    return urlunsplit(parts._replace(scheme=WITH_TLS, query=joined))


def endpoint_of(
    place: Mapping[str, Any],
    timeout_ms: int | None = None,
    *,
    patient: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> Endpoint:
    """The server that the options and the environment name. Raises OptionError or SettingsError.

    Unlike in programs, the variable BUNQUEUE_TOKEN also applies when flags name the server: other users can
    see a token in a flag.
    """
    _check_port(place)
    url = url_of(place, environ)
    if url is not None:
        parse_url(url, "--url" if place.get("url") else "server")
        environ = {**environ, URL_VARIABLE: url}
    options = ConnectionOptions(command_timeout=PATIENT_MS) if patient else HASTY
    if timeout_ms is not None:
        options = replace(options, command_timeout=timeout_ms)
    return endpoint(token=place.get("token"), connection=options, environ=environ)


def _check_port(place: Mapping[str, Any]) -> None:
    port = place.get("port")
    if port is not None and not (port.isdecimal() and 0 < int(port) <= 65535):
        raise SettingsError(f"--port: {port!r} is not allowed; give a number from 1 to 65535")

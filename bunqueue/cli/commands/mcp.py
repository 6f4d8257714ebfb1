"""``bunqueue mcp``: an MCP server, through which assistants use the commands of a bunqueue server."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Coroutine
from ipaddress import ip_address
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bunqueue.server.settings import SettingsError

from ..framework.session import Session
from ..framework.shared import verb
from ..framework.values import option
from ..output.output import Column, Kind

if TYPE_CHECKING:
    from bunqueue.client.connection.transport import Endpoint

app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)

TOOLS = (
    Column("name"),
    Column("changes", Kind.STATE),
    Column("title", Kind.PROSE),
)
Http = Annotated[
    str | None,
    option(
        "--http",
        metavar="[HOST:]PORT",
        about="Serve streamable HTTP there, at /mcp.",
    ),
]
AllowWrites = Annotated[bool, option("--allow-writes", about="Also offer tools that change something.")]
Only = Annotated[
    list[str] | None,
    option(
        "--only", metavar="PATTERN", about="Offer only tools with such names, as in 'Get*'; may be repeated."
    ),
]
HostName = Annotated[
    list[str] | None,
    option("--host-name", metavar="NAME", about="With --http: also answer to this name; may be repeated."),
]
List = Annotated[bool, option("--list", about="List the tools, and serve nobody.")]


@verb(
    app,
    "bunqueue mcp",
    "bunqueue mcp --allow-writes --only 'Get*' --only RetryDlq",
    "bunqueue mcp --http 127.0.0.1:6791",
    "bunqueue mcp --list",
)
def mcp(
    session: Session,
    http: Http = None,
    allow_writes: AllowWrites = False,
    only: Only = None,
    host_name: HostName = None,
    list_: List = False,
) -> None:
    """Serve the Model Context Protocol, so that assistants use the server's commands as tools.

    Without --http it speaks to the program that has started it, over standard input and output, and has the
    rights of the token that flags or environment give. With --http each client sends a token of its own.
    The tools only read, unless --allow-writes is given and the token may write.
    """
    try:
        from bunqueue.mcp.tools import choose
    except ImportError as error:
        raise SettingsError(f"mcp needs {error.name}: pip install 'bunqueue[mcp]'") from None
    chosen = choose(allow_writes, only or ())
    if list_:
        _list(session, chosen)
        return
    if session.out.as_json:
        raise SettingsError("--json: it is for --list; what a client gets is JSON in any case")
    if host_name and http is None:
        raise SettingsError("--host-name: it is for --http")
    endpoint = _patient(session.endpoint)
    logging.basicConfig(level=logging.ERROR, stream=sys.stderr, format="%(message)s")
    logging.getLogger("bunqueue.mcp").setLevel(logging.INFO)
    rights = "read and change" if allow_writes else "only read"
    session.out.note(f"{len(chosen)} tools, which {rights}, for the server at {endpoint.address}")
    if http is not None:
        host, port = _address(http)
        _serve_http(chosen, endpoint, host, port, host_name or [])
        return
    if sys.stdin.isatty():
        session.out.note("this speaks MCP on standard input; usually an assistant starts it: see docs/mcp.md")
    from bunqueue.mcp.server import serve_stdio

    _run(serve_stdio(chosen, endpoint))


def _list(session: Session, chosen: Any) -> None:
    from bunqueue.mcp.tools import tool_of

    rows = [
        {"name": tool.name, "changes": "yes" if chosen[tool.name].writes else "no", "title": tool.title}
        for tool in map(tool_of, chosen.values())
    ]
    session.out.rows(rows, TOOLS, none="there are no tools")


def _patient(endpoint: Endpoint) -> Endpoint:
    """An endpoint for a program that keeps running while its server restarts, unlike other verbs."""
    from dataclasses import replace

    from bunqueue.client.connection.options import ConnectionOptions

    return replace(endpoint, options=ConnectionOptions())


def _serve_http(chosen: Any, endpoint: Endpoint, host: str, port: int, names: list[str]) -> None:
    from bunqueue.mcp.streamable_http import serve_http

    if endpoint.token is not None:
        raise SettingsError(
            "a token is given (--token, --url or BUNQUEUE_TOKEN), but over HTTP each client sends its own in "
            "Authorization: Bearer TOKEN; leave it out"
        )
    if not _is_local(host):
        print(
            f"bunqueue: {host} can be reached from other machines, and HTTP shows tokens to whoever listens; "
            "put a proxy with TLS in front",
            file=sys.stderr,
        )
    try:
        _run(serve_http(chosen, endpoint, host, port, names))
    except OSError as error:
        raise SettingsError(f"--http: cannot listen at {host}:{port}: {error.strerror}") from None


def _is_local(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not int(port) <= 65535:
        raise SettingsError(f"--http: {text!r} is no address; give HOST:PORT, such as 127.0.0.1:6791")
    return host.strip("[]") or "127.0.0.1", int(port)


def _run(work: Coroutine[Any, Any, None]) -> None:
    try:
        asyncio.run(work)
    except KeyboardInterrupt:  # the thread that reads standard input cannot be stopped
        sys.stderr.flush()
        os._exit(130)

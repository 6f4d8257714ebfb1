"""What users may give: every refusal is an OptionError that names the option, the value and what is allowed.

The bounds of what goes over the wire are those that the commands are declared with.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw, Struct

from bunqueue.client.connection_options import ConnectionOptions, shown
from bunqueue.client.transport import HOST, PORT, Endpoint
from bunqueue.errors import OptionError
from bunqueue.model.names import MAX_QUEUE_NAME, queue_name_problem
from bunqueue.protocol.commands.base import CommandError
from bunqueue.protocol.lenient import MAX_INTEGER, clean

MAX_PORT = 65535

_encode = msgspec.msgpack.Encoder().encode


def queue_name(name: str) -> str:
    """`name`, if it is one."""
    problem = queue_name_problem(name)
    if problem:
        allowed = f"1 to {MAX_QUEUE_NAME} of the characters a-z A-Z 0-9 _ - . :"
        raise OptionError(f"{problem}: {shown(name)}; give {allowed}")
    return name


def job_name(name: str) -> str:
    """`name`, if a job may be called so."""
    if not isinstance(name, str) or not name:
        raise OptionError(f"name: a job cannot be called {shown(name)}; give a text, such as 'welcome'")
    return name


def whole(name: str, value: int, lowest: int = 1) -> int:
    """`value`, if it is a whole number from `lowest` on."""
    if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
        raise OptionError(f"{name}: {shown(value)} is not allowed; give a whole number from {lowest} on")
    return value


def states(known: tuple[str, ...], wanted: list[str]) -> None:
    """Whether all wanted states exist."""
    for state in wanted:
        if state not in known:
            raise OptionError(f"state: there is none called {shown(state)}; there are {', '.join(known)}")


def endpoint(
    host: str,
    port: int | str,
    token: str | None,
    embedded: bool,
    data_path: str | os.PathLike[str] | None,
    connection: ConnectionOptions | None,
) -> Endpoint:
    """Where the engine is; what does not go together is refused."""
    if embedded:
        server = {"host": host != HOST, "port": port != PORT, "token": token, "connection": connection}
        for name, given in server.items():
            if given:
                raise OptionError(f"{name}: embedded=True means no server; leave out {name} or embedded")
        return Endpoint(embedded=True, data_path=None if data_path is None else _path(data_path))
    if data_path is not None:
        raise OptionError(
            "data_path: only with embedded=True; a server's folder is given to it: bunqueue start --data-dir"
        )
    return Endpoint(_host(host), _port(port), _token(token), options=connection or ConnectionOptions())


def _path(value: str | os.PathLike[str]) -> str:
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(path, str) or not path:
        raise OptionError(f"data_path: {shown(value)} is not allowed; give the path of a file")
    return path


def _host(value: str) -> str:
    if not isinstance(value, str) or not value or not value.isprintable() or " " in value:
        raise OptionError(f"host: {shown(value)} is not allowed; give a host name or an IP address")
    return value


def _port(value: int | str) -> int:
    port = int(value) if isinstance(value, str) and value.isdecimal() and len(value) <= 5 else value
    if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= MAX_PORT:
        raise OptionError(f"port: {shown(value)} is not allowed; give a number from 0 to {MAX_PORT}")
    return port


def _token(value: str | None) -> str | None:
    if value is None or (isinstance(value, str) and value):
        return value
    raise OptionError("token: the value (not shown) is not allowed; give a text, or None")  # it is a secret


def wire(declared: type[Struct], values: Mapping[str, Any]) -> None:
    """Check `values` by the declaration of a struct whose fields have their names."""
    try:
        msgspec.convert(values, declared)
    except (msgspec.ValidationError, OverflowError):
        for name, value in values.items():
            _explain(declared, name, value)


def _explain(declared: type[Struct], name: str, value: object) -> None:
    try:
        # MessagePack has no number that large, but it is the bound that one should be told.
        large = isinstance(value, int) and abs(value) >= MAX_INTEGER
        clean(declared, {name: Raw(_encode(float(value) if large else value))})  # type: ignore[arg-type]
    except CommandError as error:
        text = str(error)
        problem = text if text.startswith(name) else f"{name}: {text}"
        raise OptionError(f"{problem}, not {shown(value)}") from None
    except Exception as error:  # foreign types, numbers beyond 64 bits
        raise OptionError(f"{name}: {shown(value)} is not allowed ({error})") from None

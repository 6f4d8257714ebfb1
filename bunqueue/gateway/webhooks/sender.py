"""Sends one request to an untrusted URL.

The host name is resolved here, each address is checked, and the connection is made only to a checked address.
So a name cannot resolve to one address for the check and to another for the connection.  Redirects are not
followed.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from base64 import b64encode
from collections.abc import Mapping
from functools import cache
from urllib.parse import SplitResult, quote, unquote, urlsplit

import h11

from bunqueue.model.addresses import is_forbidden_address, url_problem

TIMEOUT_S = 10.0  # for the whole request
CONNECT_S = 4.0  # to one of a host's addresses
MAX_ANSWER = 64 * 1024  # bytes to read until the head of the answer is complete
PORTS = {"http": 80, "https": 443}


class NotSent(Exception):
    """The request was not sent or not answered."""


async def post(url: str, headers: Mapping[str, str], body: bytes, *, anywhere: bool) -> int:
    """The status of the receiver's answer.  Raises NotSent.  ``anywhere`` allows addresses inside the
    network."""
    if problem := url_problem(url, anywhere=anywhere):
        raise NotSent(problem)
    parts = urlsplit(url)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            return await _post(parts, headers, body, anywhere)
    except TimeoutError:
        raise NotSent(f"no answer within {TIMEOUT_S:g} s") from None
    except (OSError, h11.ProtocolError, UnicodeError) as error:
        raise NotSent(" ".join(str(error).split()) or type(error).__name__) from None


async def _post(parts: SplitResult, headers: Mapping[str, str], body: bytes, anywhere: bool) -> int:
    reader, writer = await _connect(parts, anywhere)
    try:
        return await _exchange(reader, writer, parts, headers, body)
    finally:
        writer.transport.abort()


async def _connect(parts: SplitResult, anywhere: bool) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to the first address of a host that is allowed and can be reached."""
    host, port = str(parts.hostname), parts.port or PORTS[parts.scheme]
    tls = _context() if parts.scheme == "https" else None
    problem: OSError | None = None
    for address in await _addresses(host, port, anywhere):
        try:
            async with asyncio.timeout(CONNECT_S):
                return await asyncio.open_connection(
                    address, port, ssl=tls, server_hostname=host if tls else None, limit=MAX_ANSWER
                )
        except TimeoutError:
            problem = OSError(f"{address} did not answer within {CONNECT_S:g} s")
        except OSError as error:
            problem = error
    raise problem or NotSent(f"{host} leads into the server's own network")


async def _addresses(host: str, port: int, anywhere: bool) -> list[str]:
    """The allowed addresses of a host."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = dict.fromkeys(str(each[4][0]) for each in found)
    return [each for each in addresses if anywhere or not is_forbidden_address(each.partition("%")[0])]


async def _exchange(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    parts: SplitResult,
    headers: Mapping[str, str],
    body: bytes,
) -> int:
    target = _ascii((parts.path or "/") + (f"?{parts.query}" if parts.query else ""))
    all_headers = {
        "Host": _name(parts),
        **_login(parts),
        **headers,
        "Content-Length": str(len(body)),
        "Connection": "close",
    }
    peer = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_ANSWER)
    request = h11.Request(method="POST", target=target, headers=list(all_headers.items()))
    for event in (request, h11.Data(data=body), h11.EndOfMessage()):
        writer.write(peer.send(event) or b"")
    await writer.drain()
    size = 0
    while True:
        found = peer.next_event()
        if found is h11.NEED_DATA:
            part = await reader.read(4096)
            size += len(part)
            if size > MAX_ANSWER:  # such as endless interim answers, which would use up all the time
                raise NotSent(f"no answer within {MAX_ANSWER} bytes")
            peer.receive_data(part)
        elif isinstance(found, h11.Response):
            return int(found.status_code)
        elif isinstance(found, h11.ConnectionClosed):
            raise NotSent("the connection was closed before an answer came")


def _ascii(text: str) -> str:
    """A path as it is sent: other characters in the URL are escaped."""
    return "".join(each if each.isascii() else quote(each) for each in text)


def _login(parts: SplitResult) -> dict[str, str]:
    """The header for ``user:password@`` before the host."""
    if not parts.username and not parts.password:
        return {}
    words = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
    return {"Authorization": f"Basic {b64encode(words.encode()).decode()}"}


def _name(parts: SplitResult) -> str:
    """Host and port as they are sent."""
    name = parts.netloc.rpartition("@")[2]
    if name.isascii():
        return name
    host = str(parts.hostname).encode("idna").decode()
    return host if parts.port is None else f"{host}:{parts.port}"


@cache
def _context() -> ssl.SSLContext:
    return ssl.create_default_context()

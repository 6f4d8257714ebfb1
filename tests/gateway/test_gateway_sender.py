"""What a webhook may call: checked at the moment of the call, whatever a name meant before."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Any

import pytest
from support.receiver import receiving

from bunqueue.gateway.webhooks.sender import NotSent, post

RESOLVED = {
    "inside.example.com": ["127.0.0.1"],
    "metadata.example.com": ["169.254.169.254"],
    "mapped.example.com": ["::ffff:10.0.0.1"],
    "zoned.example.com": ["fe80::1%1"],
}


@pytest.mark.parametrize("host", RESOLVED)
async def test_names_that_lead_inside(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a stranger's name server may tell them: there is no other way to have such names here."""

    async def getaddrinfo(host: str, port: int, **options: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in RESOLVED[host]]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    with pytest.raises(NotSent, match="own network"):
        await post(f"http://{host}:9/", {}, b"", anywhere=False)


@pytest.mark.parametrize(
    "url", ["http://localhost/", "http://10.0.0.1/", "http://0x7f.1/", "ftp://example.com/"]
)
async def test_addresses_that_lead_inside(url: str) -> None:
    with pytest.raises(NotSent, match="Webhook URL"):
        await post(url, {}, b"", anywhere=False)


async def test_redirects_are_answers_like_others() -> None:
    with receiving() as receiver:
        receiver.status = 307
        assert await post(receiver.url, {"X-A": "b"}, b"{}", anywhere=True) == 307
        assert len(receiver.deliveries) == 1


async def test_who_does_not_speak_http() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example.com ESMTP\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(NotSent):
            await post(f"http://127.0.0.1:{port}/", {}, b"{}", anywhere=True)


async def test_nobody_there() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        with pytest.raises(NotSent):
            await post(f"http://127.0.0.1:{taken.getsockname()[1]}/", {}, b"{}", anywhere=True)


@pytest.mark.parametrize(
    "endless", [b"HTTP/1.1 100 Continue\r\n\r\n" * 100, b"HTTP/1.1 200 OK\r\na: " + b"b" * 4096]
)
async def test_answers_without_end_are_not_read_for_long(endless: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while True:
                writer.write(endless)
                await writer.drain()
        writer.close()

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(NotSent) as refused:
            await post(f"http://127.0.0.1:{port}/", {}, b"{}", anywhere=True)
        assert str(refused.value) == "no answer within 65536 bytes"

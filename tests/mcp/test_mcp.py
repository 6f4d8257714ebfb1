"""`bunqueue mcp`, tried with the client of the MCP project's own SDK, over both of its transports."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import IO, Any

import httpx2
import pytest
from jsonschema import Draft202012Validator
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from msgspec import msgpack
from starlette.responses import PlainTextResponse
from support.cli import Cli, command
from support.server import Server, dispose

from bunqueue import Codec, Encryption, Queue
from bunqueue.cli.framework import exits
from bunqueue.client.codecs.envelope import sealed
from bunqueue.client.connection.transport import Endpoint
from bunqueue.mcp import calls as calls_module
from bunqueue.mcp import streamable_http
from bunqueue.mcp.calls import Calls
from bunqueue.mcp.server import make_server
from bunqueue.mcp.streamable_http import MAX_CONNECTIONS, MAX_UNCHECKED, Clients, TokenGuard
from bunqueue.mcp.tools import OFFERED, choose, tool_of
from bunqueue.server.host.auth_throttle import FREE

WRITER, READER = "writes-all-Kq7", "looks-on-Zw3"
SECRET = "data-that-no-log-has"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a token for everything, and one that may only read."""
    server = Server(
        tmp_path_factory.mktemp("mcp") / "data", "--auth-token", WRITER, "--read-only-token", READER
    )
    try:
        server.start()
        yield server
    finally:
        dispose(server)


def environ(server: Server, token: str | None) -> dict[str, str]:
    ours = Cli(server).environ({"BUNQUEUE_TOKEN": token} if token else {})
    return {name: value for name, value in ours.items() if token or name != "BUNQUEUE_TOKEN"}


@asynccontextmanager
async def over_stdio(server: Server, token: str | None, *flags: str, log: IO[str]) -> AsyncIterator[Client]:
    program, *arguments = command("mcp", *flags)
    parameters = StdioServerParameters(command=program, args=arguments, env=environ(server, token))
    async with Client(stdio_client(parameters, errlog=log)) as client:
        yield client


@contextmanager
def http_server(server: Server, log: IO[str], *flags: str) -> Iterator[str]:
    """Its URL."""
    process = subprocess.Popen(
        command("mcp", "--http", "127.0.0.1:0", *flags),
        env=environ(server, None),
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
    )
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        assert ready.startswith("bunqueue mcp ready url="), ready
        yield ready.strip().partition("url=")[2]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) in (0, -signal.SIGTERM)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@asynccontextmanager
async def over_http(url: str, token: str | None, mode: str = "auto") -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        yield client


async def call(client: Client, tool: str, **fields: Any) -> Any:
    found = await client.call_tool(tool, fields)
    assert found.structured_content is not None
    assert found.is_error is not found.structured_content["ok"]
    return found.structured_content


async def names(client: Client) -> set[str]:
    return {tool.name for tool in (await client.list_tools()).tools}


async def test_over_stdio_tools_only_read_and_then_what_the_token_may(guarded: Server) -> None:
    with tempfile.TemporaryFile("w+") as log:
        async with over_stdio(guarded, WRITER, log=log) as client:
            assert await names(client) == {name for name, spec in OFFERED.items() if not spec.writes}
            assert (await call(client, "Ping"))["data"]["pong"]
            with pytest.raises(MCPError, match=r"PUSH changes something.*--allow-writes"):
                await client.call_tool("PUSH", {"queue": "mail", "data": 1})
            with pytest.raises(MCPError, match=r"no tool 'GetJbo'.*GetJob"):
                await client.call_tool("GetJbo", {})
        async with over_stdio(guarded, WRITER, "--allow-writes", log=log) as client:
            pushed = await call(client, "PUSH", queue="mail", name="welcome", data={"to": SECRET})
            found = await call(client, "FindJobs", queue="mail", data={"to": SECRET})
            assert [job["id"] for job in found["jobs"]] == [pushed["id"]]
        async with over_stdio(guarded, READER, "--allow-writes", log=log) as client:
            assert (await call(client, "GetJob", id=pushed["id"]))["job"]["data"] == {"to": SECRET}
            refused = await call(client, "Cancel", id=pushed["id"])
            assert refused["code"] == "FORBIDDEN"
            assert "only read" in refused["error"]
        log.seek(0)
        said = log.read()
    assert "PUSH: ok" in said
    assert "Cancel: FORBIDDEN" in said
    assert not any(secret in said for secret in (WRITER, READER, SECRET))


async def test_over_http_each_client_has_the_rights_of_its_own_token(guarded: Server) -> None:
    with tempfile.TemporaryFile("w+") as log, http_server(guarded, log, "--allow-writes") as url:
        async with over_http(url, WRITER) as writer, over_http(url, READER, "legacy") as reader:
            assert await names(writer) == await names(reader) == set(OFFERED)
            pushed = await call(writer, "PUSH", queue="web", data={"to": SECRET})
            assert (await call(reader, "GetState", id=pushed["id"]))["state"] == "waiting"
            assert (await call(reader, "Drain", queue="web"))["code"] == "FORBIDDEN"
            assert (await call(writer, "Drain", queue="web"))["count"] == 1
        await _check_strangers(url)
        log.seek(0)
        said = log.read()
    assert "Drain: FORBIDDEN" in said
    assert not any(secret in said for secret in (WRITER, READER, SECRET, "guessed"))


async def _check_strangers(url: str) -> None:
    ping = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    headers = {"Accept": "application/json, text/event-stream"}
    async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
        for token in ({}, {"Authorization": "Bearer guessed"}, {"Authorization": f"Basic {WRITER}"}):
            answer = await http.post(url, json=ping, headers=token)
            assert answer.status_code == 401
            assert answer.headers["WWW-Authenticate"] == "Bearer"
            assert "token" in answer.json()["error"]
        known = {"Authorization": f"Bearer {WRITER}"}
        assert (await http.post(url, json=ping, headers=known)).status_code == 200
        page = {**known, "Origin": "https://elsewhere.example"}  # of another site, in a browser
        assert (await http.post(url, json=ping, headers=page)).status_code == 403
        rebound = {**known, "Host": "elsewhere.example"}
        assert (await http.post(url, json=ping, headers=rebound)).status_code == 421


async def test_a_server_that_is_not_there_is_said_by_the_answers(tmp_path: Path) -> None:
    calls = Calls(Endpoint(port=1))
    try:
        async with Client(make_server(choose(False), lambda context: calls)) as client:
            refused = await call(client, "Stats")
            assert refused["code"] == "connect_timeout"
            assert "is the server running there?" in refused["error"]
    finally:
        await calls.close()


@asynccontextmanager
async def embedded(folder: Path) -> AsyncIterator[tuple[Client, Queue]]:
    """A client of all tools, and a queue, of one engine in this process."""
    path = str(folder / "jobs.db")
    calls = Calls(Endpoint(embedded=True, data_path=path))
    async with Client(make_server(choose(True), lambda context: calls)) as client:
        with Queue("mail", embedded=True, data_path=path) as queue:
            yield client, queue
    await calls.close()


async def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    async with embedded(tmp_path) as (client, queue):
        job = await call(client, "PUSH", queue="mail", data={"n": 1}, delay=60_000)
        assert (await call(client, "WhyWaiting", id=job["id"]))["ok"]
        for tool, fields, code, words in (
            ("PUSH", {"queue": "mail", "prioritty": 3}, "UNKNOWN_FIELD", "did you mean priority?"),
            ("PUSH", {"queue": "mail", "priority": "high"}, "INVALID_PRIORITY", "priority"),
            ("PUSH", {"queue": "mail", "priority": 10**7}, "INVALID_PRIORITY", "priority"),
            ("GetState", {}, "INVALID_FIELD", "id"),
            ("Pause", {"queue": "no name"}, "INVALID_QUEUE", "queue"),
            ("GetJob", {"id": "absent"}, "JOB_NOT_FOUND", "not found"),
        ):
            refused = await call(client, tool, **fields)
            assert refused["code"] == code
            assert words.lower() in refused["error"].lower(), refused
        assert queue.counts().delayed == 1  # nothing else came of it


async def test_answers_fit_into_a_conversation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with embedded(tmp_path) as (client, queue):
        queue.add_bulk([("blob", {"text": "x" * 5000})] * 30)
        found = await call(client, "FindJobs", queue="mail")
        assert len(found["jobs"]) == 20
        assert found["cursor"]
        assert all(job.get("data") is None and job["dataBytes"] > 5000 for job in found["jobs"])
        monkeypatch.setattr(calls_module, "MAX_ANSWER", 10_000)
        refused = await call(client, "FindJobs", queue="mail", dataLimit=10_000)
        assert refused["code"] == "ANSWER_TOO_LARGE"
        assert "ask for less" in refused["error"]
        pulled = await call(
            client, "PULLB", queue="mail", count=5
        )  # happened, so its answer is never withheld
        assert len(pulled["jobs"]) == 5


async def test_bytes_and_bad_numbers_are_shown(tmp_path: Path) -> None:
    async with embedded(tmp_path) as (client, queue):
        job = queue.add("blob", {"raw": b"\x00\xff", "none": float("nan")})
        found = await call(client, "GetJob", id=job.id)
        assert found["job"]["data"] == {"raw": "AP8=", "none": None}


async def test_a_deep_value_is_cut_and_hides_no_other_job(tmp_path: Path) -> None:
    deep: Any = 1
    for _ in range(490):
        deep = [deep]
    async with embedded(tmp_path) as (client, queue):
        queue.add("deep", {"deep": deep})
        queue.add("flat", {"flat": 1})
        found = await call(client, "FindJobs", queue=queue.name)
        assert [job["name"] for job in found["jobs"]] == ["flat", "deep"]
        assert "..." in str(found["jobs"][1]["data"])


async def test_what_is_encrypted_is_said_in_words(tmp_path: Path) -> None:
    codec = Codec(encryption=Encryption({"k1": b"k" * 32}, hash_key=b"h" * 32))
    async with embedded(tmp_path) as (client, queue):
        job = queue.add("report", msgpack.decode(sealed(codec, msgpack.encode({"name": "Ada"}))))
        found = await call(client, "GetJob", id=job.id)
        assert found["job"]["data"] == "encrypted with key k1 (AES-GCM), 26 B"


async def test_connections_that_send_nothing_shut_nobody_out(guarded: Server) -> None:
    with tempfile.TemporaryFile("w+") as log, http_server(guarded, log) as url, ExitStack() as idle:
        address = url.removeprefix("http://").removesuffix("/mcp").split(":")
        for _ in range(MAX_CONNECTIONS + 50):
            idle.enter_context(socket.create_connection((address[0], int(address[1]))))
        async with over_http(url, READER) as client:
            assert (await call(client, "Ping"))["data"]["pong"]


async def test_a_wrong_token_is_said_by_the_answers(guarded: Server) -> None:
    calls = Calls(Endpoint(host=guarded.host, port=guarded.port, token="wrong"))
    try:
        async with Client(make_server(choose(True), lambda context: calls)) as client:
            assert (await call(client, "Stats"))["code"] == "auth_failed"
    finally:
        await calls.close()


async def test_addresses_of_webhooks_are_shown_without_secrets(guarded: Server) -> None:
    calls = Calls(Endpoint(host=guarded.host, port=guarded.port, token=WRITER))
    try:
        async with Client(make_server(choose(True), lambda context: calls)) as client:
            url = "https://ada:hush-hush@example.com/hook?key=hush-hush"
            await call(client, "AddWebhook", url=url, events=["job.failed"], secret="hush-hush")
            assert "hush-hush" not in str(await call(client, "ListWebhooks"))
    finally:
        await calls.close()


def test_every_tool_describes_itself() -> None:
    for name, spec in OFFERED.items():
        tool = tool_of(spec)
        Draft202012Validator.check_schema(tool.input_schema)
        assert tool.name == name
        assert tool.description
        assert tool.title
        assert tool.annotations is not None
        assert tool.annotations.read_only_hint is not spec.writes
        assert "#/components" not in str(tool.input_schema)
        assert "reqId" not in tool.input_schema["properties"]


def test_the_tools_can_be_listed_and_chosen(shared_server: Server) -> None:
    cli = Cli(shared_server)
    rows = cli.json("mcp", "--list", "--only", "Get*", "--only", "RetryDlq", "--allow-writes")
    assert {row["name"]: row["changes"] for row in rows}["RetryDlq"] == "yes"
    assert all(row["name"] == "RetryDlq" or row["name"].startswith("Get") for row in rows)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--only", "RetryDlq"], "--allow-writes"),
        (["--only", "Hello"], "'Hello' matches no tool"),
        (["--http", "localhost"], "give HOST:PORT"),
        (["--http", "127.0.0.1:0", "--token", "hush"], "each client sends its own"),
        (["--host-name", "q.example"], "it is for --http"),
        (["--json"], "it is for --list"),
    ],
)
def test_mistakes_are_refused_at_the_start(shared_server: Server, flags: list[str], words: str) -> None:
    done = Cli(shared_server)("mcp", *flags, status=exits.USAGE)
    assert words in done.err
    assert "hush" not in done.err


def test_it_ends_with_its_input(shared_server: Server) -> None:
    done = Cli(shared_server).program("mcp", env={**os.environ, "BUNQUEUE_URL": Cli(shared_server).url})
    assert done.status == 0
    assert "which only read" in done.err
    assert done.out == ""


async def test_who_guesses_tokens_slows_nobody_down_whose_token_is_known(
    guarded: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not behind the same proxy, and not while as many tokens are looked at as may be."""
    clients = Clients(Endpoint(*guarded.address))
    guard = TokenGuard(PlainTextResponse("in"), clients)
    web = httpx2.AsyncClient(transport=httpx2.ASGITransport(guard), base_url="http://proxy")

    async def status(token: str) -> int:
        answer = await web.get("/", headers={"Authorization": f"Bearer {token}"})
        return answer.status_code

    try:
        assert await status(READER) == 200
        monkeypatch.setattr(streamable_http, "DELAY_S", 3600)
        for number in range(FREE + 1):
            assert await status(f"guess-{number}") == 401
        async with AsyncExitStack() as taken:
            for _ in range(MAX_UNCHECKED):
                await taken.enter_async_context(clients._unchecked)
            async with asyncio.timeout(60):
                assert await status(READER) == 200
    finally:
        await web.aclose()
        await clients.close()

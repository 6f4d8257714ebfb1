"""Each command of the table over each surface with each role: what is allowed follows from the declarations.

Also how rights end: within a second, over every surface, and on every router.
"""

from __future__ import annotations

import asyncio
import re
import signal
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, get_args

import httpx2
import pytest
from support.certificates import Authority, Certificate
from support.server import Server, StartServer, dispose, quiet_port
from support.waiting import PATIENCE_S, eventually
from support.web import client, events
from support.websocket import socket
from support.wire import ConnectionEnded, Wire, at_router
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from bunqueue import AsyncAdmin, AuthError, BunqueueError, TlsOptions
from bunqueue.client.connection.transport import Endpoint
from bunqueue.gateway.http.resources import OFFERED, RESOURCES
from bunqueue.mcp.calls import Calls
from bunqueue.model.rights import ROLES, Identity, Verb, may
from bunqueue.protocol.commands import COMMANDS, Spec
from bunqueue.protocol.commands.find import Action
from bunqueue.server.identities import edit
from bunqueue.server.identities.identity_file import IdentityRow

NAMES = (("127.0.0.1", "localhost"), ("batch.example",), ("other.example",))  # of certificates
TESTED = {**ROLES, "service": Verb.ADD | Verb.RUN}  # the last one is the file's own
FIELDS: dict[str, Any] = {"queue": "q", "id": "none", "custom_id": "none", "ids": ["none"]}


class Guarded:
    """A server with an identity for each role, and their tokens."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "identities.toml")
        Path(self.path).write_text('[roles]\nservice = ["add", "run"]\n')
        self.tokens: dict[str, str] = {}
        for role in TESTED:
            self.add(role, role)
        self.server = Server(
            folder / "data",
            "--identities",
            self.path,
            "--auth-token",
            "of-the-setting",
            "--read-only-token",
            "only-looks",
            "--routers",
            "2",
            http_port=quiet_port(),
        )

    def add(self, name: str, role: str, expires: datetime | None = None) -> str:
        made = edit.make_token()
        self.write(name, IdentityRow(role, expires, tokens=[made.row]))
        self.tokens[name] = made.text
        return made.text

    def write(self, name: str, row: IdentityRow | None) -> None:
        edit.change(self.path, name, lambda _: row)

    async def until_known(self, name: str) -> None:
        """The server, with all its processes, has read the file."""
        async with client(self.server, self.tokens[name]) as web:

            async def known() -> bool:
                return (await web.get("/health")).json()["role"] != "nobody"

            await eventually(known, "the gateway knows the token")
        for router in (0, 1):
            wire = await at_router(self.server.address, router, self.tokens["admin"])
            await eventually(lambda wire=wire: self.accepts(wire, name), "the router knows the token")  # type: ignore[misc]
            await wire.close()

    async def accepts(self, wire: Wire, name: str) -> bool:
        return bool((await wire.call("Auth", token=self.tokens[name]))["ok"])

    async def wire(self, name: str, router: int = 0) -> Wire:
        return await at_router(self.server.address, router, self.tokens[name])

    def web(self, name: str) -> httpx2.AsyncClient:
        return client(self.server, self.tokens[name])

    def headers(self, name: str) -> dict[str, Any]:
        return {"additional_headers": {"Authorization": f"Bearer {self.tokens[name]}"}}

    @property
    def text(self) -> str:
        return Path(self.path).read_text()

    @text.setter
    def text(self, text: str) -> None:
        Path(self.path).write_text(text)

    @property
    def log(self) -> str:
        return self.server.whole_log()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    made = Guarded(tmp_path_factory.mktemp("rights"))
    try:
        made.server.start()
        yield made
    finally:
        dispose(made.server)


def request_of(spec: Spec) -> dict[str, Any]:
    """The smallest request whose way is known. Nothing waits."""
    fields = {spec.key: FIELDS[spec.key]} if spec.key else {}
    named = {"custom_id": "customId"}
    found = {named.get(name, name): value for name, value in fields.items()}
    return {**found, "timeout": 0} if spec.parks else found


def is_allowed(role: str, spec: Spec, *, masked: bool = False) -> bool:
    return may(
        Identity(role, TESTED[role]), spec.verbs | (spec.masked if masked and spec.masked else spec.verbs)
    )


def check(reply: dict[str, Any], role: str, spec: Spec, where: str, *, allowed: bool) -> None:
    refused = reply.get("code") == "FORBIDDEN"
    assert refused is not allowed, f"{role}, {spec.name}, {where}: {reply}"
    if refused:
        assert f"{role} may not use {spec.name}: it needs the verb" in reply["error"]


@pytest.mark.parametrize("router", [0, 1])
async def test_every_command_with_every_role_over_tcp(guarded: Guarded, router: int) -> None:
    for role in TESTED:
        wire = await guarded.wire(role, router)
        for spec in COMMANDS.values():
            if spec.of_connection:
                continue
            reply = await wire.call(spec.name, **request_of(spec))
            allowed = is_allowed(role, spec)
            check(reply, role, spec, f"TCP, router {router}", allowed=allowed)
            if spec.internal and allowed:
                assert reply["code"] == "UNKNOWN_COMMAND"
        await wire.close()


async def test_every_command_with_every_role_over_websocket(guarded: Guarded) -> None:
    for role in TESTED:
        async with socket(guarded.server, **guarded.headers(role)) as ws:
            for spec in OFFERED.values():
                allowed = is_allowed(role, spec, masked=True)
                check(await ws.call(spec.name, **request_of(spec)), role, spec, "WebSocket", allowed=allowed)


async def test_every_command_and_resource_over_http(guarded: Guarded) -> None:
    """With a role that may and one that may not, as a request costs more than a message."""
    async with AsyncExitStack() as stack:
        webs = {role: await stack.enter_async_context(guarded.web(role)) for role in TESTED}
        paths = [("POST", f"/commands/{spec.name}", spec) for spec in OFFERED.values()]
        paths += [(each.method, re.sub(r"{\w+}", "none", each.path), each.spec) for each in RESOURCES]
        for method, path, spec in paths:
            body = request_of(spec) if path.startswith("/commands") else None
            by_right = {is_allowed(role, spec, masked=True): role for role in TESTED}
            assert by_right.keys() == {True, False} or not spec.verbs
            for allowed, role in by_right.items():
                response = await webs[role].request(method, path, json=body)
                check(response.json(), role, spec, f"{method} {path}", allowed=allowed)
                assert (response.status_code == 403) is not allowed


async def test_every_command_with_every_role_over_mcp(guarded: Guarded) -> None:
    host, port = guarded.server.address
    for role in TESTED:
        calls = Calls(Endpoint(host, port, token=guarded.tokens[role]))
        for spec in OFFERED.values():
            if spec.verbs:
                reply = await calls.call(spec, request_of(spec))
                if not reply.get("code", "").startswith("INVALID"):  # refused before it is sent
                    check(reply, role, spec, "MCP", allowed=is_allowed(role, spec))
        await calls.close()


async def test_what_is_no_command_is_that_of_one(guarded: Guarded) -> None:
    paths = {"/prometheus": "Prometheus", "/history": "DashboardOverview"}
    for role in TESTED:
        async with guarded.web(role) as web:
            for path, command in paths.items():
                reads = is_allowed(role, COMMANDS[command])
                assert (await web.get(path)).status_code == (200 if reads else 403), (role, path)
            async with events(web) as stream:
                assert (stream.response.status_code == 200) is is_allowed(role, COMMANDS["GetEvents"])
            found = (await web.get("/health")).json()
            assert found["identity"] == role
            assert ("queues" in found) is is_allowed(role, COMMANDS["Stats"])
        async with socket(guarded.server, **guarded.headers(role)) as ws:
            reply = await ws.call("Subscribe")
            assert reply["ok"] is is_allowed(role, COMMANDS["GetEvents"])
        wire = await guarded.wire(role)
        live = (await wire.call("SubscribeEvents", queue="q"))["ok"]
        assert live is is_allowed(role, COMMANDS["SubscribeEvents"])
        await wire.close()


async def test_a_bulk_change_needs_the_verb_of_its_action(guarded: Guarded) -> None:
    for role in TESTED:
        wire = await guarded.wire(role)
        async with guarded.web(role) as web:
            for action in get_args(Action):
                fields = {"queue": "q", "action": action, "priority": 1, "to": "q2", "dryRun": True}
                needed = COMMANDS["ChangeJobs"].verbs_of(action)
                allowed = may(Identity(role, TESTED[role]), needed)
                over_http = (await web.post("/commands/ChangeJobs", json=fields)).json()
                for reply in (await wire.call("ChangeJobs", **fields), over_http):
                    assert (reply.get("code") != "FORBIDDEN") is allowed, (role, action, reply)
        await wire.close()


async def test_the_tokens_of_the_settings_are_identities_beside_those_of_the_file(guarded: Guarded) -> None:
    async with await Wire.open(guarded.server.address) as wire:
        await wire.ok("Auth", token="of-the-setting")
        await wire.ok("PUSH", queue="q", data=1)
        await wire.ok("Auth", token="only-looks")
        assert "may only read" in await wire.error("PUSH", queue="q", data=1)
        for wrong in (
            "",
            "bq_",
            "bq_00000000_x",
            guarded.tokens["admin"] + "x",
            guarded.tokens["admin"][:-1],
        ):
            assert await wire.error("Auth", token=wrong) == "Invalid token"
    async with client(guarded.server, "only-looks") as web:
        assert (await web.get("/health")).json()["identity"] == "read_only_token"


@asynccontextmanager
async def everywhere(guarded: Guarded, name: str) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Uses of an identity over every surface; each task ends with what it uses."""
    wires = [await guarded.wire(name, router) for router in (0, 1)]
    polls = [wire.send("PULL", queue="waits", timeout=60_000) for wire in wires]
    async with guarded.web(name) as web, socket(guarded.server, **guarded.headers(name)) as ws:
        assert (await ws.call("Subscribe"))["ok"]

        async def wire_ends(wire: Wire, poll: asyncio.Future[Any]) -> None:
            await wire.until_ended()
            with suppress(ConnectionEnded):
                await poll

        async def socket_ends() -> None:
            with suppress(ConnectionClosed):
                async for _ in ws.connection:
                    pass
            assert ws.connection.close_code == 4401

        async def poll_ends() -> None:
            with suppress(httpx2.HTTPError):
                response = await web.post("/queues/waits/jobs/pull", json={"timeout": 60_000})
                assert response.status_code == 401  # it has come after the change

        async with events(web) as stream:

            async def stream_ends() -> None:
                with pytest.raises((EOFError, httpx2.HTTPError)):  # noqa: PT012  # events may come before
                    while True:
                        await stream.next()

            uses = [wire_ends(wire, poll) for wire, poll in zip(wires, polls, strict=True)]
            tasks = [asyncio.ensure_future(use) for use in (*uses, socket_ends(), poll_ends(), stream_ends())]
            yield tasks
    for wire in wires:
        await wire.close()


async def test_a_revoked_identity_ends_everywhere_and_no_other(guarded: Guarded) -> None:
    guarded.add("leaves", "admin")
    await guarded.until_known("leaves")
    stays = await guarded.wire("admin", 1)
    async with everywhere(guarded, "leaves") as uses:
        guarded.write("leaves", None)
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*uses)
    async with await Wire.open(guarded.server.address) as wire:
        assert await wire.error("Auth", token=guarded.tokens["leaves"]) == "Invalid token"
    await stays.ok("Ping")
    await stays.close()


async def test_an_identity_that_expires_or_changes_ends_everywhere(guarded: Guarded) -> None:
    guarded.add("short", "admin")
    made = edit.make_token()
    for row in (
        IdentityRow("admin", datetime.now(UTC) - timedelta(seconds=1)),
        IdentityRow("reader"),
        IdentityRow("admin", tokens=[made.row]),
    ):
        await guarded.until_known("short")
        old = edit.load(guarded.path).rows["short"]
        async with everywhere(guarded, "short") as uses:
            if not row.tokens:
                row.tokens = old.tokens
            guarded.write("short", row)
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.gather(*uses)
        guarded.add("short", "admin")


async def test_a_token_works_until_its_moment_and_rights_end_without_a_change(guarded: Guarded) -> None:
    for seconds in (3, 15, 60):  # the file may be read late on a busy machine
        wire, until = await guarded.wire("admin"), datetime.now(UTC) + timedelta(seconds=seconds)
        guarded.add("brief", "admin", until)
        while not (accepted := await guarded.accepts(wire, "brief")) and datetime.now(UTC) < until:
            pass
        if accepted:
            break
        await wire.close()
    assert accepted
    async with asyncio.timeout(PATIENCE_S):
        await wire.until_ended()
    wire = await Wire.open(guarded.server.address)
    assert await wire.error("Auth", token=guarded.tokens["brief"]) == "Invalid token"
    await wire.close()


async def test_a_file_with_a_mistake_changes_nothing_and_is_named_by_line(guarded: Guarded) -> None:
    before = guarded.text
    wire = await guarded.wire("worker", 1)
    lines = len(before.splitlines())
    for text, words in (
        ("[identities\n", f"line {lines + 1}: is not valid TOML"),
        ('[identities.broken]\nrole = "nobody"\n', f"line {lines + 2}: there is no role 'nobody'"),
    ):
        guarded.text = before + text
        await eventually(lambda words=words: words in guarded.log, words)  # type: ignore[misc]
        await wire.ok("Ping")
        await (await guarded.wire("viewer")).close()
    guarded.text = before
    await wire.ok("Ping")
    await wire.close()


async def test_the_router_is_not_ended_by_sighup(guarded: Guarded) -> None:
    wire = await guarded.wire("worker")
    before = guarded.log.count("the identities were read again")
    guarded.server.signal(signal.SIGHUP)
    await eventually(
        lambda: guarded.log.count("the identities were read again") > before, "the file is read again"
    )
    await wire.ok("Ping")
    await wire.close()


async def test_a_client_certificate_is_an_identity(make_server: StartServer, tmp_path: Path) -> None:
    authority, path = Authority(tmp_path / "certificates"), str(tmp_path / "identities.toml")
    end = datetime.now(UTC).replace(microsecond=0) + timedelta(days=10)
    own, worker, other = (
        authority.issue(*names, file=str(number), ends=end) for number, names in enumerate(NAMES)
    )
    edit.change(path, "batch", lambda _: IdentityRow("worker", certificate="batch.example"))
    flags = (*own.flags, "--tls-client-ca", authority.ca_file, "--identities", path, "--auth-token", "all")
    server = make_server(*flags, http_port=quiet_port(), shards=1)
    server.start()

    def asks(certificate: Certificate) -> AsyncAdmin:
        tls = TlsOptions(ca_file=authority.ca_file, cert_file=certificate.cert, key_file=certificate.key)
        return AsyncAdmin(port=server.port, tls=tls)

    async with asks(worker) as admin:
        with pytest.raises(BunqueueError, match="batch may not use ListQueues: it needs the verb 'see'"):
            await admin.list_queues()
    async with asks(other) as admin:
        with pytest.raises(AuthError, match="Not authenticated"):
            await admin.list_queues()
    for certificate, code in ((worker, "FORBIDDEN"), (other, "NOT_AUTHENTICATED")):
        context = ssl.create_default_context(cafile=authority.ca_file)
        context.load_cert_chain(certificate.cert, certificate.key)
        async with httpx2.AsyncClient(verify=context, trust_env=False) as web:
            url = f"https://{server.host}:{server.http_port}"
            assert (await web.get(f"{url}/queues")).json()["code"] == code
        async with connect(f"wss://{server.host}:{server.http_port}/ws", proxy=None, ssl=context) as ws:
            await ws.send('{"cmd": "ListQueues", "reqId": 1}')
            assert f'"code":"{code}"' in str(await ws.recv())
    tls = TlsOptions(ca_file=authority.ca_file, cert_file=other.cert, key_file=other.key)
    async with AsyncAdmin(port=server.port, tls=tls, token="all") as admin:
        name = "bunqueue_client_certificate_expires_timestamp_seconds"
        async with asyncio.timeout(PATIENCE_S):
            while name not in (found := await admin.prometheus()):
                await admin.ping()
    (ends,) = [line.split()[1] for line in found.splitlines() if line.startswith(name)]
    assert float(ends) == end.timestamp()

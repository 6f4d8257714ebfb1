"""Sessions of the dashboard: who gets one, what its cookie is good for, and all the ways in which it ends."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest
from support.certificates import Authority
from support.server import Server, StartServer, dispose, quiet_port
from support.table import table
from support.waiting import PATIENCE_S
from support.web import client, events
from support.websocket import socket

from bunqueue.gateway.http.sessions import MAX_EACH, Sessions, cookie, cookie_name
from bunqueue.model.rights import ALL, Identity
from bunqueue.server.audit.trail import Wanted, latest
from bunqueue.server.identities import edit
from bunqueue.server.identities.directory import Grant
from bunqueue.server.identities.identity_file import IdentityRow

OURS = {"X-Bunqueue-Session": "1"}


class House:
    """A server with people in its file."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, str(folder / "identities.toml")
        self.tokens: dict[str, str] = {}
        for name, role in (("boss", "admin"), ("anna", "operator"), ("guest", "viewer")):
            self.add(name, role)
        flags = (
            "--identities",
            self.path,
            "--auth-token",
            "of-the-settings",
            "--http-origin",
            "https://else.example",
        )
        self.server = Server(folder / "data", *flags, http_port=quiet_port(), shards=1)

    def add(self, name: str, role: str) -> None:
        made = edit.make_token()
        edit.change(self.path, name, lambda _: IdentityRow(role, tokens=[made.row]))
        self.tokens[name] = made.text

    @asynccontextmanager
    async def signed_in(self, name: str) -> AsyncIterator[httpx2.AsyncClient]:
        """A browser with a session."""
        async with client(self.server) as web:
            web.headers.update(OURS)
            bearer = {"Authorization": f"Bearer {self.tokens[name]}"}
            assert (await web.post("/session", headers=bearer)).status_code == 200
            yield web

    def entries(self, what: str) -> list[str]:
        found = latest(str(self.folder / "data"), Wanted(what=(what,)), 100)
        return [each.who for each in found]


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    made = House(tmp_path_factory.mktemp("house"))
    try:
        made.server.start()
        yield made
    finally:
        dispose(made.server)


async def test_a_session_stands_for_its_token(house: House) -> None:
    async with house.signed_in("anna") as web:
        shown = (await web.get("/session")).json()["data"]
        assert (shown["identity"], shown["plaintext"]) == ("anna", False)
        assert "Pause" in shown["commands"]
        assert "Obliterate" not in shown["commands"]
        assert set(shown["bulk"]) == {"cancel", "retry", "priority", "move"}
        assert (await web.post("/queues/mail/pause")).status_code == 200
        assert (await web.get("/queues")).status_code == 200
        assert (await web.post("/commands/Obliterate", json={"queue": "mail"})).json()["code"] == "FORBIDDEN"
        assert house.entries("Pause") == ["anna"]
        (held,) = web.cookies.jar
        assert (held.name, held.path, held.secure) == (f"bunqueue-{house.server.http_port}", "/", False)
    assert "anna" in house.entries("SignIn")


async def test_what_the_cookie_says(house: House, make_server: StartServer, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "certificates")
    own, trusted = authority.issue(), ssl.create_default_context(cafile=authority.ca_file)
    with_tls = make_server(*own.flags, "--auth-token", "of-tls", http_port=quiet_port(), shards=1)
    with_tls.start()
    for server, token in ((house.server, house.tokens["boss"]), (with_tls, "of-tls")):
        url = server.url.replace("http:", "https:") if server is with_tls else server.url
        async with httpx2.AsyncClient(verify=trusted, trust_env=False) as web:
            bearer = {"Authorization": f"Bearer {token}"}
            said = (await web.post(f"{url}/session", headers=bearer)).headers["set-cookie"]
        assert {"HttpOnly", "SameSite=Strict", "Path=/", "Max-Age=43200"} <= set(said.split("; "))
        assert said.startswith("__Host-") is ("Secure" in said.split("; ")) is (server is with_tls)
        assert token not in said


async def test_a_cookie_alone_is_nothing(house: House) -> None:
    """What another page, a form, a link or a WebSocket can make a browser send does not count."""
    async with house.signed_in("boss") as web:
        port, name = house.server.http_port, f"bunqueue-{house.server.http_port}"
        carried = {"Cookie": f"{name}={web.cookies[name]}"}
        async with client(house.server) as other:
            same_site = {"Origin": "http://127.0.0.1:1"}  # another port is the same site for cookies
            for headers, status in (
                (carried, 401),
                (carried | {"Content-Type": "text/plain", "Origin": f"http://127.0.0.1:{port}"}, 401),
                (carried | same_site | OURS, 403),
                (carried | {"Sec-Fetch-Site": "cross-site"} | OURS, 403),
                (carried | {"Origin": "https://else.example"}, 401),
                (carried | OURS, 200),
            ):
                assert (await other.post("/queues/q/pause", headers=headers)).status_code == status, headers
            asks = {"Origin": "https://else.example", "Access-Control-Request-Method": "POST"}
            allowed = (await other.options("/queues/q/pause", headers=asks)).headers
            assert "session" not in allowed["access-control-allow-headers"].lower()
            assert "access-control-allow-credentials" not in allowed
        async with socket(house.server, additional_headers=carried | OURS) as ws:
            assert (await ws.call("ListQueues"))["code"] == "NOT_AUTHENTICATED"


async def test_a_session_cannot_be_fixed_or_made_up(house: House) -> None:
    name = f"bunqueue-{house.server.http_port}"
    async with client(house.server) as web:
        chosen = OURS | {"Cookie": f"{name}=chosen-by-somebody"}
        assert (await web.get("/queues", headers=chosen)).status_code == 401
        bearer = {"Authorization": f"Bearer {house.tokens['boss']}"}
        said = (await web.post("/session", headers=chosen | bearer)).headers["set-cookie"]
        assert "chosen" not in said
        web.cookies.clear()
        assert (await web.get("/queues", headers=chosen)).status_code == 401
    async with house.signed_in("boss") as web:
        assert (await web.post("/session")).status_code == 400, "a session makes no further one"
        wrong = {"Authorization": "Bearer wrong"}
        assert (await web.get("/queues", headers=wrong)).status_code == 401, "a token counts before a cookie"


async def test_signing_out_and_being_signed_out(house: House) -> None:
    async with house.signed_in("boss") as boss, house.signed_in("anna") as anna:
        assert (await anna.get("/sessions")).json()["code"] == "FORBIDDEN"
        found = (await boss.get("/sessions")).json()["data"]["sessions"]
        hers = [each["id"] for each in found if each["identity"] == "anna"][-1]
        assert [each["identity"] for each in found if each["own"]] == ["boss"]
        assert (await anna.delete(f"/sessions/{hers}")).json()["code"] == "FORBIDDEN"
        async with events(anna) as stream:
            assert (await boss.delete(f"/sessions/{hers}")).json() == {"ok": True}
            with pytest.raises((EOFError, httpx2.HTTPError)):
                await stream.next()
        assert (await anna.get("/queues")).status_code == 401
        assert (await boss.delete(f"/sessions/{hers}")).json()["code"] == "SESSION_NOT_FOUND"
        held = dict(boss.cookies)
        async with events(boss) as stream:
            out = await boss.delete("/session")
            assert "Max-Age=0" in out.headers["set-cookie"]
            with pytest.raises((EOFError, httpx2.HTTPError)):
                await stream.next()
        boss.cookies.update(held)
        assert (await boss.get("/queues")).status_code == 401, "its end is not only in the browser"
        assert house.entries("EndSession") == ["boss"]


async def test_a_session_ends_with_its_identity(house: House) -> None:
    house.add("leaves", "admin")

    async with client(house.server, house.tokens["leaves"]) as web, asyncio.timeout(PATIENCE_S):
        while not (await web.get("/session")).json()["data"]["known"]:
            pass
    async with house.signed_in("leaves") as web, events(web) as stream:
        edit.change(house.path, "leaves", lambda _: None)
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises((EOFError, httpx2.HTTPError)):
                await stream.next()
        assert (await web.get("/queues")).status_code == 401
        assert not (await web.get("/session")).json()["data"]["known"]


async def test_nobody_without_a_token_gets_one(house: House) -> None:
    async with client(house.server) as web:
        for headers in ({}, OURS, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic Ym9zczp4"}):
            answer = await web.post("/session", headers=headers, json={"token": house.tokens["boss"]})
            assert (answer.status_code, answer.json()["code"]) == (401, "NOT_AUTHENTICATED")
            assert "set-cookie" not in answer.headers
        for method, path in (("GET", "/sessions"), ("DELETE", "/sessions/x")):
            assert (await web.request(method, path)).status_code == 401
        assert (await web.get("/session")).json()["data"] == {"plaintext": False, "known": False}


async def test_an_open_server_has_no_sessions(make_server: StartServer) -> None:
    server = make_server(http_port=quiet_port(), shards=1)
    server.start()
    async with client(server) as web:
        shown = (await web.get("/session")).json()["data"]
        assert (shown["identity"], "Obliterate" in shown["commands"]) == ("", True)
        assert (await web.post("/session")).status_code == 400


def grant(name: str) -> Grant:
    return Grant(Identity(name, ALL), "token 1")


def test_sessions_are_bounded_in_time_and_number() -> None:
    sessions = Sessions(60)
    secret, first = sessions.begin(grant("anna"), "::1", 1000)
    assert sessions.of(secret, 1059.9) == first
    assert sessions.of(secret, 1060) is None
    assert sessions.of(secret + "x", 1001) is sessions.of("", 1001) is None
    for number in range(3 * MAX_EACH):
        sessions.begin(grant("anna"), "::1", 1001 + number / 1000)
    sessions.begin(grant("boss"), "::1", 1002)
    assert len(sessions.listed(1003)) == MAX_EACH + 1
    assert sessions.of(secret, 1003) is None, "the oldest of the same identity has given way"
    sessions.begin(grant("boss"), "::1", 5000)
    assert len(sessions.listed(0)) == 1, "what has ended takes no memory"


@table("secure", [True, False])
def test_cookies_of_several_servers_of_a_machine_are_apart(secure: bool) -> None:
    names = {cookie_name(port, secure=secure) for port in (6790, 6791)}
    assert len(names) == 2
    assert "Max-Age=0" in cookie(names.pop(), "", 60, secure=secure)

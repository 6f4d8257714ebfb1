"""People who sign in elsewhere: with a real OpenID Connect provider, or at a proxy that the file trusts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from support.provider import Provider
from support.server import Server, dispose, quiet_port
from support.web import client

from bunqueue.gateway.sign_in.oidc import _within
from bunqueue.server.audit.trail import Wanted, latest

OURS = {"X-Bunqueue-Session": "1"}


class Elsewhere:
    """A provider, and a server that trusts it and the proxies of its own machine."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.provider, http = folder, Provider(), quiet_port()
        self.url, self.file = f"http://127.0.0.1:{http}", folder / "identities.toml"
        self.trust("127.0.0.1")
        self.server = Server(folder / "data", "--identities", str(self.file), http_port=http, shards=1)

    def trust(self, proxy: str) -> None:
        tables = self.provider.tables(self.url, self.folder)
        self.file.write_text(f'{tables}[proxy]\naddresses = ["{proxy}"]\n')

    def start(self) -> None:
        self.provider.start()
        self.server.start()

    def stop(self) -> None:
        self.provider.stop()
        dispose(self.server)

    def entries(self, who: str) -> list[tuple[str, str]]:
        return [(each.what, each.outcome) for each in latest(str(self.folder / "data"), Wanted(who=who), 100)]


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Elsewhere]:
    made = Elsewhere(tmp_path_factory.mktemp("elsewhere"))
    try:
        made.start()
        yield made
    finally:
        made.stop()


async def consent(web: httpx2.AsyncClient, who: str, to: str = "/") -> str:
    """Begin, and sign in at the provider. Returns the address to which it sends the browser back."""
    begun = await web.get("/oidc/login", params={"to": to}, headers={"Accept": "text/html"})
    asked = begun.headers["location"]
    query = parse_qs(urlsplit(asked).query)
    assert query["code_challenge_method"] == ["S256"]
    assert {"state", "nonce", "code_challenge"} <= query.keys()
    async with httpx2.AsyncClient(trust_env=False) as provider:
        answered = await provider.post(asked, data={"sub": who})
    return answered.headers["location"]


async def test_signing_in_with_a_provider(elsewhere: Elsewhere) -> None:
    async with client(elsewhere.server) as web:
        assert (await web.get("/session")).json()["data"]["oidc"] == f"127.0.0.1:{elsewhere.provider.port}"
        back = await consent(web, "anna", "/queues/mail?state=failed")
        assert back.startswith(f"{elsewhere.url}/oidc/callback?")
        answer = await web.get(back, headers={"Accept": "text/html"})
        assert (answer.status_code, answer.headers["location"]) == (302, "/queues/mail?state=failed")
        assert [held.name for held in web.cookies.jar] == [f"bunqueue-{elsewhere.server.http_port}"]
        shown = (await web.get("/session", headers=OURS)).json()["data"]
        assert (shown["identity"], shown["verbs"]) == (
            "oidc:anna@example.com",
            ["scrape", "see", "read", "operate"],
        )
        assert (await web.post("/queues/mail/pause", headers=OURS)).status_code == 200
        assert elsewhere.entries("oidc:anna@example.com") == [("SignIn", "ok"), ("Pause", "ok")]
        again = await web.get(back)
        assert again.status_code == 403, "a code is good for one browser, once"


async def test_who_has_no_role_or_did_not_ask_gets_nothing(elsewhere: Elsewhere) -> None:
    async with client(elsewhere.server) as web:
        answer = await web.get(await consent(web, "stranger"))
        assert (answer.status_code, "none of your groups" in answer.text) == (403, True)
        assert elsewhere.entries("oidc:stranger@example.com") == [("SignIn", "FORBIDDEN")]
        back = await consent(web, "anna")
        async with client(elsewhere.server) as other:  # somebody else's code, as in a link
            assert (await other.get(back)).status_code == 403
            assert "set-cookie" not in (await other.get(back)).headers
            await consent(other, "guest")
            assert (await other.get(back)).status_code == 403, "another state"
        state = parse_qs(urlsplit(back).query)["state"][0]
        for query in ({"state": state, "code": "made-up"}, {"state": state, "error": "access_denied"}, {}):
            assert (await web.get("/oidc/callback", params=query)).status_code == 403
        assert (await web.get("/queues", headers=OURS)).status_code == 401


async def test_only_a_listed_proxy_is_believed(elsewhere: Elsewhere) -> None:
    said = OURS | {"X-Forwarded-User": "pat", "X-Forwarded-Groups": "staff, ops"}
    async with client(elsewhere.server) as web:
        shown = (await web.get("/session", headers=said)).json()["data"]
        assert (shown["identity"], "Pause" in shown["commands"]) == ("proxy:pat", True)
        through = said | {"X-Forwarded-For": "203.0.113.9, 198.51.100.7, 127.0.0.1"}
        assert (await web.post("/queues/proxied/pause", headers=through)).status_code == 200
        (entry,) = latest(str(elsewhere.folder / "data"), Wanted(what=("Pause", "proxied")), 9)
        assert (entry.who, entry.address) == ("proxy:pat", "198.51.100.7")
        without = {key: value for key, value in said.items() if key not in OURS}
        assert (await web.get("/queues", headers=without)).status_code == 401, "a form of another page"
        twice = [*said.items(), ("X-Forwarded-User", "root")]
        assert (await web.get("/queues", headers=twice)).status_code == 401
        nobody = said | {"X-Forwarded-Groups": "strangers"}
        assert (await web.get("/queues", headers=nobody)).status_code == 401
        web.headers.update(OURS)
        back = await consent(web, "anna")
        await web.get(back)
        assert (await web.get("/queues")).status_code == 200
        secure = await web.get("/oidc/login", headers={"X-Forwarded-Proto": "https"})
        assert secure.headers["set-cookie"].startswith("__Host-")
        elsewhere.trust("192.0.2.1")
        async with client(elsewhere.server) as other:
            while (await other.get("/session", headers=said)).json()["data"]["known"]:
                pass
            assert (await other.get("/queues", headers=said)).status_code == 401
            for forged in ("X-Forwarded-For", "X-Real-Ip", "Forwarded"):
                assert (await other.get("/queues", headers=said | {forged: "192.0.2.1"})).status_code == 401
            plain = await other.get("/oidc/login", headers={"X-Forwarded-Proto": "https"})
            assert not plain.headers["set-cookie"].startswith("__Host-")
        assert (await web.get("/queues")).status_code == 200
        text = elsewhere.file.read_text()
        elsewhere.file.write_text(text.replace('ops = "operator"', 'ops = "producer"'))
        while (await web.get("/session")).json()["data"]["known"]:
            pass
        assert (await web.get("/queues")).status_code == 401, "a group has got another role"
        elsewhere.file.write_text(text)


def test_where_one_comes_back_to_is_this_dashboard() -> None:
    for inside in ("/", "/queues/a%20b?state=failed", "/signed-in"):
        assert _within(inside) == inside
    for outside in (
        "//evil.example",
        "/\\evil.example",
        "https://evil.example",
        "",
        "/a\nSet-Cookie: x",
        "/" * 2000,
    ):
        assert _within(outside) == "/"

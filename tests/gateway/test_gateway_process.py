"""The gateway's process: started and ended with the server, started again when it dies, and who may use
it.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
from pathlib import Path

import httpx2
import pytest
from support.certificates import Authority
from support.server import NotStarted, Server, StartServer, quiet_port
from support.waiting import PATIENCE_S, eventually, wait_until
from support.web import client, fresh_queue

from router.gateway import PING_S, SILENT_PINGS

WRITER, READER = "may-write", "may-read"


@pytest.fixture
def closed_server(make_server: StartServer) -> Server:
    """A server with tokens."""
    server = make_server("--auth-token", WRITER, "--read-only-token", READER, http_port=quiet_port())
    server.start()
    return server


def test_the_ready_line_names_it(web_server: Server) -> None:
    assert f" http=127.0.0.1:{web_server.http_port} " in web_server.ready


def test_a_port_in_use_is_told_at_once(make_server: StartServer, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server = make_server(http_port=taken.getsockname()[1])
        with pytest.raises(NotStarted) as caught:
            server.start()
    (line,) = caught.value.refusals
    assert "Address already in use" in line
    assert "--http-port" in line


async def test_it_comes_back_and_whoever_asks_meanwhile_waits(web_server: Server) -> None:
    before = web_server.gateway()
    before.kill()
    async with client(web_server) as web:

        async def answers() -> bool:
            try:
                return (await web.get("/healthz")).status_code == 200
            except httpx2.TransportError:
                return False

        await eventually(answers, "it answers")
    assert web_server.gateway() != before


async def test_one_that_hangs_is_replaced(make_server: StartServer) -> None:
    server = make_server(http_port=quiet_port())
    server.start()
    hung = server.gateway()
    assert hung.kill(signal.SIGSTOP)
    async with client(server) as web:
        answer = await web.get("/healthz", timeout=(SILENT_PINGS + 2) * PING_S + PATIENCE_S)
    assert answer.status_code == 200
    assert server.gateway() != hung
    assert server.stop() == 0


def test_it_ends_with_the_router_whatever_ends_that(make_server: StartServer) -> None:
    server = make_server(http_port=quiet_port())
    server.start()
    server.kill_router()
    server.until_gone()


async def test_health_for_people_and_probes(web_server: Server) -> None:
    async with client(web_server) as web:
        assert (await web.get("/healthz")).text == "OK"
        assert (await web.get("/ready")).json() == {"ok": True, "ready": True}
        health = (await web.get("/health")).json()
        assert (health["ok"], health["status"]) == (True, "healthy")
        assert set(health["queues"]) == {"waiting", "active", "delayed", "completed", "dlq"}
        assert (await web.get("/stats")).json()["stats"]["waiting"] >= 0
        text = await web.get("/prometheus")
        assert text.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert "bunqueue_" in text.text
        accepts = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
        scraped = await web.get("/metrics", headers={"Accept": accepts})  # as Prometheus asks
        assert scraped.headers["content-type"] == text.headers["content-type"]
        assert "bunqueue_queue_failures_total" in scraped.text
        assert (await web.get("/metrics")).json()["metrics"]["totalPushed"] >= 0


async def test_it_is_not_ready_while_a_shard_is_away(make_server: StartServer) -> None:
    server = make_server(http_port=quiet_port())
    server.start()
    async with client(server) as web:
        seen = set()

        async def both_seen() -> bool:
            server.kill_shards(0)
            for _ in range(5):
                answer = await web.get("/ready")
                seen.add((answer.status_code, answer.json()["ready"]))
            return (503, False) in seen

        await eventually(both_seen, "it was not ready")

        async def ready() -> bool:
            return (await web.get("/ready")).status_code == 200

        await eventually(ready, "it is ready again")


async def test_tokens_and_what_they_are_good_for(closed_server: Server) -> None:
    queue = fresh_queue()
    codes = {}
    for token in (None, "wrong", READER, WRITER):
        async with client(closed_server, token) as web:
            codes[token] = [
                (await web.post(f"/queues/{queue}/jobs", json={})).status_code,
                (await web.get(f"/queues/{queue}/jobs")).status_code,  # a pull
                (await web.get(f"/queues/{queue}/counts")).status_code,
                (await web.post("/commands/GetJobCounts", json={"queue": queue})).status_code,
                (await web.get("/prometheus")).status_code,
            ]
    assert codes == {
        None: [401] * 5,
        "wrong": [401] * 5,
        READER: [403, 403, 200, 200, 200],
        WRITER: [200] * 5,
    }
    async with client(closed_server) as web:
        assert "queues" not in (await web.get("/health")).json()
        refused = await web.get("/stats")
        assert refused.headers["www-authenticate"] == "Bearer"
    async with client(closed_server, READER) as web:
        assert "may only read" in (await web.delete(f"/queues/{queue}")).json()["error"]
        assert (await web.post("/compact")).status_code == 403


async def test_who_may_only_read_sees_no_secrets_and_leaves_room_for_others(closed_server: Server) -> None:
    url = "https://user:word@example.com/hook?key=secret&bare#more"
    queue = fresh_queue()
    async with (
        client(closed_server, WRITER) as web,
        client(closed_server, READER) as reader,
        client(closed_server, READER) as other,
    ):
        await web.post("/webhooks", json={"url": url, "events": ["job.completed"]})
        for who, shown in (
            (web, "https://user:***@example.com/hook?key=secret&bare#more"),
            (reader, "https://***@example.com/hook?key=***&***"),
        ):
            for reply in (await who.get("/webhooks"), await who.post("/commands/ListWebhooks", json={})):
                assert reply.json()["data"]["webhooks"][0]["url"] == shown
        job = (await web.post(f"/queues/{queue}/jobs", json={})).json()["id"]
        wait = {"id": job, "timeout": 60_000}
        # More than a quarter of all places; a client has a hundred connections.
        waits = [
            asyncio.create_task(each.post("/commands/WaitJob", json=wait))
            for each in (reader, other)
            for _ in range(80)
        ]
        done, waiting = await asyncio.wait(waits, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
        assert {each.result().status_code for each in done} == {503}
        answer = await web.post("/commands/WaitJob", json=wait | {"timeout": 1})
        assert answer.status_code == 200
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, 200),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Host": "rebound.example.com"}, 403),
        ({"Host": "localhost"}, 200),
        ({"Host": "queue.internal"}, 403),
        ({"Host": "evil.local"}, 403),
        ({"Host": f"{socket.gethostname().partition('.')[0]}.local"}, 200),
        ({"Host": "queue.jobs.svc.cluster.local"}, 200),
        ({"Host": "[::1]:80"}, 200),
    ],
)
async def test_other_sites_may_not_use_it(web_server: Server, headers: dict[str, str], code: int) -> None:
    async with client(web_server) as web:
        assert (await web.get("/stats", headers=headers)).status_code == code


async def test_no_page_makes_a_browser_pull_a_job(web_server: Server) -> None:
    queue = fresh_queue()
    browser = {"User-Agent": "Mozilla/5.0 (X11; Linux x86_64)"}
    async with client(web_server) as web:
        await web.post(f"/queues/{queue}/jobs", json={})
        path = f"/queues/{queue}/jobs"
        shown = await web.get(path, headers={**browser, "Accept": "text/html"})  # a link was followed
        assert shown.headers["content-type"].startswith("text/html")
        assert (await web.get(f"/queues/{queue}/counts")).json()["counts"]["active"] == 0
        refused = await web.get(path, headers={**browser, "Accept": "image/*"})
        assert (refused.status_code, "POST" in refused.json()["error"]) == (403, True)
        assert (await web.get(f"/queues/{queue}/counts")).json()["counts"]["active"] == 0
        assert (await web.post(f"{path}/pull", headers=browser)).json()["job"] is not None


async def test_sites_that_may_use_it(make_server: StartServer) -> None:
    site = "https://ops.example.com"
    server = make_server("--http-origin", site, http_port=quiet_port())
    server.start()
    async with client(server) as web:
        asked = await web.options(
            "/queues/q/jobs", headers={"Origin": site, "Access-Control-Request-Method": "POST"}
        )
        assert asked.status_code == 204
        assert asked.headers["access-control-allow-origin"] == site
        assert "POST" in asked.headers["access-control-allow-methods"]
        answer = await web.post("/queues/q/jobs", json={}, headers={"Origin": site})
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, site)
        other = await web.options("/queues/q/jobs", headers={"Origin": "https://evil.example"})
        assert other.status_code == 403
        assert "access-control-allow-origin" not in other.headers


async def test_too_many_requests_a_minute(make_server: StartServer) -> None:
    server = make_server("--rate-limit", "3", http_port=quiet_port())
    server.start()
    async with client(server) as web:
        codes = [(await web.get("/ping")).status_code for _ in range(4)]
        assert codes == [200, 200, 200, 429]


async def test_over_tls(make_server: StartServer, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server = make_server(*authority.issue().flags, http_port=quiet_port())
    server.start()
    trusting = ssl.create_default_context(cafile=authority.ca_file)
    url = f"https://localhost:{server.http_port}/ping"
    async with httpx2.AsyncClient(verify=trusting, trust_env=False) as web:
        assert (await web.get(url)).json()["ok"] is True
    async with client(server) as web:
        with pytest.raises(httpx2.TransportError):
            await web.get("/ping")

    def shown() -> bytes | None:
        with socket.create_connection((server.host, server.http_port)) as sock:
            with trusting.wrap_socket(sock, server_hostname="localhost") as tls:
                return tls.getpeercert(binary_form=True)

    before = shown()
    authority.issue()  # in the place of the one before
    server.signal(signal.SIGHUP)
    wait_until(lambda: shown() != before, "the new certificate is shown")

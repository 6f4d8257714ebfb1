"""HTTP refuses names that a request may not use, and suggests the one that was probably meant."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
import pytest_asyncio
from support.server import Server
from support.table import table
from support.web import client, fresh_queue
from support.wire import Wire
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from bunqueue.gateway.http.resources import RESOURCES


@pytest_asyncio.fixture
async def web(web_server: Server) -> AsyncIterator[httpx2.AsyncClient]:
    async with client(web_server) as found:
        yield found


def check(answer: httpx2.Response, text: str) -> None:
    assert answer.status_code == 422, answer.text
    found = answer.json()
    assert (found["ok"], found["code"]) == (False, "UNKNOWN_FIELD")
    assert found["error"].startswith(text), found
    assert found["field"] == text.split()[0]


@pytest.mark.parametrize(
    ("path", "body", "text"),
    [
        ("jobs", {"delai": 5}, "delai is unknown; did you mean delay?"),
        ("jobs", {"x": 5}, "x is unknown; there are data, name, "),
        ("jobs", {"reqId": 5}, "reqId is unknown; "),
        ("jobs", {"repeat": {"evry": 5}}, "repeat.evry is unknown; did you mean every?"),
        ("jobs", {"backoff": {"type": "fixed", "dely": 5}}, "backoff.dely is unknown; did you mean delay?"),
        (
            "jobs",
            {"backoff": {"delay": 1, "longest": 1}},
            "backoff.longest is unknown; there are type, delay",
        ),
        ("jobs", {"queue": "other"}, "queue is in the path already"),
        ("jobs", {"dedup": {"ttll": 5}}, "dedup.ttll is unknown; did you mean ttl?"),
        (
            "jobs/bulk",
            {"jobs": [{}, {"prioritee": 1}]},
            "jobs[1].prioritee is unknown; did you mean priority",
        ),
        ("jobs/pull", {"locktl": 5}, "locktl is unknown; did you mean lockTtl?"),
        ("dlq/retry", {"filter": {"reson": "timeout"}}, "filter.reson is unknown; did you mean reason?"),
        ("jobs", {"d" * 100_000: 1}, "d" * 64 + " is unknown; there are "),
    ],
)
async def test_unknown_fields_are_refused_by_name(
    web: httpx2.AsyncClient, path: str, body: dict[str, Any], text: str
) -> None:
    queue = fresh_queue()
    check(await web.post(f"/queues/{queue}/{path}", json=body), text)
    assert (await web.get(f"/queues/{queue}/count")).json()["count"] == 0  # nothing was pushed


async def test_options_of_the_jobs_of_a_flow_are_checked(web: httpx2.AsyncClient) -> None:
    job = {"id": "a", "queue": fresh_queue(), "input": {"data": {"any": "thing"}, "delai": 1}}
    answer = await web.post("/flows", json={"jobs": [job]})
    check(answer, "jobs[0].input.delai is unknown; did you mean delay?")


async def test_data_may_have_any_names(web: httpx2.AsyncClient) -> None:
    path = f"/queues/{fresh_queue()}/jobs"
    body = {"data": {"delai": {"nonsense": 1}}, "headers": {"delai": "1"}}
    assert (await web.post(path, json=body)).status_code == 200


@table("resource", RESOURCES, ids=lambda each: f"{each.method} {each.path}")
async def test_no_route_takes_an_unknown_name(web: httpx2.AsyncClient, resource: Any) -> None:
    path = resource.path.format(**dict.fromkeys(resource.names, "q"))
    in_query = "in the query" if resource.has_body else "unknown; "
    check(await web.request(resource.method, f"{path}?nonsense=1"), f"nonsense is {in_query}")
    if resource.whole is None:
        check(await web.request(resource.method, path, json={"nonsense": 1}), "nonsense is unknown; ")


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/events?queu=a", "queu is unknown; did you mean queue?"),
        ("/history?befor=1", "befor is unknown; there are after"),
        ("/prometheus?queue=a", "queue is unknown; leave it out"),
        ("/openapi.json?version=3", "version is unknown; leave it out"),
    ],
)
async def test_what_is_no_command_takes_no_unknown_name(
    web: httpx2.AsyncClient, path: str, text: str
) -> None:
    check(await web.get(path), text)


async def test_any_command_takes_its_fields_in_the_body_only(web: httpx2.AsyncClient) -> None:
    check(await web.post("/commands/Count", json={"queue": "q", "x": 1}), "x is unknown; there are queue")
    check(
        await web.post("/commands/Count?queue=q", json={}), "queue is in the query; send the fields of a POST"
    )


@pytest.mark.parametrize("path", ["/health", "/healthz", "/ready"])
async def test_health_checks_may_add_to_the_query(web: httpx2.AsyncClient, path: str) -> None:
    """Load balancers do so to get past caches, and would take the server out of service."""
    assert (await web.get(f"{path}?at=123")).status_code == 200


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"cmd": "PUSH", "queue": "q", "delai": 1}, "delai is unknown; did you mean delay?"),
        ({"cmd": "Subscribe", "queue": ["q"]}, "queue is unknown; did you mean queues?"),
        ({"cmd": "Unsubscribe", "queue": "q"}, "queue is unknown; leave it out"),
        ({"cmd": "Auth", "tokn": "q"}, "tokn is unknown; did you mean token?"),
    ],
)
async def test_a_websocket_takes_no_unknown_field(
    web_server: Server, message: dict[str, Any], text: str
) -> None:
    async with connect(f"{web_server.url.replace('http', 'ws', 1)}/ws") as socket:
        await socket.send(json.dumps(message | {"reqId": 1}))
        reply = json.loads(await socket.recv())
        field = text.split()[0]
        assert reply == {"ok": False, "error": text, "code": "UNKNOWN_FIELD", "field": field, "reqId": 1}


async def test_a_websocket_is_not_opened_with_an_unknown_name(web_server: Server) -> None:
    with pytest.raises(InvalidStatus) as refused:
        await connect(f"{web_server.url.replace('http', 'ws', 1)}/ws?queues=a")
    assert refused.value.response.status_code == 422
    assert b"queues is unknown; leave it out" in refused.value.response.body


async def test_tcp_ignores_unknown_fields(web_server: Server) -> None:
    """Clients of other servers and of newer versions send them."""
    wire = await Wire.open(web_server.address)
    assert (await wire.send("PUSH", queue=fresh_queue(), data=1, delai=5))["ok"] is True
    await wire.close()

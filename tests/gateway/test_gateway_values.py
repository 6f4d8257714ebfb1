"""Values take many times the memory of their text: they are counted before they are built, and not kept."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.budget import budget
from support.procfs import peak_resident, resident
from support.server import Server
from support.web import client, fresh_queue
from websockets.asyncio.client import connect

from bunqueue.gateway.http import json_memory as weight
from bunqueue.gateway.http.bodies import MAX_BODY
from bunqueue.gateway.http.json_memory import is_too_heavy

MIB = 1024 * 1024
TEXTS = st.sampled_from(["a,b[{:", '"', "\\", '\\"', "", "x", "é"]) | st.text(max_size=4)
VALUES = st.recursive(
    st.none() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(TEXTS, inner, max_size=6),
    max_leaves=30,
)


def weight_of(value: Any) -> int:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    if parts is None:
        return 0
    names = len(value) * weight._WEIGHTS[b":"] if isinstance(value, dict) else 0
    commas = max(0, len(value) - 1) * weight._WEIGHTS[b","]
    return weight._WEIGHTS[b"["] + names + commas + sum(map(weight_of, parts))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(VALUES, st.sampled_from([1, 3, 64]), st.booleans())
def test_what_stands_in_texts_is_not_counted(
    monkeypatch: pytest.MonkeyPatch, value: Any, slices: int, spaces: bool
) -> None:
    monkeypatch.setattr(weight, "_SLICE", slices)
    text = json.dumps(value, indent=1 if spaces else None).encode()
    for most in (weight_of(value), weight_of(value) - 1):
        monkeypatch.setattr(weight, "MAX_WEIGHT", most)
        assert is_too_heavy(text) == (weight_of(value) > most)


@pytest.mark.parametrize("part", [{}, [], {"a": 1}, [1], ["ab"] * 3, "ab", dict.fromkeys("abcdefgh", 1.5)])
def test_the_weight_is_about_what_values_take(part: Any) -> None:
    text = json.dumps([part] * 20_000).encode()
    tracemalloc.start()
    built = msgspec.json.decode(text)
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    del built
    assert 0.5 < weight._weight(text) / taken < 3


def test_what_people_send_fits() -> None:
    for record in ({"id": 12345, "name": "somebody", "value": 1.5}, [8.1234567, 47.1234567], "word"):
        text = json.dumps([record] * (MAX_BODY // (len(json.dumps(record)) + 2))).encode()
        assert not is_too_heavy(text), record


def dense(count: int, part: str = "{}") -> bytes:
    return b'{"data":[' + f"{part},".encode() * (count - 1) + part.encode() + b"]}"


def begin(pid: int) -> int:
    """The bytes of memory that a process has; its peak begins here."""
    with suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text("5")
    return resident(pid)


async def push(http: Any, queue: str, body: bytes) -> Any:
    headers = {"Content-Type": "application/json"}
    return await http.post(f"/queues/{queue}/jobs", content=body, headers=headers, timeout=120)


@pytest.mark.parametrize("part", ["[]", '{"a":1}', *budget([], ["{}", "[1]"])])
async def test_bodies_of_too_many_values_are_not_built(web_server: Server, part: str) -> None:
    """Eight at a time, of 15 MiB each."""
    queue, pid = fresh_queue(0), web_server.gateway().pid
    body = dense(15 * MIB // (len(part) + 1), part)
    async with client(web_server) as http:
        before = begin(pid)
        answers = await asyncio.gather(*(push(http, queue, body) for _ in range(8)))
    assert {answer.status_code for answer in answers} <= {413, 503}
    refused = next(answer.json() for answer in answers if answer.status_code == 413)
    assert refused["code"] == "BODY_TOO_LARGE"
    assert "the values of the body take more than 192 MiB" in refused["error"]
    assert peak_resident(pid) - before < 400 * MIB  # the bodies are 120 of these, and pass in pieces


async def test_what_waits_for_an_answer_is_not_kept_as_values(web_server: Server) -> None:
    queue, pid = fresh_queue(0), web_server.gateway().pid
    body = dense(900_000)
    async with client(web_server) as http:
        before = begin(pid)
        answers = await asyncio.gather(*(push(http, queue, body) for _ in range(8)))
        assert [answer.status_code for answer in answers] == [200] * 8
        assert peak_resident(pid) - before < 300 * MIB
        await http.post(f"/queues/{queue}/obliterate", params={"force": "true"})


async def test_messages_of_too_many_values_are_not_built(web_server: Server) -> None:
    queue, pid = fresh_queue(0), web_server.gateway().pid
    text = '{"cmd":"PUSH","reqId":1,"queue":"' + queue + '",' + dense(5 * MIB)[1:].decode()
    async with connect(f"ws://{web_server.host}:{web_server.http_port}/ws", proxy=None) as ws:
        before = begin(pid)
        await ws.send(text)
        answer = json.loads(await ws.recv())
        assert answer["code"] == "BODY_TOO_LARGE"
        assert "the values of the message take more than" in answer["error"]
        await ws.send(json.dumps({"cmd": "Ping", "reqId": 2}))
        assert json.loads(await ws.recv())["reqId"] == 2
    assert peak_resident(pid) - before < 200 * MIB

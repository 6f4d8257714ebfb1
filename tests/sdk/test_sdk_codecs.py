"""Apps with a codec: everything works as without, and nobody who lacks the key learns what was given."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from support.cli import Cli
from support.server import Server, StartServer
from support.waiting import eventually

from bunqueue import (
    ActiveJob,
    AsyncFlowProducer,
    AsyncQueue,
    AsyncQueueEvents,
    Bunqueue,
    Codec,
    Compression,
    Encryption,
    Flow,
    FlowJob,
    JobFailed,
    KeyMissing,
    NewJob,
    NotEncrypted,
    OptionError,
    Queue,
    Unique,
    Worker,
)
from bunqueue.client.connection.endpoint_options import EndpointOptions
from bunqueue.testing import Sandbox
from bunqueue.worker.fetching import intake

OLD, NEW, HASH_KEY = b"o" * 32, b"n" * 32, b"h" * 32
SECRET = "geheim-4711"
CODEC = Codec(compression=Compression(min_size=200), encryption=Encryption({"k1": OLD}, hash_key=HASH_KEY))
ROTATED = Codec(encryption=Encryption({"k2": NEW, "k1": OLD}, hash_key=HASH_KEY))
ONLY_NEW = Codec(encryption=Encryption({"k2": NEW}, hash_key=HASH_KEY))


class Order(BaseModel):
    tenant: str
    note: str


@pytest.fixture
async def app(where: EndpointOptions, name: str) -> AsyncIterator[Bunqueue]:
    app = Bunqueue(name, codec=CODEC, **where)
    yield app
    await app.close_async()


async def test_arguments_and_results_arrive(app: Bunqueue, where: EndpointOptions, name: str) -> None:
    @app.job
    async def pay(order: Order, times: int = 1) -> list[Order]:
        return [order] * times

    async with app:
        order = Order(tenant="acme", note=SECRET)
        few, many = await pay.add_async(order), await pay.add_async(order, times=500)
        assert await few.result(timeout=60_000) == [order]
        assert await many.result(timeout=60_000) == [order] * 500
        assert (await few.job()).data == {"order": {"tenant": "acme", "note": SECRET}}
    async with AsyncQueue(name, **where) as stranger:
        job = await stranger.handle(many.id).job()
        assert job.data["$encoded"].startswith("encrypted with key k1 (AES-GCM), ")
        assert job.result["$encoded"].startswith("encrypted with key k1 (AES-GCM), compressed (zstd), ")
        with pytest.raises(KeyMissing, match=r"encrypted with key k1.*there is no codec here"):
            await stranger.handle(many.id).result(timeout=60_000)
        with pytest.raises(KeyMissing):
            job.data_as(dict[str, Order])


async def test_what_handlers_say_and_raise(app: Bunqueue, where: EndpointOptions, name: str) -> None:
    @app.route("talk")
    async def talk(job: ActiveJob) -> None:
        await job.log(f"log {SECRET}")
        await job.progress(50, f"message {SECRET}")
        raise ValueError(f"error {SECRET}")

    async with app, AsyncQueue(name, **where) as stranger:
        handle = await app.get_async_queue().add("talk", {"a": SECRET}, max_attempts=1)
        with pytest.raises(JobFailed, match=f"ValueError: error {SECRET}"):
            await handle.result(timeout=60_000)
        job, lines, attempts = await handle.job(), await handle.logs(), await handle.attempts()
        assert lines[0].message == f"log {SECRET}"
        assert job.last_report is not None
        assert job.last_report.message == f"message {SECRET}"
        assert job.error == f"ValueError: error {SECRET}"
        assert job.stacktrace is not None
        assert job.stacktrace[-1] == f"ValueError: error {SECRET}"
        assert attempts[0].error == f"ValueError: error {SECRET}"
        other = stranger.handle(handle.id)
        seen = repr([await other.job(), await other.logs(), await other.attempts()])
        assert SECRET not in seen
        assert "ValueError: [encrypted with key k1 (AES-GCM)" in seen


def greet(job: ActiveJob[Any]) -> str:
    """In a process of its own."""
    job.log(f"log {job.data['x']}")
    return f"{job.data['x']} done"


async def test_handlers_in_processes(where: EndpointOptions, name: str) -> None:
    async with AsyncQueue(name, codec=CODEC, **where) as queue, AsyncQueue(name, **where) as stranger:
        handle = await queue.add("greet", {"x": SECRET})
        async with Worker(name, greet, run_in="process", codec=CODEC, **where):
            assert await handle.result(timeout=60_000) == f"{SECRET} done"
        assert [line.message for line in await handle.logs()] == [f"log {SECRET}"]
        seen = repr([await stranger.handle(handle.id).job(), await stranger.handle(handle.id).logs()])
        assert SECRET not in seen


async def test_who_listens_hears_what_its_codec_can_read(where: EndpointOptions, name: str) -> None:
    async with (
        AsyncQueueEvents(name, types=["completed"], **where) as stranger,
        AsyncQueueEvents(name, types=["completed"], codec=CODEC, **where) as friend,
        AsyncQueue(name, codec=CODEC, **where) as queue,
        Worker(name, lambda job: job.data, codec=CODEC, **where),
    ):
        await queue.add("j", {"x": SECRET})
        heard, seen = await friend.next(60_000), await stranger.next(60_000)
    assert heard is not None
    assert seen is not None
    assert heard.data == {"x": SECRET}
    assert seen.data["$encoded"].startswith("encrypted with key k1")


async def test_bulk_flows_schedules_and_callbacks(app: Bunqueue, where: EndpointOptions, name: str) -> None:
    heard: list[Any] = []

    @app.route("child")
    async def child(job: ActiveJob[Any]) -> str:
        return f"{job.data['x']} done"

    @app.route("parent")
    async def parent(job: ActiveJob[Any]) -> Any:
        async with AsyncFlowProducer(codec=CODEC, **where) as flows:
            return list((await flows.children_values(job.id)).values())

    @app.route("fails")
    async def fails(job: ActiveJob[Any]) -> None:
        raise ValueError(SECRET)

    @app.route("dead")
    async def dead(job: ActiveJob[Any]) -> None:
        heard.append(job.data)

    async with app, AsyncFlowProducer(codec=CODEC, **where) as flows, AsyncQueue(name, **where) as stranger:
        queue = app.get_async_queue()
        handles = await queue.add_bulk([("child", {"x": f"{SECRET}{n}"}) for n in range(3)])
        assert [await each.result(timeout=60_000) for each in handles] == [
            f"{SECRET}{n} done" for n in range(3)
        ]
        tree = FlowJob("parent", {}, queue=name, children=[FlowJob("child", {"x": SECRET}, queue=name)])
        node = await flows.add(tree)
        assert await node.job.result(timeout=60_000) == [f"{SECRET} done"]
        assert (await node.children[0].job.job()).data == {"x": SECRET}
        on_dead = NewJob("dead", {"after": SECRET})
        await queue.add("fails", {"s": SECRET}, max_attempts=1, on_dead=on_dead)
        await eventually(lambda: heard == [{"after": SECRET}], "the callback has run")
        found = [job async for job in stranger.iter_found()]
        assert len(found) == 7
        assert SECRET not in repr(found)


async def test_workflows_signals_and_state(app: Bunqueue, where: EndpointOptions, name: str) -> None:
    calls: list[str] = []

    def charge(order: Order) -> str:
        calls.append(order.note)
        return f"charged {order.note}"

    @app.workflow
    async def buy(flow: Flow, order: Order) -> str:
        charged = await flow.step("charge", charge, order)
        flow.state = {"charged": charged}
        answer = await flow.wait_for("approve")
        await flow.sleep("a while", milliseconds=50)
        return f"{charged}, {answer['by']}"

    async with app, AsyncQueue(name, **where) as stranger:
        started = await buy.start_async(Order(tenant="acme", note=SECRET))
        await eventually(lambda: bool(calls), "the step has run")
        await started.signal("approve", {"by": SECRET})
        assert await started.result(timeout=60_000) == f"charged {SECRET}, {SECRET}"
        assert calls == [SECRET]  # it was not run again, though the run began anew
        assert SECRET not in repr(await stranger.workflow(started.id).info())
        assert await started.query() == {"charged": f"charged {SECRET}"}
        with pytest.raises(KeyMissing, match="has stored is encrypted with key k1"):
            await stranger.workflow(started.id).query()


async def test_keys_are_replaced_while_jobs_wait(where: EndpointOptions, name: str) -> None:
    async with AsyncQueue(name, codec=CODEC, **where) as before:
        old = await before.add("j", {"x": 1})
    async with AsyncQueue(name, codec=ROTATED, **where) as after:
        new = await after.add("j", {"x": 2})

        async def run(job: ActiveJob[Any]) -> Any:
            return job.data["x"]

        async with Worker(name, run, codec=ROTATED, **where):
            assert await after.handle(old.id).result(timeout=60_000) == 1
            assert await new.result(timeout=60_000) == 2
        async with AsyncQueue(name, **where) as stranger:
            shown = [(await stranger.handle(each.id).job()).result["$encoded"] for each in (old, new)]
        assert all(each.startswith("encrypted with key k2") for each in shown)


@pytest.mark.parametrize("codec", [None, ONLY_NEW], ids=["no codec", "another key"])
async def test_a_worker_without_the_key_costs_no_attempt(
    where: EndpointOptions, name: str, codec: Codec | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "KEY_MISSING_MS", 200)
    ran: list[str] = []
    problems: list[Exception] = []

    async def run(job: ActiveJob[Any]) -> str:
        ran.append(job.id)
        return "done"

    async with AsyncQueue(name, codec=CODEC, **where) as queue:
        handle = await queue.add("j", {"x": SECRET}, max_attempts=1)
        async with Worker(name, run, codec=codec, on_error=problems.append, **where):
            await eventually(lambda: len(problems) >= 2, "the worker has said so")
        assert all(isinstance(each, KeyMissing) and each.key == "k1" for each in problems)
        job, lines = await handle.job(), await handle.logs()
        assert (job.attempts, job.postponed, ran) == (0, 0, [])
        assert "KeyMissing: the data of the job" in lines[0].message
        assert "k1" in lines[0].message
        async with Worker(name, run, codec=CODEC, **where):
            assert await handle.result(timeout=60_000) == "done"


async def test_changed_data_is_a_dead_letter_that_says_so(where: EndpointOptions, name: str) -> None:
    async with AsyncQueue(name, codec=CODEC, **where) as queue, AsyncQueue(name, **where) as thief:
        handle = await queue.add("j", {"x": SECRET}, delay=60_000)
        data = (await thief.handle(handle.id).job()).data
        data["body"] = bytes([data["body"][0] ^ 1]) + data["body"][1:]
        await thief.handle(handle.id).update_data(data)
        await handle.promote()

        async def run(job: ActiveJob[Any]) -> None:
            raise AssertionError("it must not run")

        async with Worker(name, run, codec=CODEC, **where):
            with pytest.raises(JobFailed, match="PayloadTampered: the data of the job cannot be read"):
                await handle.result(timeout=60_000)
        assert "PayloadTampered" in str((await thief.handle(handle.id).job()).error)  # whoever looks sees why


async def test_what_is_not_encrypted_is_not_run(
    where: EndpointOptions, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anyone who reaches the server may add a job, or report a result, but not with the key."""
    monkeypatch.setattr(intake, "KEY_MISSING_MS", 200)
    problems: list[BaseException] = []
    assert CODEC.encryption is not None
    lax = Codec(encryption=replace(CODEC.encryption, accept_plain=True))
    no_key = {"$encoded": "mine", "v": 1, "body": b"\x01"}  # an envelope that says that it has no key
    async with AsyncQueue(name, **where) as stranger, AsyncQueue(name, codec=CODEC, **where) as queue:
        plain, forged = await stranger.add("greet", {"x": 1}), await stranger.add("greet", no_key)
        good, nothing = await queue.add("greet", {"x": 2}), await stranger.add("greet")
        async with Worker(name, lambda job: job.data, codec=CODEC, on_error=problems.append, **where):
            assert await queue.handle(good.id).result(timeout=60_000) == {"x": 2}
            assert await queue.handle(nothing.id).result(timeout=60_000) is None

            async def are_back() -> bool:
                lines = [line.message for each in (plain, forged) for line in await each.logs()]
                return len(lines) >= 2 and all(line.startswith("NotEncrypted: the data") for line in lines)

            await eventually(are_back, "they were put back, and their logs say why")
        assert [(await each.job()).attempts for each in (plain, forged)] == [0, 0]
        assert all(isinstance(each, NotEncrypted) for each in problems)
        async with Worker(name, lambda job: job.data, codec=lax, **where):
            async with AsyncQueue(name, codec=lax, **where) as relaxed:
                assert await relaxed.handle(plain.id).result(timeout=60_000) == {"x": 1}
                assert await relaxed.handle(forged.id).result(timeout=60_000) == 1
        taken = await stranger.add("taken")
        async with Worker(name, lambda job: "forged", **where):
            await taken.result(timeout=60_000)
        with pytest.raises(NotEncrypted, match=r"the result of job .* cannot be read: it is not encrypted"):
            await queue.handle(taken.id).result(timeout=60_000)


def test_unique_and_groups_by_arguments_are_keyed(where: EndpointOptions, name: str) -> None:
    app, plain = Bunqueue(name, codec=CODEC, **where), Bunqueue(name, **where)

    def declared(app: Bunqueue) -> Any:
        @app.job(unique=True, group=lambda tenant: tenant)
        async def pay(tenant: str) -> None: ...

        return pay

    pay = declared(app)
    first, second = pay.add("acme"), pay.add("acme")
    assert (first.created, second.created, second.id) == (True, False, first.id)
    job = first.job()
    assert CODEC.encryption is not None
    assert job.group == CODEC.encryption.hidden("acme")
    assert declared(plain).add("acme").created  # its key can be guessed, so it is another one
    queue = Queue(name, codec=CODEC, **where)
    by_hand = [queue.add("j", {"x": 1}, unique=Unique(by="x")) for _ in range(2)]
    assert [each.created for each in by_hand] == [True, False]
    rotated = Queue(name, codec=ROTATED, **where)
    assert not rotated.add("j", {"x": 1}, unique=Unique(by="x")).created


def test_what_the_server_cannot_compare_is_refused(where: EndpointOptions, name: str) -> None:
    queue = Queue(name, codec=CODEC, **where)
    queue.add("j", {"order": {"id": 7}}, tags=["vip"])
    for filter_ in ({"data": {"order.id": 7}}, {"where": "tag = vip and data.order.id = 7"}):
        with pytest.raises(OptionError, match=r"'(data\.)?order.id' is encoded by the codec"):
            queue.find(**filter_)
    with pytest.raises(OptionError, match="is encoded by the codec"):
        queue.cancel_found(data={"order.id": 7})
    page = queue.find(tag="vip")
    assert [job.data for job in page.jobs] == [{"order": {"id": 7}}]


def test_an_unknown_codec_is_refused(where: EndpointOptions) -> None:
    with pytest.raises(OptionError, match=r"codec: 'zstd' is not allowed; give a bunqueue\.Codec"):
        Queue("q", codec="zstd", **where)  # type: ignore[arg-type]


async def test_no_file_has_the_plain_text(make_server: StartServer, tmp_path: Path) -> None:
    server: Server = make_server()
    server.start()
    places: list[tuple[EndpointOptions, Path]] = [
        ({"host": server.host, "port": server.port}, server.data_dir),
        ({"embedded": True, "data_path": tmp_path / "own" / "jobs.db"}, tmp_path / "own"),
    ]
    (tmp_path / "own").mkdir()
    for where, folder in places:
        app = Bunqueue("files", codec=CODEC, **where)

        @app.job(max_attempts=1, unique=True, group=lambda note: note)
        async def work(note: str, fail: bool = False) -> str:
            if fail:
                raise ValueError(note)
            return note

        async with app:
            good, bad = await work.add_async(SECRET), await work.add_async(SECRET, fail=True)
            await good.result(timeout=60_000)
            with pytest.raises(JobFailed):
                await bad.result(timeout=60_000)
            await app.get_async_queue().add("later", {SECRET: SECRET}, delay=60_000)
            await asyncio.to_thread(_control, where)
        if "host" in where:
            server.stop()
        files = [path for path in folder.rglob("*") if path.is_file()]
        assert any(b"control-4711" in path.read_bytes() for path in files)  # the search can find something
        assert [path for path in files if SECRET.encode() in path.read_bytes()] == []


def _control(where: EndpointOptions) -> None:
    with Queue("files", **where) as plain:
        plain.add("control", {"x": "control-4711"})


def test_the_command_line_and_http_say_what_it_is(web_server: Server, name: str) -> None:
    cli = Cli(web_server)
    with Queue(name, codec=CODEC, host=web_server.host, port=web_server.port) as queue:
        job_id = queue.add("j", {"x": SECRET * 10}).id
        queue.handle(job_id).log(f"log {SECRET}")
    words = "encrypted with key k1 (AES-GCM), "
    shown = cli("job", "get", job_id).out
    assert words in shown
    assert "body" not in shown
    assert "[encrypted with key k1 (AES-GCM), 32 B]\n" in cli("job", "logs", job_id).out
    assert cli.json("job", "get", job_id)["data"]["$encoded"].startswith(words)
    with urllib.request.urlopen(f"{web_server.url}/jobs/{job_id}") as answer:
        found = json.load(answer)
    data = found.get("job", found.get("data"))["data"]
    assert data["$encoded"].startswith(words)
    assert CODEC.encryption is not None
    from bunqueue.client.codecs.envelope import opened

    assert SECRET.encode() in bytes(opened(CODEC, data))  # JSON has all that a program with the key needs


def test_in_a_sandbox_tests_compare_what_programs_have_given() -> None:
    app = Bunqueue("emails", codec=CODEC)

    @app.job(unique=True, group=lambda to: to)
    async def welcome(to: str) -> str:
        return f"sent to {to}"

    with Sandbox() as sandbox:
        handle = welcome.add("ada")
        sandbox.assert_added("emails", "welcome", {"to": "ada"}, group="ada", unique=True)
        sandbox.drain(app)
        assert handle.result(timeout=60_000) == "sent to ada"

"""Functions on every surface: what an app declares holds for jobs of HTTP, command line and other clients."""

from __future__ import annotations

import enum
import warnings
from pathlib import Path
from typing import Any

import httpx2 as httpx
import msgspec
import pytest
from support.cli import Cli
from support.server import Server

from bunqueue import (
    AsyncQueue,
    Bunqueue,
    Codec,
    CommandFailed,
    Compression,
    InvalidJobWarning,
    NotFound,
    OptionError,
)
from bunqueue.workflow.flow import Flow


class Kind(enum.Enum):
    PLAIN = "plain"
    HTML = "html"


class Address(msgspec.Struct):
    street: str
    next: Address | None = None


class Mail(msgspec.Struct):
    to: str
    address: Address


def app_at(name: str, **options: Any) -> Bunqueue:
    app = Bunqueue(name, **options)

    @app.job(priority=7, max_attempts=9, aliases=["mail"])
    def send(to: str, mail: Mail, kind: Kind = Kind.PLAIN, copies: int = 1) -> None:
        """Send a mail."""

    @app.job(max_attempts=2, group=lambda to: to, queue=f"{name}-other")
    def other(to: str, anything: Any = None) -> None: ...

    @app.workflow(timeout="5m")
    async def order(flow: Flow, number: int) -> None: ...

    return app


def test_http_and_the_command_line(
    web_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli, url = Cli(web_server), f"http://127.0.0.1:{web_server.http_port}"
    monkeypatch.setenv("BUNQUEUE_APP_VERSION", "1.4")
    (tmp_path / "tasks.py").write_text(
        "from bunqueue import Bunqueue\n"
        "app = Bunqueue('fmails', invalid_jobs='refuse', max_waiting=1000)\n"
        "@app.job(priority=7, aliases=['mail'])\n"
        "def send(to: str, copies: int = 1) -> None:\n    'Send a mail.'\n"
    )
    assert cli.json("function", "declare", "tasks:app", "--app-dir", str(tmp_path))["functions"] == 1
    (row,) = cli.json("function", "list", "fmails")
    assert (row["name"], row["options"], row["version"]) == ("send", {"priority": 7}, "1.4")
    assert row["arguments"] == "to: a text, copies: an integer (optional)"
    assert "to: a text" in cli("function", "list").out
    assert cli.json("bounds", "config", "fmails")["maxWaiting"] == 1000
    shown = cli.json("function", "show", "fmails", "mail")
    assert shown["description"] == "Send a mail."
    assert shown["schema"]["required"] == ["to"]
    added = cli("push", "fmails", '{"to": "ada"}', "--name", "send").value
    assert cli.json("job", "get", added)["priority"] == 7
    wrong = cli("push", "fmails", '{"to": 5}', "--name", "send", status=1)
    assert "is 5 at to, and a text is expected" in wrong.err
    answer = httpx.post(f"{url}/queues/fmails/jobs", json={"name": "sned", "data": {}})
    assert (answer.status_code, answer.json()["code"]) == (422, "UNKNOWN_FUNCTION")
    assert answer.json()["field"] == "name"
    answer = httpx.post(f"{url}/queues/fmails/jobs", json={"name": "mail", "data": {"to": "ada"}})
    job = httpx.get(f"{url}/jobs/{answer.json()['id']}").json()["job"]
    assert job["priority"] == 7
    (function,) = httpx.get(f"{url}/queues/fmails/functions").json()["functions"]
    assert function["app"] == "fmails"
    assert len(httpx.get(f"{url}/functions").json()["functions"]) >= 1
    put = {
        "functions": [{"name": "send", "schema": {"type": "object"}}],
        "app": "fmails",
        "invalidJobs": "warn",
    }
    assert httpx.put(f"{url}/queues/fmails/functions", json=put).json() == {"ok": True}
    answer = httpx.post(f"{url}/queues/fmails/jobs", json={"name": "sned"})
    assert "no app has declared" in answer.json()["warnings"][0]
    assert "no app has declared" in cli("push", "fmails", "--name", "sned").err
    cli("function", "remove", "fmails", "send", "--yes")
    missing = httpx.get(f"{url}/queues/fmails/functions/send")
    assert (missing.status_code, missing.json()["code"]) == (404, "FUNCTION_NOT_FOUND")


@pytest.mark.parametrize("where", ["server", "embedded"])
async def test_the_client(where: str, shared_server: Server) -> None:
    place: dict[str, Any] = {"embedded": True} if where == "embedded" else {"port": shared_server.port}
    app = app_at("fsdk", invalid_jobs="refuse", **place)
    async with AsyncQueue("fsdk", **place) as queue:
        await app.declare_async()
        send, order = await queue.function("mail"), await queue.function("order")
        assert send.name == "send"
        assert send.options == {"priority": 7, "maxAttempts": 9}
        assert order.options == {"timeout": 300_000.0, "workflow": True}
        assert [each.name for each in await queue.functions()] == ["order", "send"]
        mail = {"to": "a", "address": {"street": "s", "next": {"street": "t"}}}
        job = await queue.add("send", {"to": "ada", "mail": mail, "kind": "html"})
        assert (await job.job()).priority == 7
        plain = await queue.add("send", {"to": "ada", "mail": mail}, priority=0)
        assert (await plain.job()).priority == 0
        again = await app.add_async("send", {"to": "ada", "mail": mail}, max_attempts=1)
        assert ((await again.job()).priority, (await again.job()).max_attempts) == (7, 1)
        started = await queue.add("order", {"number": 5})
        assert (await started.job()).timeout == 300_000
        for data, field in (
            ({"to": "ada"}, "data.mail"),
            ({"to": "ada", "mail": {**mail, "address": {"street": "s", "next": {"street": 5}}}}, "street"),
            ({"to": "ada", "mail": mail, "kind": "pdf"}, "data.kind"),
            ({"to": "ada", "mail": mail, "cc": "b"}, "data.cc"),
        ):
            with pytest.raises(CommandFailed) as caught:
                await queue.add("send", data)
            assert caught.value.code == "ARGUMENTS_UNFIT"
            assert field in str(caught.value.field)
        other = app.get_async_queue("fsdk-other")
        assert (await (await other.add("other", {"to": "x"})).job()).max_attempts == 2
        assert await (await other.add("nobody", {})).job()
        with pytest.raises(NotFound):
            await queue.function("nobody")
    await app.close_async()


def test_a_warning_names_the_line_of_the_caller(shared_server: Server) -> None:
    app = app_at("fwarn", invalid_jobs="warn", port=shared_server.port)
    app.declare()
    with pytest.warns(InvalidJobWarning, match="no app has declared a function 'sned'") as caught:
        app.add("sned", {})
    assert caught[0].filename == __file__
    with pytest.warns(InvalidJobWarning, match="jobs") as caught:
        app.queue.add_bulk([("sned", 1), ("send", 2)])
    assert len(caught) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        app.add("order", {"number": 7})
    app.close()


def test_encrypted_arguments_are_left_to_the_worker(shared_server: Server) -> None:
    app = app_at(
        "fcodec",
        invalid_jobs="refuse",
        port=shared_server.port,
        codec=Codec(compression=Compression(min_size=1)),
    )
    app.declare()
    assert app.add("send", {"to": 5, "cc": "x" * 5000}).created
    app.close()


def test_a_wrong_policy_is_refused() -> None:
    with pytest.raises(OptionError, match="invalid_jobs"):
        Bunqueue("x", invalid_jobs="deny")  # type: ignore[arg-type]


async def test_a_worker_declares_when_it_starts(shared_server: Server) -> None:
    app = app_at("fstart", port=shared_server.port)
    async with app, AsyncQueue("fstart", port=shared_server.port) as queue:
        function = await queue.function("send")
        assert function.by is not None
        assert (await queue.function("order")).name == "order"

"""Errors in groups on every surface: HTTP, SDK, command line, embedded; and what a worker adds."""

from __future__ import annotations

import httpx2 as httpx
import pytest
from support.cli import Cli
from support.server import Server
from support.waiting import eventually

from bunqueue import Admin, AsyncQueue, Bunqueue, NotFound, Queue
from bunqueue.model.errors_alike import kind_of

GROUP = kind_of(None, "no mailbox for 'a'")


def fail(queue: Queue, *errors: str) -> None:
    for error in errors:
        job = queue.add("welcome", {}, max_attempts=1)
        queue.pull()
        job.fail(error)


def test_http_and_the_command_line(web_server: Server) -> None:
    cli, url = Cli(web_server), f"http://127.0.0.1:{web_server.http_port}"
    with Queue("mails", port=web_server.port) as queue, Queue("others", port=web_server.port) as other:
        fail(queue, "no mailbox for 'a'", "no mailbox for 'b'", "disk full")
        fail(other, "no mailbox for 'c'")
        answer = httpx.get(f"{url}/queues/mails/errors").json()["data"]
        assert [group["kept"] for group in answer["groups"]] == [2, 1]
        assert answer["total"] == 2
        rows = cli.json("errors", "list")
        assert {(row["queue"], row["id"]) for row in rows} >= {("mails", GROUP), ("others", GROUP)}
        everywhere = httpx.get(f"{url}/errors").json()["data"]["groups"]
        assert len(everywhere) == len(rows)
        assert "no mailbox for #" in cli("errors", "list", "mails").out
        assert cli.json("dlq", "stats", "mails")["errors"][0]["id"] == GROUP
        assert "no mailbox for #" in cli("dlq", "stats", "mails").out
        cli("dlq", "config", "mails", "--max-entries", "3")  # as many as there are
        for listing in (
            ("errors", "list"),
            ("errors", "list", "mails"),
            ("dlq", "stats", "mails"),
            ("dlq", "list", "mails"),
        ):
            text = "at most 3 are kept; beyond that the oldest are dropped: bunqueue dlq config mails --max"
            assert text in cli(*listing).err
        cli("dlq", "config", "mails", "--max-entries", "server")
        assert cli.json("errors", "show", "mails", GROUP)["example"]["name"] == "welcome"
        cli("errors", "mute", "mails", GROUP)
        cli("errors", "watch", "mails", GROUP)
        assert cli.json("errors", "show", "mails", GROUP)["muted"] is not None
        cli("errors", "unmute", "mails", GROUP)
        changed = httpx.put(f"{url}/queues/mails/errors/{GROUP}", json={"watched": False}).json()["data"]
        assert (changed["muted"], changed["watched"]) == (None, None)
        missing = httpx.get(f"{url}/queues/mails/errors/0123456789ab")
        assert (missing.status_code, missing.json()["code"]) == (404, "ERROR_GROUP_NOT_FOUND")
        assert cli("dlq", "count", "mails", "--error-group", GROUP).value == "2"
        assert cli("dlq", "retry", "mails", "--error-group", GROUP).value == "2"
        assert cli("dlq", "purge", "mails", "--error-group", GROUP, "--yes").value == "0"
        assert queue.counts().failed == 1
        assert queue.count_dlq(error_group=kind_of(None, "disk full")) == 1


@pytest.mark.parametrize("where", ["server", "embedded"])
def test_the_client(where: str, shared_server: Server) -> None:
    place = {"embedded": True} if where == "embedded" else {"port": shared_server.port}
    with Queue("sdk-errors", **place) as queue:
        fail(queue, "no mailbox for 'a'", "no mailbox for 'b'", "disk full")
        first, second = queue.error_groups()
        assert (first.pattern, first.failures, first.dead, first.kept) == ("no mailbox for #", 2, 2, 2)
        assert first.example is not None
        assert first.example.error == "no mailbox for 'a'"
        assert first.first <= first.last
        assert queue.set_error_group(first.id, watched=True).watched is not None
        assert queue.purge_dlq(error_group=second.id) == 1
        assert queue.error_group(second.id).kept == 0
        with pytest.raises(NotFound, match="no group of errors"):
            queue.error_group("0123456789ab")
        if where == "server":
            with Admin(port=shared_server.port) as admin:
                assert (first.queue, first.id) in [(each.queue, each.id) for each in admin.error_groups()]


async def test_a_worker_names_the_class_and_its_version(
    shared_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUNQUEUE_APP_VERSION", "2024.7")
    app = Bunqueue("versions", port=shared_server.port)

    @app.job(max_attempts=1)
    def broken(number: int) -> None:
        raise KeyError(f"customer {number}")

    async with AsyncQueue("versions", port=shared_server.port) as queue, app:
        await broken.add_async(7)

        async def failed() -> bool:
            return bool(await queue.error_groups())

        await eventually(failed, "the job has failed")
        (group,) = await queue.error_groups()
        assert (group.error_type, group.pattern, group.versions) == ("KeyError", "KeyError: #", {"2024.7": 1})
        assert group.example is not None
        assert group.example.stack is not None
        assert "in broken" in group.example.stack
        assert await queue.count_found(error_type="KeyError") == 1

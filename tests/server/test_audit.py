"""The trail: who changed what, over every surface and every router, and what shows that it was changed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.cli import Cli
from support.server import Server, dispose, quiet_port
from support.table import table
from support.waiting import eventually
from support.web import client
from support.websocket import socket
from support.wire import Wire, at_router

from bunqueue.cli.framework import exits
from bunqueue.protocol.commands import COMMANDS
from bunqueue.server.audit.entries import START, Entry, first_broken, line_of, shown
from bunqueue.server.audit.trail import MAX_FILE, Follower, Trail, Wanted, files_in, latest, problems_in
from bunqueue.server.identities import edit
from bunqueue.server.identities.identity_file import IdentityRow
from bunqueue.server.settings.settings import Settings


class Audited:
    """A server with two routers, and identities that may do everything and next to nothing."""

    def __init__(self, folder: Path) -> None:
        self.folder, path = folder, str(folder / "identities.toml")
        self.tokens: dict[str, str] = {}
        for name, role in (("boss", "admin"), ("ci", "producer")):
            made = edit.make_token()
            self.tokens[name] = made.text
            edit.change(path, name, lambda _, role=role, made=made: IdentityRow(role, tokens=[made.row]))  # type: ignore[misc]
        self.shipped = folder / "shipped.jsonl"
        flags = ("--identities", path, "--routers", "2", "--audit-log", str(self.shipped))
        self.server = Server(folder / "data", *flags, http_port=quiet_port())

    @property
    def data_dir(self) -> str:
        return str(self.folder / "data")

    def entries(self, what: str) -> list[Entry]:
        return latest(self.data_dir, Wanted(what=(what,)), 1000)

    async def wire(self, router: int, name: str = "boss") -> Wire:
        return await at_router(self.server.address, router, self.tokens[name])


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Audited]:
    made = Audited(tmp_path_factory.mktemp("audit"))
    try:
        made.server.start()
        yield made
    finally:
        dispose(made.server)


def test_which_commands_are_kept() -> None:
    kept = {name for name, spec in COMMANDS.items() if spec.is_audited}
    assert {"Pause", "Obliterate", "Clean", "RetryDlq", "AddWebhook", "ClusterMove", "ChangeJobs"} <= kept
    assert not {"PUSH", "PUSHB", "PULL", "ACK", "ACKB", "FAIL", "Progress", "RegisterWorker", "Stats"} & kept


async def test_what_an_entry_says_over_every_surface(audited: Audited) -> None:
    for router in (0, 1):
        wire, queue = await audited.wire(router), f"over-tcp-{router}"
        await wire.ok("PUSHB", queue=queue, jobs=[{"data": "secret payload"}] * 3)
        replies = wire.send_many(
            [
                {"cmd": "Pause", "queue": queue},
                {"cmd": "PUSH", "queue": queue, "data": 1},
                {"cmd": "RateLimit", "queue": queue, "limit": 5},
                {"cmd": "Drain", "queue": queue},
                {"cmd": "RateLimit", "queue": queue, "limit": -5},
            ]
        )
        assert [(await reply)["ok"] for reply in replies] == [True, True, True, True, False]
        same = {"boss 127.0.0.1 tcp"}
        assert {f"{each.who} {each.address} {each.over}" for each in audited.entries(queue)} == same
        found = [(each.what, each.on.get("limit"), each.outcome) for each in audited.entries(queue)]
        assert sorted(found, key=str) == [
            ("Drain", None, "ok"),
            ("Pause", None, "ok"),
            ("RateLimit", -5, "INVALID_LIMIT"),
            ("RateLimit", 5, "ok"),
        ]
        (drained,) = [each for each in audited.entries(queue) if each.what == "Drain"]
        assert drained.count == 4
        assert all(each.request for each in audited.entries(queue))
        await wire.close()
    async with client(audited.server, audited.tokens["boss"]) as web:
        await web.post("/queues/over-http/pause")
    bearer = {"Authorization": f"Bearer {audited.tokens['boss']}"}
    async with socket(audited.server, additional_headers=bearer) as ws:
        await ws.call("Pause", queue="over-ws")
        await ws.call("Promote", id="none")
    for over in ("http", "ws"):
        (entry,) = audited.entries(f"over-{over}")
        assert (entry.what, entry.who, entry.over, entry.outcome) == ("Pause", "boss", over, "ok")
    (entry,) = audited.entries("none")
    assert (entry.what, entry.outcome) == ("Promote", "JOB_STATE")
    files = files_in(Path(audited.data_dir, "audit"))
    assert "secret payload" not in "".join(file.path.read_text() for file in files)


async def test_what_is_refused_leaves_one_entry_a_minute(audited: Audited) -> None:
    wire = await audited.wire(1, "ci")
    for _ in range(5):
        assert (await wire.call("Obliterate", queue="finance"))["code"] == "FORBIDDEN"
    await wire.close()
    async with client(audited.server, audited.tokens["ci"]) as web:
        for _ in range(3):
            assert (await web.get("/queues")).status_code == 403
    bearer = {"Authorization": f"Bearer {audited.tokens['ci']}"}
    async with socket(audited.server, additional_headers=bearer) as ws:
        assert (await ws.call("TestWebhook", webhookId="x"))["code"] == "FORBIDDEN"
    found = latest(audited.data_dir, Wanted(who="ci"), 100)
    assert [(each.what, each.over, each.outcome) for each in found] == [
        ("Obliterate", "tcp", "FORBIDDEN"),
        ("DashboardQueues", "http", "FORBIDDEN"),
        ("TestWebhook", "ws", "FORBIDDEN"),
    ]


async def test_wrong_tokens_are_counted(audited: Audited) -> None:
    async with await Wire.open(audited.server.address) as wire:
        for _ in range(3):
            await wire.call("Auth", token="wrong")
    async with client(audited.server, "wrong") as web:
        await web.get("/queues")

    def counted() -> bool:
        found = audited.entries("Auth")
        over = {each.over for each in found if each.outcome == "INVALID_TOKEN" and not each.who}
        return over == {"tcp", "http"}

    await eventually(counted, "both are counted")


async def test_a_request_is_known_by_its_id_in_the_answer_and_in_what_is_shipped(audited: Audited) -> None:
    async with client(audited.server, audited.tokens["boss"]) as web:
        given = {"X-Request-Id": "deploy-17"}
        assert (await web.post("/queues/named/pause", headers=given)).headers["x-request-id"] == "deploy-17"
        for forged in ("", "a b", "x" * 129, "a\tb"):
            made = (await web.post("/queues/made/pause", headers={"X-Request-Id": forged})).headers
            assert len(made["x-request-id"]) == 16
    (entry,) = audited.entries("deploy-17")
    assert (entry.what, entry.on, entry.request) == ("Pause", {"queue": "named"}, "deploy-17")
    assert len({each.request for each in audited.entries("made")}) == 4

    def shipped() -> bool:
        lines = audited.shipped.read_bytes().splitlines(keepends=True) if audited.shipped.exists() else []
        kept = {
            line
            for file in files_in(Path(audited.data_dir, "audit"))
            for line in file.path.read_bytes().splitlines(keepends=True)
        }
        return len(lines) == len(kept) and set(lines) == kept

    await eventually(shipped, "each line of the trail is shipped once")
    assert audited.shipped.stat().st_mode & 0o777 == 0o600


async def test_the_trail_is_read_page_by_page(audited: Audited) -> None:
    async with client(audited.server, audited.tokens["boss"]) as web:
        for _ in range(7):
            await web.post("/queues/paged/pause")
        found: list[Any] = []
        cursor: str | None = ""
        while cursor is not None:
            data = (await web.get("/audit", params={"what": "paged", "limit": 3, "cursor": cursor})).json()[
                "data"
            ]
            found = data["entries"] + found
            cursor = data.get("cursor")
        assert found == (await web.get("/audit", params={"what": "paged"})).json()["data"]["entries"]
        assert len(found) == 7
        both = {"what": ["Pause", "paged"], "limit": 1}
        assert len((await web.get("/audit", params=both)).json()["data"]["entries"]) == 1
        assert not (await web.get("/audit", params={"what": ["Resume", "paged"]})).json()["data"]["entries"]
        for wrong in ("x", "1", "1.x", ".", "1.12345678"):
            assert (await web.get("/audit", params={"cursor": wrong})).json()["field"] == "cursor"
        for wrong in ("nan", "inf"):
            assert (await web.get("/audit", params={"limit": wrong})).status_code == 422


async def test_reading_the_trail_takes_the_right_to_administer(audited: Audited) -> None:
    async with client(audited.server, audited.tokens["ci"]) as web:
        assert (await web.get("/audit")).json()["code"] == "FORBIDDEN"
    wire = await audited.wire(0)
    await wire.ok("Pause", queue="seen")
    await wire.close()
    async with client(audited.server, audited.tokens["boss"]) as web:
        asked = {"what": "seen", "who": "boss", "limit": 5}
        (entry,) = (await web.get("/audit", params=asked)).json()["data"]["entries"]
        assert (entry["what"], entry["on"], entry["outcome"]) == ("Pause", {"queue": "seen"}, "ok")
        for wrong in ({"limit": "0"}, {"limit": "x"}, {"since": "x"}, {"whom": "x"}):
            assert (await web.get("/audit", params=wrong)).status_code in (400, 422)


async def test_the_command_line_lists_and_verifies(audited: Audited) -> None:
    wire = await audited.wire(0)
    await wire.ok("Pause", queue="listed")
    await wire.close()
    cli, folder = Cli(audited.server), ("--data-dir", audited.data_dir)
    (row,) = cli.json("audit", "list", "--what", "listed", "--since", "1h", *folder)
    assert (row["who"], row["what"], row["on"], row["outcome"]) == ("boss", "Pause", "queue=listed", "ok")
    assert cli.json("audit", "verify", *folder)["files"] >= 1
    assert "give a number from 1" in cli("audit", "list", "--limit", "0", *folder, status=exits.USAGE).err


def test_the_command_line_names_what_was_changed(audited: Audited) -> None:
    cli, folder = Cli(audited.server), ("--data-dir", audited.data_dir)
    file = Path(audited.data_dir, "audit", "router-0.000001.jsonl")
    before = file.read_bytes()
    file.write_bytes(before.replace(b"Pause", b"Pouse", 1))
    assert f"{file}, line " in cli("audit", "verify", *folder, status=exits.USAGE).err
    file.write_bytes(before)
    cli("audit", "verify", *folder)


def trail(folder: Path, **changes: Any) -> Trail:
    return Trail(Settings(data_dir=str(folder), **changes), "router-0")


def entry(number: int, size: int = 1) -> Entry:
    return Entry(at=number, what="Pause", on={"queue": "q" * size}, outcome="ok")


def test_the_chain_goes_on_over_files_and_starts(tmp_path: Path) -> None:
    for start in range(3):
        made = trail(tmp_path)
        for number in range(20):
            made.add(entry(20 * start + number, MAX_FILE // 10))
    files = files_in(tmp_path / "audit")
    assert len(files) > 3
    assert problems_in(str(tmp_path)) == (len(files), [])
    assert [each.at for each in latest(str(tmp_path), Wanted(), 1000)] == list(range(60))
    assert [each.at for each in latest(str(tmp_path), Wanted(since=57), 2)] == [58, 59]
    files[1].path.unlink()
    (problem,) = problems_in(str(tmp_path))[1]
    assert problem == f"{files[2].path}: the file before it is missing"


def test_the_oldest_files_are_removed_by_size_and_age(tmp_path: Path) -> None:
    made = trail(tmp_path, audit_max_size=10, audit_max_age=1)
    for number in range(100):
        made.add(entry(number, MAX_FILE // 10))
    files = files_in(tmp_path / "audit")
    assert sum(file.path.stat().st_size for file in files) <= 10 * 1024 * 1024 + MAX_FILE
    assert problems_in(str(tmp_path)) == (len(files), []), "what is old is no cut"
    for file in files:
        os.utime(file.path, (1, 1))
    for number in range(30):
        made.add(entry(number, MAX_FILE // 10))
    assert not {file.number for file in files[:-1]} & {file.number for file in files_in(tmp_path / "audit")}


def test_half_a_line_after_a_power_cut_is_cut_off(tmp_path: Path) -> None:
    trail(tmp_path).add(entry(1))
    (file,) = files_in(tmp_path / "audit")
    with open(file.path, "ab") as opened:
        opened.write(b'{"at":2,"wh')
    trail(tmp_path).add(entry(3))
    assert [each.at for each in latest(str(tmp_path), Wanted(), 10)] == [1, 3]
    assert problems_in(str(tmp_path)) == (1, [])


@table("name", ["changed", "swapped", "cut", "added", "last", "first"])
def test_any_change_of_the_lines_is_seen(name: str) -> None:
    lines, last = [], START
    for number in range(5):
        line, last = line_of(entry(number), last)
        lines.append(line)
    changed = {
        "changed": [*lines[:2], lines[2].replace(b'"q"', b'"p"'), *lines[3:]],
        "swapped": [lines[0], lines[2], lines[1], *lines[3:]],
        "cut": [*lines[:2], *lines[3:]],
        "added": [*lines[:2], lines[1], *lines[2:]],
        "last": [*lines[:4], lines[4][:-2] + b"\n"],
        "first": lines[1:],
    }[name]
    assert first_broken(lines, START) == (None, last)
    assert first_broken(changed, START)[0] is not None


def test_following(tmp_path: Path) -> None:
    made, follower = trail(tmp_path), Follower(str(tmp_path))
    assert follower.new() == []
    made.add(entry(1))
    made.add(entry(2))
    assert [each.at for each in follower.new()] == [1, 2]
    assert follower.new() == []
    later = Follower(str(tmp_path))
    made.add(entry(3))
    assert [each.at for each in later.new()] == [each.at for each in follower.new()] == [3]


def test_entries_of_one_moment_are_on_one_page_each(tmp_path: Path) -> None:
    made = trail(tmp_path)
    for at in (1, 2, 2, 2, 3):
        made.add(entry(at))
    assert [each.at for each in latest(str(tmp_path), Wanted(until=2), 3)] == [2, 2, 2]


def test_a_server_in_memory_and_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    Trail(Settings(data_dir=":memory:"), "router-0").add(entry(1))
    (tmp_path / "audit").write_text("no folder")
    made = trail(tmp_path)
    made.add(entry(1))
    (tmp_path / "audit").unlink()
    made.add(entry(2))
    lost, written = latest(str(tmp_path), Wanted(), 9)[::-1]
    assert (lost.what, lost.count, written.at) == ("EntriesLost", 1, 2)


def test_what_is_shown_of_fields() -> None:
    given = {
        "queue": "q",
        "data": {"a": 1},
        "secret": "s",
        "token": "t",
        "url": "https://u:p@x.example/y?k=v",
    }
    found = shown({**given, "ids": ["a", "b"], "reason": "x" * 300, "config": {"max": 5}, "limit": None})
    assert found["queue"] == "q"
    assert found["ids"] == "2 entries"
    assert found["config"] == {"max": 5}
    assert len(found["reason"]) == 200
    assert found.keys() == {"queue", "url", "ids", "reason", "config"}
    assert "p@" not in found["url"]
    assert "k=v" not in found["url"]

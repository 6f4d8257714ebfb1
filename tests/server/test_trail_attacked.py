"""What somebody can do to the files of a trail, and what shows it."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.cli import Cli, command
from support.server import NotStarted, Server, StartServer, quiet_port
from support.table import table
from support.waiting import eventually
from support.wire import Wire

from bunqueue import Queue
from bunqueue.backup.trail import Appended, append
from bunqueue.protocol.framing import frame
from bunqueue.server.audit import trail as trails
from bunqueue.server.audit.entries import CONTINUES, LOST, Entry
from bunqueue.server.audit.trail import Follower, Trail, Wanted, files_in, latest, problems_in
from bunqueue.server.settings.settings import Settings
from bunqueue.text import CONTROL

A_FILE = 5  # entries that fill a file
FILES = 4
MAX_FILE = 4000


@pytest.fixture(autouse=True)
def _small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trails, "MAX_FILE", MAX_FILE)


def trail(folder: Path, **changes: Any) -> Trail:
    folder.mkdir(exist_ok=True)
    return Trail(Settings(data_dir=str(folder), **changes), "router-0")


def entry(number: int) -> Entry:
    return Entry(at=number, what="Pause", on={"queue": "q" * (MAX_FILE // A_FILE)}, outcome="ok")


def files(folder: Path) -> list[Path]:
    return [file.path for file in files_in(folder / "audit")]


def filled(folder: Path, **changes: Any) -> Trail:
    """A trail of several files."""
    made, number = trail(folder, **changes), 0
    while len(files(folder)) < FILES:
        made.add(entry(number := number + 1))
    return made


def lines_of(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def rewrite(path: Path, change: Callable[[list[bytes]], list[bytes]]) -> None:
    path.write_bytes(b"".join(change(lines_of(path))))


def swap(one: Path, other: Path) -> None:
    between = one.with_suffix(".between")
    one.rename(between)
    other.rename(one)
    between.rename(other)


def forged(path: Path, folder: Path) -> None:
    """A file with a chain of its own."""
    trail(folder / "other").add(entry(99))
    shutil.copy(files(folder / "other")[0], path)


ATTACKS: dict[str, Callable[[list[Path], Path], object]] = {
    "a line is changed": lambda found, _: rewrite(
        found[1], lambda lines: [*lines[:2], lines[2].replace(b"Pause", b"Pouse"), *lines[3:]]
    ),
    "the first line of all is changed": lambda found, _: rewrite(
        found[0], lambda lines: [lines[0].replace(b"Pause", b"Pouse"), *lines[1:]]
    ),
    "the last line is changed": lambda found, _: rewrite(
        found[-1], lambda lines: [*lines[:-1], lines[-1].replace(b'"ok"', b'"no"')]
    ),
    "lines are cut from the middle": lambda found, _: rewrite(found[1], lambda lines: lines[:1] + lines[3:]),
    "lines are cut from the end of a full file": lambda found, _: rewrite(found[1], lambda lines: lines[:-1]),
    "the beginning of a file is cut": lambda found, _: rewrite(found[2], lambda lines: lines[1:]),
    "a full file is emptied": lambda found, _: found[1].write_bytes(b""),
    "lines change places": lambda found, _: rewrite(
        found[1], lambda lines: [lines[0], lines[2], lines[1], *lines[3:]]
    ),
    "files change places": lambda found, _: swap(found[1], found[2]),
    "a file is removed": lambda found, _: found[1].unlink(),
    "the oldest file is removed": lambda found, _: found[0].unlink(),
    "the oldest files are removed": lambda found, _: [path.unlink() for path in found[:-1]],
    "a file is rotated away": lambda found, _: found[1].rename(found[1].with_suffix(".jsonl.1")),
    "a file of another chain takes its place": lambda found, folder: forged(found[1], folder),
    "half a line is left": lambda found, _: rewrite(found[1], lambda lines: [*lines[:-1], lines[-1][:9]]),
    "noise is appended": lambda found, _: rewrite(found[1], lambda lines: [*lines, b"\xff\x00\r\n"]),
}


@table("name", ATTACKS)
def test_it_is_seen(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name.replace(" ", "-")
    filled(folder)
    found = files(folder)
    assert problems_in(str(folder)) == (FILES, [])
    ATTACKS[name](found, folder)
    assert problems_in(str(folder))[1]
    for wanted in (Wanted(), Wanted(since=2)):
        latest(str(folder), wanted, 1000)  # what can be read is read


def test_what_follows_a_removal_by_size_is_seen_too(tmp_path: Path) -> None:
    """The hash before the oldest line that is kept is not lost with the files before it."""
    made = trail(tmp_path)
    made._max_bytes = 2 * MAX_FILE  # the setting counts in MB
    for number in range(10 * A_FILE):
        made.add(entry(number))
    first = files_in(tmp_path / "audit")[0]
    assert first.number > 1
    assert problems_in(str(tmp_path))[1] == []
    before = first.path.read_bytes()
    head, *_ = lines_of(first.path)
    for changed in (
        before.replace(b"Pause", b"Pouse", 1),
        before.replace(b'"at":', b'"at":1', 1),
        before.removeprefix(head),
    ):
        first.path.write_bytes(changed)
        assert problems_in(str(tmp_path))[1]
    first.path.write_bytes(before)
    first.path.unlink()  # one more than the trail says
    (problem,) = problems_in(str(tmp_path))[1]
    assert problem.endswith("the file before it is missing, and was not removed by age or size")


def test_what_happens_under_a_running_server_is_seen(tmp_path: Path) -> None:
    def cut(path: Path) -> None:
        os.truncate(path, path.stat().st_size - 10)

    def cut_a_line(path: Path) -> None:
        rewrite(path, lambda lines: lines[:-1])

    def replace(path: Path) -> None:
        path.with_suffix(".new").write_bytes(path.read_bytes())
        path.with_suffix(".new").rename(path)

    attacks = (cut, cut_a_line, Path.unlink, replace, lambda path: path.write_bytes(b""))
    for place, attack in enumerate(attacks):
        folder = tmp_path / str(place)
        made = filled(folder)
        path = files(folder)[-1]
        attack(path)
        made.add(entry(1000))
        made.add(entry(1001))
        assert [each.at for each in latest(str(folder), Wanted(since=1000), 9)] == [1000, 1001]
        seen = problems_in(str(folder))[1]
        assert attack is replace or seen, "what was cut or removed is missing"
        again = trail(folder)
        again.add(entry(1002))
        assert problems_in(str(folder))[1] == seen, "the rest is whole"


def test_nothing_is_written_through_a_link_and_nothing_waits_for_a_pipe(tmp_path: Path) -> None:
    made = filled(tmp_path)
    last = files(tmp_path)[-1]
    number = FILES
    target = tmp_path / "victim"
    target.write_text("not ours")

    def place(of: int) -> Path:
        return last.with_name(f"router-0.{of:06}.jsonl")

    place(number + 1).symlink_to(target)
    place(number + 2).symlink_to(tmp_path / "nowhere")
    os.mkfifo(place(number + 3))
    place(number + 4).mkdir()
    place(number + 5).write_bytes(b"{}\n")
    for at in range(1000, 1000 + A_FILE + 1):
        made.add(entry(at))
    found = latest(str(tmp_path), Wanted(since=1000), 100)
    assert [each.at for each in found] == list(range(1000, 1000 + A_FILE + 1))
    assert (target.read_text(), (tmp_path / "nowhere").exists()) == ("not ours", False)
    assert place(number + 5).read_bytes() == b"{}\n"
    assert place(number + 6) in files(tmp_path)
    assert stat.S_ISFIFO(place(number + 3).stat().st_mode)
    assert problems_in(str(tmp_path))[1]
    assert Follower(str(tmp_path)).lines() == []


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """No file of this process may become larger."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("when", ["in the middle of a file", "at the beginning of one"])
def test_a_disk_that_is_full_for_a_time(tmp_path: Path, when: str) -> None:
    made, middle = trail(tmp_path), when.startswith("in the middle")
    many = 2 if middle else A_FILE
    for number in range(many):
        made.add(entry(number))
    size = files(tmp_path)[-1].stat().st_size + 500 if middle else 50  # part of a line fits
    with room_for(size):
        for number in range(100, 103):
            made.add(entry(number))
    assert problems_in(str(tmp_path))[1] == []
    made.add(entry(200))
    found = [(each.what, each.count) for each in latest(str(tmp_path), Wanted(), 100)]
    assert (LOST, 3) in found
    assert len(found) == many + 2
    assert problems_in(str(tmp_path))[1] == []
    trail(tmp_path).add(entry(300))
    assert problems_in(str(tmp_path))[1] == []


def test_an_empty_file_after_a_crash_is_begun_again(tmp_path: Path) -> None:
    filled(tmp_path)
    last = files(tmp_path)[-1]
    last.write_bytes(b"")
    trail(tmp_path).add(entry(1))
    assert CONTINUES.encode() in lines_of(last)[0]
    assert problems_in(str(tmp_path))[1] == []


def test_nobody_pushes_out_what_others_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trails, "MANY", 10)
    made = trail(tmp_path)
    made._max_bytes = 5 * MAX_FILE
    for number in range(10):
        made.add(Entry(at=number, who="boss", what="Obliterate", outcome="ok"))
    for number in range(100, 200):
        made.add(entry(number))
        if made._busy is not None:
            made._busy._max_bytes = made._max_bytes
    found = latest(str(tmp_path), Wanted(), 1000)
    assert [each.at for each in found if each.who == "boss"] == list(range(10))
    mine = [each.at for each in found if not each.who]
    assert mine[:10] == list(range(100, 110))
    assert mine[-1] == 199
    assert len(mine) < 100, "their own are bounded"
    assert {path.name.split(".")[0] for path in files(tmp_path)} == {"router-0", "busy-router-0"}
    assert problems_in(str(tmp_path))[1] == []
    made.add(entry(trails.HOUR_MS))  # another hour
    assert files(tmp_path)[-1].name.startswith("router-0")


def test_a_standby_leaves_the_files_of_its_primary_alone(tmp_path: Path) -> None:
    primary = trail(tmp_path / "primary")
    own = trail(tmp_path / "standby", follow="s3://bucket/backup")
    for number in range(3):
        primary.add(entry(number))
        (path,) = files(tmp_path / "primary")
        append([Appended(path.name, 0, path.read_bytes())], tmp_path / "standby")
        own.add(entry(10 + number))
    assert [each.at for each in latest(str(tmp_path / "standby"), Wanted(), 9)] == [0, 1, 2, 10, 11, 12]
    assert problems_in(str(tmp_path / "standby")) == (2, [])


HOSTILE = "x\x1b]0;owned\x07\x1b[2J\n2026-01-01\tnobody\u202e\x9b31m"


async def test_nothing_that_a_client_sends_reaches_the_terminal(make_server: StartServer) -> None:
    server = make_server(shards=1)
    server.start()
    async with await Wire.open(server.address) as wire:
        job = (await wire.ok("PUSH", queue="q", data=1))["id"]
        await wire.ok("SetBreaker", queue="q")
        await wire.ok("TripBreaker", queue="q", reason=HOSTILE)
        cancel = {"cmd": "Cancel", "id": job, "reason": HOSTILE, "reqId": HOSTILE}
        wire.write(frame(msgspec.msgpack.encode(cancel)))
        await eventually(lambda: len(latest(str(server.data_dir), Wanted(), 9)) == 3, "all are entered")
    cli = Cli(server)
    listed = ("audit", "list", "--data-dir", str(server.data_dir))
    for more in ((), ("--json",)):
        shown = cli(*listed, *more).out
        assert "owned" in shown
        assert not CONTROL.search(shown.replace("\n", "").replace("\t", ""))
    assert len(cli(*listed).out.splitlines()) == 3, "an entry is a line"
    following = await asyncio.create_subprocess_exec(
        *command(*listed, "--follow"), env=cli.environ(), stdout=subprocess.PIPE
    )
    try:
        assert following.stdout is not None
        lines = [(await following.stdout.readline()).decode() for _ in range(3)]
        assert not CONTROL.search("".join(lines).replace("\n", "").replace("\t", ""))
        assert sum("owned" in line for line in lines) == 2
    finally:
        following.kill()
        await following.communicate()


def test_a_second_server_on_the_folder_leaves_the_trail_alone(server: Server) -> None:
    with Queue("q", port=server.port) as queue:
        queue.pause()
        (path,) = files(server.data_dir)
        before = path.read_bytes()
        second = Server(server.data_dir, port=quiet_port())
        with pytest.raises(NotStarted):
            second.start()
        assert path.read_bytes() == before
        queue.resume()
    assert problems_in(str(server.data_dir)) == (1, [])

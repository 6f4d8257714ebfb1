"""`make demo` on a small folder: what it reports is true, and it leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "scripts" / "demo" / "demo.py"
MARK = "TEST_OF_DEMO"  # in the environment of everything that a test starts
PATIENCE_S = 60.0

Start = Callable[..., "subprocess.Popen[str]"]

pytestmark = pytest.mark.skipif(
    not Path(sys.executable).with_name("bunqueue").exists(), reason="the command bunqueue is not installed"
)


def test_a_folder_with_any_name_gets_through_make() -> None:
    name = 'it\'s "$(id)" `id`'
    command = ["make", "--dry-run", "demo"]
    environ = os.environ | {"DEMO_PATH": name}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=True)
    assert "scripts/demo/demo.py" in done.stdout
    assert "id" not in done.stdout.partition("scripts/demo/demo.py")[2]  # the shell sees none of it


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Seven good files, one that is not UTF-8, one that cannot be read, one that is to be skipped."""
    files = tmp_path / "files"
    (files / "deep" / "__pycache__").mkdir(parents=True)
    for number in range(5):
        (files / f"good{number}.py").write_text("x = 1\n" * 10)  # 60 bytes each
    (files / "empty.txt").touch()
    (files / "deep" / "[red] text.dat").write_bytes(b"\xff" * 100)
    (files / "latin.py").write_bytes("é = 1\n".encode("latin-1"))
    make_unreadable(files / "unreadable.txt")
    (files / "deep" / "__pycache__" / "x.pyc").write_bytes(b"x")
    return files


def make_unreadable(path: Path) -> None:
    if os.geteuid() == 0:  # root may read everything
        path.symlink_to(path.with_name("nowhere"))
    else:
        path.write_text("secret")
        path.chmod(0)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts the demo with its temporary files in `tmp_path / "tmp"`; the mark tells whom it started."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    environment = {**os.environ, MARK: str(tmp_path), "TMPDIR": str(temporary), "COLUMNS": "100"}
    environment.pop("DEMO_PATH", None)
    started: list[subprocess.Popen[str]] = []

    def begin(*arguments: object, **more: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, str(DEMO), *map(str, arguments)],
            env={**environment, **more},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, errors = process.communicate(timeout=PATIENCE_S)
    return process.returncode, out, errors


def cells(out: str, title: str) -> list[str]:
    """The cells of the table's row that begins with `title`."""
    rows = [[cell.strip() for cell in re.split("[│┃|]", line)[1:-1]] for line in out.splitlines()]
    return next(row[1:] for row in rows if row and row[0] == title)


def left_behind(tmp_path: Path) -> list[str]:
    """Files in the temporary folder, and processes that carry the mark, as far as the system tells."""
    left = [str(path) for path in (tmp_path / "tmp").iterdir()]
    mark = f"{MARK}={tmp_path}\0".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (entry / "environ").read_bytes() + b"\0":
                left.append((entry / "cmdline").read_text())
        except OSError:  # it is gone, or not ours
            continue
    return left


def test_everything_adds_up(start: Start, folder: Path, tmp_path: Path) -> None:
    status, out, errors = ended(start("--path", folder))
    assert (status, errors) == (0, ""), out
    assert "\x1b" not in out
    assert "9 files in" in out
    assert cells(out, "jobs") == ["9", "9"]
    assert cells(out, "ok") == ["7", "7"]
    assert cells(out, "failed (dead letters)") == ["2", "2"]
    assert cells(out, "retries") == ["4", "4"]
    assert cells(out, "bytes hashed") == ["400 bytes", "400 bytes"]
    assert cells(out, "jobs by shard") == ["-", "5 + 4"]
    assert float(cells(out, "wall time")[1].removesuffix(" s")) < PATIENCE_S
    assert re.search(r"^  latin\.py: UnicodeDecodeError: .*0xe9", out, re.MULTILINE)
    assert re.search(r"^  unreadable\.txt: (PermissionError|FileNotFoundError): ", out, re.MULTILINE)
    assert left_behind(tmp_path) == []


def test_it_says_so_when_nothing_fails(start: Start, folder: Path, tmp_path: Path) -> None:
    status, out, _ = ended(start("--path", folder / "deep"))
    assert status == 0
    assert cells(out, "failed (dead letters)") == ["0", "0"]
    assert "no dead letters" in out
    assert left_behind(tmp_path) == []


def test_settings_for_another_server_are_not_used(start: Start, folder: Path) -> None:
    status, _, errors = ended(
        start(DEMO_PATH=str(folder), BUNQUEUE_AUTH_TOKEN="secret", BUNQUEUE_TCP_PORT="1", AUTH_TOKENS="a")
    )
    assert (status, errors) == (0, "")


def test_limit(start: Start, folder: Path) -> None:
    status, out, _ = ended(start("--path", folder, "--limit", 3))
    assert status == 0
    assert "There are more" in out
    assert cells(out, "jobs") == ["3", "3"]


@pytest.mark.parametrize(("name", "problem"), [("nowhere", "No such file"), ("empty", "no files")])
def test_bad_folder(start: Start, tmp_path: Path, name: str, problem: str) -> None:
    (tmp_path / "empty").mkdir()
    status, out, errors = ended(start("--path", tmp_path / name))
    assert (status, out) == (2, "")
    assert errors.startswith("demo: ")
    assert problem in errors
    assert errors.count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_while_the_server_works(start: Start, tmp_path: Path, number: signal.Signals) -> None:
    many = tmp_path / "many"
    many.mkdir()
    for index in range(2000):
        (many / f"{index}.dat").write_bytes(b"x")
    status = 0
    while status == 0:  # it had ended already, as this process had to wait for its turn
        process = start("--path", many)
        wait_for(lambda process=process: has_begun(tmp_path) or process.poll() is not None)  # type: ignore[misc]
        process.send_signal(number)
        status, _, errors = ended(process)
    assert (status, errors) == (128 + number, "demo: interrupted; everything is stopped\n")
    assert left_behind(tmp_path) == []


def has_begun(tmp_path: Path) -> bool:
    """Whether the server of the demo has."""
    return any((tmp_path / "tmp").glob("*/data/*.db"))


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)  # another process decides when, and tells nobody

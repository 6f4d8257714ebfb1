"""Tokens on the command line are shown to nobody, and need not stand there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cli import Cli
from support.server import Server

from bunqueue.cli.framework import exits
from bunqueue.cli.framework.secrets import without_secrets

TOKEN = "t0p-s3cret"


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    server = Server(tmp_path_factory.mktemp("secrets"), "--auth-token", TOKEN)
    server.start()
    yield Cli(server)
    server.stop()


def hidden(*arguments: str) -> list[str]:
    whole = "\0".join(arguments).encode() + b"\0"
    shown = without_secrets(whole)
    assert len(shown) == len(whole)
    return shown.decode().split("\0")[:-1]


def test_what_is_secret_in_arguments() -> None:
    stars = "*" * len(TOKEN)
    for given, expected in (
        (["--token", TOKEN, "-p", "1"], ["--token", stars, "-p", "1"]),
        ([f"--token={TOKEN}"], [f"--token={stars}"]),
        (["-t", TOKEN], ["-t", stars]),
        ([f"-t{TOKEN}"], [f"-t{stars}"]),
        (["--auth-token", TOKEN, "--auth-token", "b"], ["--auth-token", stars, "--auth-token", "*"]),
        (["--read-only-token", TOKEN], ["--read-only-token", stars]),
        (["--secret", TOKEN], ["--secret", stars]),
        (["--token", "--token", "--token"], ["--token", "*******", "--token"]),
        ([f"--url=bunqueue://{TOKEN}@host:1"], [f"--url=bunqueue://{stars}@host:1"]),
        (["--store", f"postgresql://{TOKEN}@h/d?sslpassword={TOKEN}&a=b"],
         ["--store", f"postgresql://{stars}@h/d?sslpassword={stars}&a=b"]),
        (["push", "q", "--name", "token", "a@b"], ["push", "q", "--name", "token", "a@b"]),
        (["--token"], ["--token"]),
    ):  # fmt: skip
        assert hidden(*given) == expected


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the arguments of a process stay")
def test_the_list_of_processes_shows_no_token(cli: Cli) -> None:
    program = [sys.executable, "-m", "bunqueue", "events", "--token", TOKEN]
    listening = subprocess.Popen(program, env=cli.environ(), stderr=subprocess.PIPE, text=True)
    try:
        assert listening.stderr is not None
        assert "listening" in listening.stderr.readline()
        shown = Path(f"/proc/{listening.pid}/cmdline").read_text()
        assert TOKEN not in shown
        assert "events" in shown
    finally:
        listening.kill()
        listening.communicate()


def test_a_token_from_a_file(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\nmore\n")
    assert cli("ping", "--token-file", str(file)).value
    assert cli("--token-file", str(file), "queue", "list").status == exits.DONE
    lines = f"{TOKEN}\n1\n2\n"
    assert cli("push", "q", "--lines", "-", "--token-file", "-", stdin=lines).value == "2"
    for content, said in (("", "is no token"), ("é\n", "is no token"), ("x" * 5000, "is no token")):
        file.write_text(content)
        assert said in cli("ping", "--token-file", str(file), status=exits.USAGE).err
    assert "cannot be read" in cli("ping", "--token-file", str(tmp_path / "no"), status=exits.USAGE).err
    both = cli("ping", "--token-file", str(file), "--token", TOKEN, status=exits.USAGE).err
    assert "--token-file says what --token says" in both
    file.write_text("wrong\n")
    assert cli("ping", "--token-file", str(file), status=exits.NOT_ALLOWED)

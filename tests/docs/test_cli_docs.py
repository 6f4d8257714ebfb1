"""The page about the command line: its examples run, and it has every command."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support import warm
from support.cli import Cli
from support.server import ROOT, Server
from support.table import table

from bunqueue.cli.framework import exits
from bunqueue.cli.framework.shared import Verb
from bunqueue.cli.program import COMMANDS, load

PAGE = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
ELSEWHERE = "https://example.com/"  # where nothing of a test may go
BLOCKS = [
    block.replace(ELSEWHERE, "https://example.invalid/")
    for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
]


def verbs() -> Iterator[tuple[str, Any]]:
    """Every command, by its words."""
    for name in COMMANDS:
        command = load(name)
        if hasattr(command, "commands"):
            for verb, each in command.commands.items():
                yield f"{name} {verb}", each
        else:
            yield name, command


def test_the_examples_run(shared_server: Server, tmp_path: Path) -> None:
    """In one shell and one folder, one after the other."""
    folder, programs = tmp_path / "here", tmp_path / "bin"
    folder.mkdir()
    programs.mkdir()
    warm.program(programs)
    environ = Cli(shared_server).environ({"PATH": f"{programs}:{os.environ['PATH']}"})
    for block in BLOCKS:
        assert not re.search(r"https?://(?!\S*(localhost|127\.0\.0\.1|\.invalid))", block), block
        script = f"set -eu\n{block}"
        done = subprocess.run(
            ["sh", "-c", script],
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr, f"{block}\n{done.stderr}"


@table("words", [words for words, _ in verbs()])
def test_every_command_stands_there(words: str) -> None:
    assert re.search(rf"\bbunqueue {words}\b|`{words}\b", PAGE), f"docs/cli.md has no bunqueue {words}"


def test_every_exit_status_stands_there() -> None:
    known = {value for value in vars(exits).values() if isinstance(value, int)}
    table = PAGE.partition("## Exit statuses")[2].partition("\n## ")[0]
    assert {int(number) for number in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)} == known


def test_the_list_of_commands_says_what_the_commands_say() -> None:
    for name, entry in COMMANDS.items():
        command = load(name)
        assert command.help, name
        if not entry.flat and name not in ("worker", "config"):
            assert command.help == entry.about, name


def test_every_verb_has_an_example_that_calls_it() -> None:
    for words, command in verbs():
        if isinstance(command, Verb) and words != "completion":
            assert command.epilog, words
            usual = words.removesuffix(" run")
            for line in command.epilog.splitlines():
                assert f"bunqueue {usual}" in line, (words, line)

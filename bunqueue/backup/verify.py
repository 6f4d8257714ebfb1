"""Proves that a backup can be restored: does it in a scratch folder, and starts the engine on it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from bunqueue.server.folder.data_folder import own_data_folder, read_manifest
from bunqueue.server.host.lifeline import lifeline

from .create import BackupError
from .fetch import check_room, fetch
from .repository import Backup, Repository
from .shipped import changes_since, check_gapless, read
from .trail import read_trail

CORES = os.cpu_count() or 1
_ADVICE = "; run bunqueue doctor"


class Finding(NamedTuple):
    """A check; ``problem`` None: all is well."""

    check: str
    problem: str | None


class ProgramFailed(Exception):
    """A program of the server could not do its work; the text is one line. ``output``: what it wrote."""

    def __init__(self, text: str, output: bytes) -> None:
        super().__init__(text)
        self.output = output


def verify(
    repository: Repository,
    backup: Backup,
    scratch: Path | None = None,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[Finding]:
    """The checks of a backup. ``scratch``: a folder for the files, which are removed afterwards; by default
    one for temporary files. TargetError, BackupError and NoRoom if the backup cannot be read."""
    with _scratch(scratch) as folder:
        check_room(backup.bytes, folder)
        fetch(repository, backup, folder, report)
        yield Finding("pages", None)
        check_gapless(repository, backup)
        for segment in changes_since(repository, backup):
            read(repository, segment, backup.shards)
        yield Finding("changes since", None)
        for name, place in backup.trail.items():
            read_trail(repository, name, place)
        yield Finding("trail", None)
        yield from examine(folder, backup, Changes()).findings


@contextmanager
def _scratch(where: Path | None) -> Iterator[Path]:
    try:
        folder = tempfile.TemporaryDirectory(prefix="bunqueue-verify-", dir=where)
    except OSError as error:
        place = where or tempfile.gettempdir()
        raise BackupError(f"{place} cannot be the scratch folder: {error.strerror}; give another") from error
    with folder as name:
        yield Path(name)


class Changes(msgspec.Struct):
    """What `shardproc.restored` changes in files; with the defaults, nothing but what a start changes."""

    skips_missed: bool = False
    queues: list[str] = []
    is_foreign: bool = False
    namespace: str = ""


class Examined(msgspec.Struct):
    """What was found in a folder, and what was changed there."""

    findings: list[Finding] = []
    jobs: int = 0  # that have not ended, before queues were dropped
    active: dict[str, int] = {}  # jobs of each queue that were running
    schedules: list[str] = []  # whose times had passed
    dropped: list[str] = []  # queues
    kept: int = 0  # queues
    left: int = 0  # jobs that have not ended in these

    @property
    def problems(self) -> list[str]:
        return [f"{each.check}: {each.problem}" for each in self.findings if each.problem]


def examine(folder: Path, backup: Backup | None, wanted: Changes) -> Examined:
    """Check a folder that no server has used yet, and change what is wanted. ``backup``: what it should
    hold, if that is known. The engine changes the files as a start does."""
    found = Examined()
    counted: dict[int, tuple[int, int, int]] = {}  # by shard: unfinished, completed, dead
    started: dict[int, int] = {}
    problems: dict[str, list[str]] = {}
    failed: list[str] = []
    for shard, (lines, failure) in enumerate(_outcomes(folder, wanted)):
        failed += [f"shard {shard}: {failure}"] if failure else []
        for line in lines:
            jobs, completed, dead = counted.setdefault(shard, (0, 0, 0))
            if "started" in line:
                started[shard] = line["started"]
                found.active.update(line["active"])
                found.schedules += line["schedules"]
                found.dropped += line["dropped"]
                found.kept += line["kept"]
                found.left += line["left"]
            elif "queue" in line:
                counted[shard] = (
                    line["unfinished"] + jobs,
                    line["completed"] + completed,
                    line["dead"] + dead,
                )
            else:
                wrong = problems.setdefault(line["check"], [])
                if line["problem"]:  # without advice about a folder that is temporary
                    wrong.append(f"shard {shard}: {line['problem'].partition(_ADVICE)[0]}")
    found.jobs = sum(started.values())
    found.findings = [Finding(check, "; ".join(wrong) or None) for check, wrong in problems.items()]
    if backup is not None:
        found.findings.append(Finding("counts", "; ".join(_differences(backup, counted)) or None))
    unlike = (
        f"shard {shard}: the engine has {jobs:,} jobs, and its file {counted[shard][0]:,}"
        for shard, jobs in started.items()
        if jobs != counted[shard][0]
    )
    found.findings.append(Finding("engine", "; ".join([*failed, *unlike]) or None))
    return found


def _outcomes(folder: Path, wanted: Changes) -> list[tuple[list[dict[str, Any]], str]]:
    """What `shardproc.restored` says of each shard, and why it has failed, or "". As many as there are cores
    are checked at the same time."""
    text = msgspec.json.encode(wanted).decode()

    def outcome(shard: int) -> tuple[list[dict[str, Any]], str]:
        output, failure = b"", ""
        try:
            output = output_of("shardproc.restored", str(folder), str(shard), text)
        except ProgramFailed as error:
            output, failure = error.output, str(error)
        return [msgspec.json.decode(line) for line in output.splitlines()], failure

    with own_data_folder(folder), ThreadPoolExecutor(CORES) as pool:
        return list(pool.map(outcome, range(read_manifest(folder).shards)))


def _differences(backup: Backup, counted: dict[int, tuple[int, int, int]]) -> Iterator[str]:
    for each in backup.counts:
        expected = (each.jobs - each.completed - each.dead, each.completed, each.dead)
        for name, wanted, found in zip(
            ("unfinished", "completed", "dead"), expected, counted.get(each.shard, (0, 0, 0)), strict=True
        ):
            if wanted != found:
                yield f"shard {each.shard}: {found:,} {name} jobs, and the backup had {wanted:,}"


def output_of(program: str, *arguments: str) -> bytes:
    """What a program of the server writes. ProgramFailed."""
    command = [sys.executable, "-P", "-m", program, *arguments]
    with lifeline() as line:
        done = subprocess.run(command, stdin=line, capture_output=True, check=False)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise ProgramFailed(said or f"{program} failed with status {done.returncode}", done.stdout)
    return done.stdout

"""Compares workflows with DBOS Transact on SQLite and PostgreSQL, and with the reference's own engine.

    python scripts/workflow_bench.py [--rounds 3] [--scenarios steps step ...] [--only bunqueue ...]
                                     [--scale 0.1] [--json FILE]

Each runs the same workflows in one process, in turns, so that all see the same noise. Figures are medians
over the rounds, ratios medians of the rounds' ratios. `bunqueue` is a server of two shards with default
settings; `bunqueue, fsync` has `--sync full`: each step survives a power cut, as with DBOS on PostgreSQL.

    steps      steps a second of 1,000 workflows of ten empty steps that are started together
    step       how long one empty step takes in a workflow that runs alone, ms
    whole      from the start of a workflow of one step to its end, ms
    signal     from the sending of a signal to the line after the wait for it, ms
    sleepers   memory of 100,000 workflows that wait for a day: all processes, MB, and bytes for each
    recovery   the process that runs 10,000 workflows, all in their second step, is killed and started again:
               seconds until all have ended

The others do fewer in a run if the full number would take hours; the table says how many. Everything is
installed into the folder .bench; PostgreSQL comes from the system's packages. What cannot be installed is
left out, with a message.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from sdk_bench import CACHE, NPM, wait_for_calm
from store_bench_servers import postgresql

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from support.postgres import Postgres
from support.procfs import children
from support.server import Server

PROGRAMS = Path(__file__).with_name("workflow_bench_programs")
DBOS = CACHE / "dbos"
NODE = CACHE / "node"
PIP = ["dbos==3.4.0", "psycopg[binary]==3.3.9"]
PATIENCE_S = 1800.0  # for one run

COUNTS = {"steps": 1_000, "step": 2_000, "whole": 300, "signal": 100, "sleepers": 100_000, "recovery": 10_000}
FEWER = {"steps": 1_000, "step": 400, "whole": 100, "signal": 20, "sleepers": 10_000, "recovery": 500}
UNITS = {"steps": "steps/s", "step": "ms", "whole": "ms", "signal": "ms", "sleepers": "MB", "recovery": "s"}

Figures = dict[str, float]


class Target:
    """One of the measured systems. After each `fresh` it starts from an empty state."""

    name = ""
    many = False  # whether it does the full number of a scenario in a run

    def command(self, scenario: str, count: int) -> list[str]:
        raise NotImplementedError

    @contextmanager
    def fresh(self) -> Iterator[None]:
        """Its database and its server, empty; removed afterwards."""
        yield

    def pids(self) -> list[int]:
        """The processes of its server, if it has one."""
        return []


class Ours(Target):
    many = True

    def __init__(self, name: str, *flags: str) -> None:
        self.name, self._flags = name, flags
        self._server: Server | None = None

    @property
    def server(self) -> Server:
        assert self._server is not None
        return self._server

    @contextmanager
    def fresh(self) -> Iterator[None]:
        with tempfile.TemporaryDirectory(prefix="workflow-bench-") as folder:
            self._server = Server(Path(folder) / "data", "--log-level", "error", *self._flags, shards=2)
            try:
                self._server.start()
                yield
            finally:
                self._server.dispose()

    def command(self, scenario: str, count: int) -> list[str]:
        return [
            sys.executable,
            str(PROGRAMS / "ours_workflows.py"),
            scenario,
            str(count),
            str(self.server.port),
        ]

    def pids(self) -> list[int]:
        return [self.server.pid, *descendants(self.server.pid)]


class Dbos(Target):
    def __init__(self, name: str, postgres: Postgres | None) -> None:
        self.name, self._postgres, self._url = name, postgres, ""

    @contextmanager
    def fresh(self) -> Iterator[None]:
        if self._postgres is not None:
            self._url = self._postgres.new_database().replace("postgresql://", "postgresql+psycopg://")
            yield
            return
        with tempfile.TemporaryDirectory(prefix="workflow-bench-") as folder:
            self._url = f"sqlite:///{folder}/dbos.sqlite"
            yield

    def command(self, scenario: str, count: int) -> list[str]:
        return [
            str(DBOS / "bin" / "python"),
            str(PROGRAMS / "dbos_program.py"),
            scenario,
            str(count),
            self._url,
        ]

    def pids(self) -> list[int]:
        if self._postgres is None:
            return []
        return [each for pid in self._postgres.pids() for each in (pid, *descendants(pid))]


class Reference(Target):
    name = "reference"

    @contextmanager
    def fresh(self) -> Iterator[None]:
        with tempfile.TemporaryDirectory(prefix="workflow-bench-") as folder:
            self._file = f"{folder}/reference.db"
            yield

    def command(self, scenario: str, count: int) -> list[str]:
        bun = NODE / "node_modules" / ".bin" / "bun"
        return [str(bun), str(NODE / "workflows.mjs"), scenario, str(count), self._file]


# -- installation


def install(wanted: Sequence[str]) -> None:
    """Install what the wanted systems need; if none is named, what all of them need."""
    if wanted and all(name.startswith("bunqueue") for name in wanted):
        return
    CACHE.mkdir(exist_ok=True)
    if not (DBOS / "bin" / "dbos").exists():
        _run(sys.executable, "-m", "venv", str(DBOS))
        _run(str(DBOS / "bin" / "python"), "-m", "pip", "install", "--quiet", *PIP)
    if not (NODE / "node_modules" / "bunqueue").exists() and shutil.which("npm"):
        NODE.mkdir(exist_ok=True)
        _run("npm", "install", "--prefix", str(NODE), "--silent", "--no-save", *NPM[:2])
    if NODE.exists():
        shutil.copy(PROGRAMS / "reference.mjs", NODE / "workflows.mjs")  # beside what it imports


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        say(f"{' '.join(command[:5])} failed: {(done.stderr or done.stdout)[-300:]}")


def available(wanted: Sequence[str], postgres: Postgres | None) -> list[Target]:
    found: list[Target] = [Ours("bunqueue"), Ours("bunqueue, fsync", "--sync", "full")]
    if (DBOS / "bin" / "dbos").exists():
        found.append(Dbos("DBOS, SQLite", None))
        found += [Dbos("DBOS, PostgreSQL", postgres)] if postgres is not None else []
    if (NODE / "node_modules" / ".bin" / "bun").exists():
        found.append(Reference())
    return [each for each in found if not wanted or each.name in wanted]


# -- one run


class Failed(Exception):
    """A run that gave no figure."""


@dataclass
class Program:
    """A run of a program, and its output."""

    process: subprocess.Popen[str]

    @classmethod
    def begin(cls, target: Target, scenario: str, count: int) -> Program:
        return cls(
            subprocess.Popen(
                target.command(scenario, count),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONWARNINGS": "ignore"},
            )
        )

    def said(self) -> dict[str, Any]:
        """The next line of JSON. Raises Failed."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                return dict(json.loads(line))
        assert self.process.stderr is not None
        raise Failed(self.process.stderr.read()[-500:])

    def pids(self) -> list[int]:
        return [self.process.pid, *descendants(self.process.pid)]

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


def measure(target: Target, scenario: str, count: int) -> Figures:
    """Raises Failed."""
    with target.fresh():
        run = {"sleepers": weigh, "recovery": recover}.get(scenario, ask)
        return run(target, scenario, count)


def ask(target: Target, scenario: str, count: int) -> Figures:
    program = Program.begin(target, scenario, count)
    try:
        return program.said()
    finally:
        program.kill()


def weigh(target: Target, scenario: str, count: int) -> Figures:
    """How much more memory all processes have than with one workflow."""
    sizes = []
    for many in (1, count):
        program = Program.begin(target, scenario, many)
        try:
            program.said()
            sizes.append(memory([*target.pids(), *program.pids()]))
        finally:
            program.kill()
    used = sizes[1] - sizes[0]
    return {"p50": used / 1e6, "bytes each": used / count}


def recover(target: Target, scenario: str, count: int) -> Figures:
    first = Program.begin(target, f"{scenario}-begin", count)
    try:
        first.said()
    finally:
        first.kill()
    began = time.monotonic()
    second = Program.begin(target, f"{scenario}-go", count)
    try:
        second.said()
        took = time.monotonic() - began
    finally:
        second.kill()
    return {"p50": took, "workflows/s": count / took}


def descendants(pid: int) -> list[int]:
    found = [child.pid for child in children(pid)]
    return found + [below for child in found for below in descendants(child)]


def memory(pids: Sequence[int]) -> int:
    """Bytes of all these processes; shared memory counts once."""
    total = 0
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
    return total


# -- all of them


def rounds(targets: Sequence[Target], arguments: argparse.Namespace) -> dict[str, dict[str, list[Figures]]]:
    """By scenario and target."""
    found: dict[str, dict[str, list[Figures]]] = {scenario: {} for scenario in arguments.scenarios}
    for number in range(arguments.rounds):
        for scenario, by_name in found.items():
            turn = number % len(targets)
            for target in [*targets[turn:], *targets[:turn]]:
                wait_for_calm(arguments.calm)
                count = many(target, scenario, arguments.scale)
                try:
                    figures = measure(target, scenario, count)
                except Failed as error:
                    say(f"{scenario}, {target.name}: {error}")
                    continue
                by_name.setdefault(target.name, []).append(figures)
                say(f"round {number + 1}, {scenario} of {count:,}, {target.name}: {shown(figures)}")
    return found


def many(target: Target, scenario: str, scale: float) -> int:
    counts = COUNTS if target.many else FEWER
    return max(2, round(counts[scenario] * scale))


def shown(figures: Figures) -> str:
    return ", ".join(f"{name} {value:,.4g}" for name, value in figures.items())


def medians(runs: Sequence[Figures]) -> Figures:
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def show(scenario: str, by_name: dict[str, list[Figures]], scale: float) -> None:
    table = Table(title=f"{scenario}, {UNITS[scenario]}", title_justify="left")
    rows = {name: medians(runs) for name, runs in by_name.items()}
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    table.add_column("")
    table.add_column("of", justify="right")
    for name in names:
        table.add_column("median" if name == "p50" and scenario in ("sleepers", "recovery") else name)
    table.add_column("ratio", justify="right")
    for name, row in rows.items():
        count = (COUNTS if name.startswith("bunqueue") else FEWER)[scenario] * scale
        cells = [f"{row[each]:,.4g}" for each in names]
        table.add_row(name, f"{count:,.0f}", *cells, ratio(by_name, name))
    Console(width=120).print(table)


def ratio(by_name: dict[str, list[Figures]], name: str) -> str:
    """How many times better the first one is, whether higher or lower is better."""
    mine, theirs = by_name.get("bunqueue", []), by_name[name]
    ratios = [_better(one, other) for one, other in zip(mine, theirs, strict=False)]
    return f"{statistics.median(ratios):.1f}" if ratios else "-"


def _better(mine: Figures, theirs: Figures) -> float:
    for name in ("per_second", "workflows/s"):
        if name in mine:
            return mine[name] / theirs[name]
    name = "bytes each" if "bytes each" in mine else "p50"
    return theirs[name] / mine[name]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextmanager
def with_postgres(wanted: Sequence[str]) -> Iterator[Postgres | None]:
    if (wanted and "DBOS, PostgreSQL" not in wanted) or not list(Path("/usr/lib/postgresql").glob("*")):
        yield None
        return
    with postgresql(0) as postgres:
        yield postgres


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scenarios", nargs="*", default=list(COUNTS), choices=list(COUNTS))
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--scale", type=float, default=1.0, help="of what is done in a run")
    parser.add_argument("--calm", type=float, default=10, help="seconds to wait for a machine at rest")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    install(arguments.only)
    with with_postgres(arguments.only) as postgres:
        found = rounds(available(arguments.only, postgres), arguments)
    for scenario, by_name in found.items():
        show(scenario, by_name, arguments.scale)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()

"""Counts what fixed loads cost a shard, a router and a client, and compares it with numbers kept in the tree.

    python scripts/bench_check.py               fails if a load has become more than 1 % dearer or cheaper
    python scripts/bench_check.py --update      writes the new numbers, and the tables of docs/benchmarks.md
    python scripts/bench_check.py --top 20      also prints the functions that execute most

Time depends on what else a machine does; these two counts do not:

- The bytecodes of our own code that the interpreter executes. They are the same on every machine with the
  same minor version of Python, and compared wherever it is the one that they were counted with. They show
  each step of our code, but not what it costs to have msgspec or SQLite do something.
- The instructions of the processor, counted by `valgrind --tool=callgrind`. They show everything, but differ
  with the build of Python, msgspec, SQLite and the C library. They are compared where all of these are as
  they were when the numbers were written; elsewhere they are only shown. Without valgrind they are left out.

A change that makes a load dearer says so in its commit, with the reason, and contains the new numbers. One
that makes it cheaper contains them as well, or the next change could lose again what it has won.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from bench_loads import FEATURES

ROOT = Path(__file__).resolve().parent.parent
LOADS = ROOT / "scripts" / "bench_loads.py"
KEPT = ROOT / "scripts" / "bench_check.json"
DOCS = ROOT / "docs" / "benchmarks.md"
BOUND = 0.01
LEAST = 3.0  # of a number; it may always differ by this much: a load of a few bytecodes varies by rounding
PROCESSES = ("shard", "router", "client", "features")
BEGIN, END = "<!-- made by scripts/bench_check.py -->", "<!-- end -->"

Counts = dict[str, float]  # of each load, for one job


class Kept(msgspec.Struct, rename="camel"):
    """The numbers in the tree."""

    python: str
    """The minor version of Python that executed the bytecodes."""
    machine: dict[str, str]
    """What else the instructions depend on."""
    bytecodes: dict[str, Counts]
    """For each process, what a job of each load costs."""
    instructions: dict[str, Counts]


def machine() -> dict[str, str]:
    """What the number of instructions depends on, apart from our code."""
    return {
        "python": f"{platform.python_version()} {platform.python_compiler()}",
        "processor": platform.machine(),
        "libc": " ".join(platform.libc_ver()),
        "sqlite": sqlite3.sqlite_version,
        "msgspec": msgspec.__version__,
        "valgrind": output("valgrind", "--version"),
    }


def output(*command: str) -> str:
    if shutil.which(command[0]) is None:
        return "none"
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def counted(process: str, how: str, port: int, top: int = 0) -> Counts:
    """What a job of each load of a process costs."""
    command = [sys.executable, str(LOADS), process, "--how", how, "--port", str(port), "--top", str(top)]
    with tempfile.TemporaryDirectory() as folder:
        if how == "instructions":
            command = [*callgrind(folder), *command]
        environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"the loads of the {process} failed with status {done.returncode}")
        jobs: Counts = {}
        costs: Counts = {}
        for number, line in enumerate(done.stdout.splitlines()):
            name, many, bytecodes = line.split("\t")
            cost = int(bytecodes) if how == "bytecodes" else of_part(folder, 2 * number + 2)
            jobs[name] = jobs.get(name, 0) + int(many)
            costs[name] = costs.get(name, 0) + cost
    return {name: round(cost / jobs[name], 1) for name, cost in costs.items()}


def callgrind(folder: str) -> list[str]:
    """The command in front of another one whose loads are counted into files of a folder."""
    valgrind = ["valgrind", "--tool=callgrind", "--quiet", f"--log-file={folder}/log", "--vgdb-poll=500"]
    valgrind += ["--instr-atstart=no", "--dump-before=getloadavg", f"--callgrind-out-file={folder}/counts"]
    fixed = ["setarch", "-R"]  # the same addresses each time: some hashes depend on them
    allowed = subprocess.run([*fixed, "true"], capture_output=True, check=False).returncode == 0
    return [*(fixed if allowed else ()), *valgrind]


def of_part(folder: str, part: int) -> int:
    """The instructions in one of callgrind's files."""
    text = Path(folder, f"counts.{part}").read_text(encoding="utf-8")
    return next(
        int(line.split()[1]) for line in text.splitlines() if line.startswith(("summary:", "totals:"))
    )


@contextmanager
def server() -> Iterator[int]:
    """A server for the client, on a port of its own."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "bunqueue", "start", "--host", "127.0.0.1", "--tcp-port", "0"]
        command += [
            "--http-port",
            "0",
            "--data-dir",
            f"{folder}/data",
            "--shards",
            "1",
            "--log-level",
            "error",
        ]
        started = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert started.stdout is not None
        try:
            yield port_of(started.stdout.readline())
        finally:
            started.send_signal(signal.SIGTERM)
            started.wait()
            started.stdout.close()


def port_of(ready: str) -> int:
    """The port that a server's readiness line names."""
    return int(ready.partition(" tcp=")[2].partition(" ")[0].rpartition(":")[2])


def differences(kind: str, kept: Mapping[str, Counts], now: Mapping[str, Counts]) -> list[str]:
    """What is not as it was, one line each."""
    found = []
    for process, counts in now.items():
        before = kept.get(process, {})
        for name in sorted({*counts, *before}):
            old, new = before.get(name), counts.get(name)
            if old is None or new is None:
                found.append(f"{process}: {name!r} is {'new' if old is None else 'gone'}")
            elif abs(new - old) > max(BOUND * old, LEAST):
                change = f"{old:,.0f}, now {new:,.0f} ({new / old - 1:+.1%})"
                found.append(f"{process}: {name}: {kind} for each job: {change}")
    return found


def shown(kept: Mapping[str, Counts], now: Mapping[str, Counts], kind: str) -> None:
    for process, counts in now.items():
        for name, new in counts.items():
            old = kept.get(process, {}).get(name)
            change = "" if old is None else f"{new / old - 1:+7.1%}"
            print(f"{process:9}{name:28}{new:12,.0f} {kind} {change}")


def tables(kept: Kept) -> str:
    """The tables of docs/benchmarks.md."""
    lines = ["| process | load | bytecodes for each job | instructions |", "|---|---|---|---|"]
    for process in ("shard", "router", "client"):
        for name, bytecodes in kept.bytecodes[process].items():
            instructions = kept.instructions.get(process, {}).get(name)
            text = "-" if instructions is None else f"{instructions:,.0f}"
            lines.append(f"| {process} | {name} | {bytecodes:,.0f} | {text} |")
    features = kept.bytecodes["features"]
    plain = features[next(iter(FEATURES))]
    lines += [
        "",
        "| a job with | bytecodes of the shard, from PUSH to ACK | more than without |",
        "|---|---|---|",
    ]
    for name, bytecodes in features.items():
        lines.append(f"| {name} | {bytecodes:,.0f} | {bytecodes / plain - 1:+.0%} |")
    return "\n".join(lines).replace("| +0% |", "| - |")


def with_tables(text: str, kept: Kept) -> str:
    """The page of the documentation, with these numbers."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{tables(kept)}\n\n{END}{after}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--update", action="store_true", help="write what is counted into the tree")
    parser.add_argument("--top", type=int, default=0, help="print so many functions of each load")
    options = parser.parse_args()
    kept = msgspec.json.decode(KEPT.read_bytes(), type=Kept) if KEPT.exists() else Kept("", {}, {}, {})
    python, here = ".".join(platform.python_version_tuple()[:2]), machine()
    with server() as port:
        bytecodes = {each: counted(each, "bytecodes", port, options.top) for each in PROCESSES}
        shown(kept.bytecodes, bytecodes, "bytecodes")
        instructions: dict[str, Counts] = {}
        if here["valgrind"] == "none":
            print("There is no valgrind, so no instructions are counted.")
        else:
            instructions = {each: counted(each, "instructions", port) for each in PROCESSES[:3]}
            shown(kept.instructions, instructions, "instructions")
    if options.update:
        new = Kept(python, here, bytecodes, instructions)
        KEPT.write_bytes(msgspec.json.format(msgspec.json.encode(new), indent=1) + b"\n")
        DOCS.write_text(with_tables(DOCS.read_text(encoding="utf-8"), new), encoding="utf-8")
        return 0
    found = []
    if python == kept.python:
        found += differences("bytecodes", kept.bytecodes, bytecodes)
    else:
        print(f"Not compared: the kept numbers are of Python {kept.python}, this is {python}.")
    if here == kept.machine:
        found += differences("instructions", kept.instructions, instructions)
    else:
        other = ", ".join(f"{each} {here[each]}" for each in here if here[each] != kept.machine.get(each))
        print(f"The instructions are not compared, as they were counted with other builds; here: {other}.")
    for line in found:
        print("CHANGED", line)
    if found:
        print("If that is intended, say so in the commit, and run: make bench-check ARGS=--update")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

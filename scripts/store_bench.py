"""Measures the cost of a store: a data folder alone, a store alone, a store with two synchronous standbys.

    python scripts/store_bench.py [--rounds 5] [--jobs 200000] [--only load replay start peers] [--json FILE]

All servers run at the same time, on this machine, with PostgreSQL and the load generator, and are loaded in
turn, so that all see the same noise.  Figures are medians over the rounds, ratios medians of the rounds'
ratios.  PostgreSQL comes from the system's packages; everything is removed afterwards.

    load     batches of 400 jobs: pushed, then pulled and acknowledged until none is left; and one at a time
             on an idle server.  Jobs a second; the time of a commit, p50 and p99; CPU time of shards and
             PostgreSQL (all nodes) per job; bytes of log per job
    replay   how fast a shard's file is rebuilt from its log
    start    how long a start takes with many live jobs (--live 100000 1000000): with the file, from a
             snapshot, and from the log
    peers    procrastinate and PgQueuer on the same PostgreSQL, with their own clients and workers, compared
             with ours as in sdk_bench.py.  They are installed into the folder .bench
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import psycopg
from rich.console import Console
from rich.table import Table

from bunqueue import Queue
from load_client import Options, Outcome
from load_test import percentile, perform
from sdk_bench import CACHE, PROGRAMS
from shardproc.replication import replay
from shardproc.replication.owner import Entry
from store_bench_servers import SETTLE_S, Measured, Server, Used, bunqueue, postgresql, running, settle

BATCH, CONNECTIONS, QUEUES, PAYLOAD = 400, 4, 8, 100
IDLE_JOBS, PAUSE_S = 300, 0.01  # one at a time, with pauses
MODES = ("folder", "store", "store, 2 standbys")
PYTHON = CACHE / "pg" / "bin" / "python"
PIP = ["procrastinate==3.10.0", "pgqueuer[asyncpg]==1.6.0"]
PEERS = {"procrastinate": "procrastinate_pg.py", "PgQueuer": "pgqueuer_pg.py"}
PEER_JOBS = {"single": 1_000, "bulk": 20_000, "drain": 2_000}
OUR_JOBS = {"single": 2_000, "bulk": 50_000, "drain": 20_000}

Figures = dict[str, Any]


# -- load


def options(server: Server, jobs: int, scenario: str) -> Options:
    return Options(
        scenario=scenario,
        host="127.0.0.1",
        port=server.port,
        token=None,
        connections=CONNECTIONS,
        depth=4,
        batch=BATCH,
        payload=PAYLOAD,
        queues=QUEUES,
        jobs=jobs,
        processes=1,
        prefix="bench",
    )


def figures_of(outcome: Outcome, used: Used) -> Figures:
    jobs = outcome.jobs
    return {
        "jobs_per_s": jobs / outcome.seconds,
        "commit_p50_ms": used.commit_ms(0.5),
        "commit_p99_ms": used.commit_ms(0.99),
        "shard_us": used.shards_s / jobs * 1e6,
        "router_us": used.router_s / jobs * 1e6,
        "postgres_us": used.postgres_s / jobs * 1e6,
        "log_bytes": used.log_bytes / jobs,
    }


def load(measured: Measured, jobs: int) -> dict[str, Figures]:
    """One round of one server."""
    settle(2 * SETTLE_S)  # the after-effects of the last server's load must not count for an idle one
    found = {"idle": idle(measured)}
    for scenario in ("push-batch", "drain"):
        before = measured.used()
        outcome = perform(options(measured.server, jobs, scenario))
        found[scenario] = figures_of(outcome, measured.used().since(before))
        settle()
    return found


def idle(measured: Measured) -> Figures:
    """A push now and then."""
    before, times = measured.used(), []
    with Queue("idle", port=measured.server.port) as queue:
        for _ in range(IDLE_JOBS):
            time.sleep(PAUSE_S)
            begun = time.perf_counter()
            queue.add("job", {"text": "x" * PAYLOAD})
            times.append((time.perf_counter() - begun) * 1000)
        queue.obliterate()
    used = measured.used().since(before)
    times.sort()
    return {
        "reply_p50_ms": percentile(times, 0.5),
        "reply_p99_ms": percentile(times, 0.99),
        "commit_p50_ms": used.commit_ms(0.5),
        "commit_p99_ms": used.commit_ms(0.99),
    }


def compare_load(arguments: argparse.Namespace) -> Figures:
    rounds: dict[str, list[dict[str, Figures]]] = {mode: [] for mode in MODES}
    with ExitStack() as stack:
        alone = stack.enter_context(postgresql(0))
        replicated = stack.enter_context(postgresql(2))
        servers = [
            stack.enter_context(running(mode, arguments.shards, postgres))
            for mode, postgres in zip(MODES, (None, alone, replicated), strict=True)
        ]
        for number in range(arguments.rounds):
            for measured in servers[number % 3 :] + servers[: number % 3]:
                found = load(measured, arguments.jobs)
                rounds[measured.name].append(found)
                say(f"round {number + 1}, {measured.name}: {short(found)}")
    return summed_up(rounds)


def short(found: dict[str, Figures]) -> str:
    push, drain = (found[name]["jobs_per_s"] for name in ("push-batch", "drain"))
    return f"{push:,.0f} pushed/s, {drain:,.0f} drained/s, idle {found['idle']['reply_p50_ms']:.2f} ms"


def summed_up(rounds: dict[str, list[dict[str, Figures]]]) -> Figures:
    """Medians, and how many times the speed of the folder alone."""
    found: Figures = {}
    for mode, some in rounds.items():
        for scenario in some[0]:
            rows = [each[scenario] for each in some]
            figures = {name: middle([row[name] for row in rows]) for name in rows[0]}
            if "jobs_per_s" in figures:
                pairs = zip(rows, (each[scenario] for each in rounds[MODES[0]]), strict=True)
                figures["of_folder"] = middle([row["jobs_per_s"] / base["jobs_per_s"] for row, base in pairs])
            found[f"{scenario}: {mode}"] = figures
    return found


def middle(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


# -- replay


def fill(server: Server, jobs: int) -> None:
    perform(options(server, jobs, "push-batch"))


def compare_replay(arguments: argparse.Namespace) -> Figures:
    """Replay of pushes, and of whole lives: pushed, pulled, acknowledged."""
    found: Figures = {}
    with postgresql(0) as postgres:
        for name, drained in (("pushed", False), ("pushed and done", True)):
            with running("replay", arguments.shards, postgres) as measured:
                fill(measured.server, arguments.jobs)
                if drained:
                    perform(options(measured.server, arguments.jobs, "drain"))
                url = measured.server.flags[-1]
                measured.server.stop()
                found[name] = {
                    "jobs_per_s": statistics.median(_replayed(url) for _ in range(arguments.rounds))
                }
                say(f"replay, {name}: {found[name]['jobs_per_s']:,.0f} jobs/s of one shard")
    return found


def _replayed(url: str) -> float:
    """Jobs a second, of shard 0."""
    query = "select seq, epoch, body from bunqueue.log where shard = 0 and seq > %s order by seq limit 500"
    with tempfile.TemporaryDirectory() as folder, psycopg.connect(url) as connection:
        with closing(sqlite3.connect(Path(folder) / "built.db", isolation_level=None)) as built:
            built.execute("pragma journal_mode = wal")
            built.execute("pragma synchronous = normal")
            begun, position = time.perf_counter(), 0
            while entries := [Entry(*row) for row in connection.execute(query, (position,), binary=True)]:
                replay.apply(built, entries)
                position = entries[-1].position
            took = time.perf_counter() - begun
            (jobs,) = built.execute("select count(*) from jobs").fetchone()
            return float(jobs / took)


# -- start


def compare_start(arguments: argparse.Namespace) -> Figures:
    found: Figures = {}
    for live in arguments.live:
        with postgresql(2) as postgres, running("start", arguments.shards, postgres) as measured:
            server, url = measured.server, measured.server.flags[-1]
            fill(server, live)
            server.stop()
            found[f"{live:,} live jobs"] = figures = {"with the file": _start(server)}
            folder = Path(server.data_dir)
            shutil.rmtree(folder)
            figures["from the log"] = _start(server, keep=True)
            begun = time.perf_counter()
            bunqueue("store", "snapshot", "--data-dir", str(folder), store=url)
            figures["snapshot made in"] = time.perf_counter() - begun
            with psycopg.connect(url) as connection:
                query = "select sum(bytes) from bunqueue.snapshots"
                figures["snapshot, MB"] = float(connection.execute(query).fetchone()[0]) / 1e6  # type: ignore[index]
            figures["files, MB"] = sum(file.stat().st_size for file in folder.glob("*.db*")) / 1e6
            server.stop()
            shutil.rmtree(folder)
            figures["from a snapshot"] = _start(server)
            say(f"start, {live:,}: " + ", ".join(f"{name} {value:.1f}" for name, value in figures.items()))
    return found


def _start(server: Server, *, keep: bool = False) -> float:
    """Seconds until it is ready; it is stopped again unless it is needed."""
    begun = time.perf_counter()
    server.restart()
    took = time.perf_counter() - begun
    if not keep:
        server.stop()
    return took


# -- peers


def compare_peers(arguments: argparse.Namespace) -> Figures:
    install()
    rounds: dict[str, dict[str, list[float]]] = {scenario: {} for scenario in PEER_JOBS}
    with postgresql(2) as postgres, running("ours", arguments.shards, postgres) as measured:
        urls = {name: postgres.new_database() for name in PEERS}
        prepare(urls)
        for number in range(arguments.rounds):
            for scenario, by_name in rounds.items():
                names = ["ours", *PEERS]
                for name in names[number % 3 :] + names[: number % 3]:
                    value = peer(name, scenario, urls.get(name, ""), measured.server.port)
                    if value is not None:
                        by_name.setdefault(name, []).append(value)
                        say(f"round {number + 1}, {scenario}, {name}: {value:,.0f} jobs/s")
    return {
        scenario: {name: statistics.median(values) for name, values in by_name.items()}
        for scenario, by_name in rounds.items()
    }


def install() -> None:
    if not PYTHON.exists():
        CACHE.mkdir(exist_ok=True)
        subprocess.run([sys.executable, "-m", "venv", CACHE / "pg"], check=True)
        subprocess.run([PYTHON, "-m", "pip", "install", "--quiet", *PIP], check=True)


def prepare(urls: dict[str, str]) -> None:
    programs = {
        "procrastinate": "import procrastinate as p, sys\n"
        "a = p.App(connector=p.SyncPsycopgConnector(conninfo=sys.argv[1]))\n"
        "with a.open(): a.schema_manager.apply_schema()",
        "PgQueuer": "import asyncio, asyncpg, pgqueuer as p, sys\n"
        "async def main(): await p.Queries(p.AsyncpgDriver(await asyncpg.connect(sys.argv[1]))).install()\n"
        "asyncio.run(main())",
    }
    for name, program in programs.items():
        subprocess.run([PYTHON, "-c", program, urls[name]], check=True, stderr=subprocess.DEVNULL)


def peer(name: str, scenario: str, url: str, port: int) -> float | None:
    """One run; None, after a message, if it fails."""
    settle()
    ours = name == "ours"
    program = PROGRAMS / ("ours.py" if ours else PEERS[name])
    jobs = (OUR_JOBS if ours else PEER_JOBS)[scenario]
    command = [sys.executable if ours else str(PYTHON), str(program), scenario, str(jobs), str(port)]
    environ = {**os.environ, "BENCH_POSTGRES": url}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=600, check=False)
    empty(name, url, port)
    try:
        return float(json.loads(done.stdout.splitlines()[-1])["value"])
    except (ValueError, IndexError, KeyError):
        say(f"{name}, {scenario}: {(done.stderr or done.stdout)[-500:]}")
        return None


def empty(name: str, url: str, port: int) -> None:
    """Remove the jobs of a run."""
    if name == "ours":
        with Queue("bench", port=port) as queue:
            queue.obliterate()
        return
    tables = "procrastinate_jobs" if name == "procrastinate" else "pgqueuer, pgqueuer_log"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"truncate {tables} cascade")


# -- report


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def show(title: str, rows: Figures) -> None:
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for name in names:
        table.add_column(name.replace("_", " "), justify="right")
    for name, row in rows.items():
        table.add_row(name, *(_cell(row.get(each)) for each in names))
    Console(width=200).print(table)


def _cell(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


PARTS: dict[str, Callable[[argparse.Namespace], Figures]] = {
    "load": compare_load,
    "replay": compare_replay,
    "start": compare_start,
    "peers": compare_peers,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=200_000)
    parser.add_argument("--live", type=int, nargs="*", default=[100_000, 1_000_000])
    parser.add_argument("--only", nargs="*", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found = {}
    for name in arguments.only:
        found[name] = PARTS[name](arguments)
        show(name, found[name])
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()

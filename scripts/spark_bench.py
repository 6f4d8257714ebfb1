"""The cost of the data pipeline, compared with plain sqlite3 and DuckDB, on files made by a real server.

    python scripts/spark_bench.py --jobs 5000000 --shards 2 8
    python scripts/spark_bench.py --beside --jobs 500000

The first makes --jobs finished jobs for each number of shards, stops the server, and reads its files: how
fast jobs are read, how long aggregates take, including the start of Spark, and the peak memory of all
processes of each reader. DuckDB is left out if it is not installed.

The second loads a server with and without the pipeline reading its files, in turn: pushes and drains per
second, the medians of all rounds and of their ratios, and the size of the write-ahead logs. The pipeline is
`bunqueue analytics aggregate` as a user would call it, from the start of Spark to the tables; while the
server is measured alone, the pipeline is paused.

Both print Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from importlib.util import find_spec
from pathlib import Path

from large_test import Server
from spark_bench_history import make_history

SCRIPTS = Path(__file__).parent
STEP_S = 0.05  # between two checks of memory, or of the logs
MASTERS = ("local[1]", "local[2]")
ADVANCE_S = 12.0  # of the pipeline alone, between two rounds beside a server


# Watching


class Peak:
    """The maximum of a number, polled in a thread."""

    def __init__(self, look: Callable[[], float]) -> None:
        self._look = look
        self.value = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._over.wait(STEP_S):
            self.value = max(self.value, self._look())

    def stop(self) -> float:
        self._over.set()
        self._thread.join()
        return self.value


def family_memory(pid: int) -> float:
    """MB of memory of a process and all its descendants.

    The kernel divides pages that several of them share: Spark's Python workers are forks of each other.
    """
    total, todo = 0.0, [pid]
    while todo:
        one = todo.pop()
        try:
            todo += map(int, Path(f"/proc/{one}/task/{one}/children").read_text().split())
            lines = Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
        except OSError:  # it has just ended
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
    return total


# Reading


def reader(kind: str, folder: Path, master: str) -> subprocess.Popen[str]:
    program = str(SCRIPTS / "spark_bench_readers.py")
    return subprocess.Popen(
        [sys.executable, program, kind, str(folder), "--master", master],
        stdout=subprocess.PIPE,
        stderr=None if os.environ.get("BENCH_VERBOSE") else subprocess.DEVNULL,
        text=True,
    )


def measure(kind: str, folder: Path, master: str = "-") -> dict[str, float]:
    """Rows, seconds and peak memory of one reader."""
    process = reader(kind, folder, master)
    peak = Peak(lambda: family_memory(process.pid))
    output, _ = process.communicate()
    memory = peak.stop()
    if process.returncode:
        sys.exit(f"{kind} with {master} failed; BENCH_VERBOSE=1 shows why")
    result: dict[str, float] = json.loads(output.splitlines()[-1])
    return result | {"memory": memory}


def read_rows(folder: Path, jobs: int) -> Iterator[list[str]]:
    """The rows of the table for one folder."""
    plan = [("sqlite3", "sqlite", "-")]
    if find_spec("duckdb"):
        plan.append(("DuckDB", "duckdb", "-"))
    plan += [(f"Spark {master}", "spark", master) for master in MASTERS]
    for name, kind, master in plan:
        read = None if kind == "duckdb" else measure(f"{kind}-read", folder, master)
        total = measure(f"{kind}-aggregate", folder, master)
        yield [
            name,
            f"{jobs / read['seconds']:,.0f}" if read else "-",
            f"{total['seconds']:,.1f}",
            f"{max(total['memory'], read['memory'] if read else 0):,.0f}",
        ]


def bench_reading(shards: Sequence[int], jobs: int) -> None:
    rows = []
    for count in shards:
        with tempfile.TemporaryDirectory() as folder:
            server = Server(folder, count)
            server.start()
            try:
                took = make_history(server, jobs)
            finally:
                server.stop()
            data = Path(folder, "data")
            size = sum(file.stat().st_size for file in data.glob("shard-*.db")) / 1e6
            print(f"{jobs:,} jobs in {count} shards: made in {took:,.0f} s, {size:,.0f} MB", file=sys.stderr)
            for row in read_rows(data, jobs):
                rows.append([str(count), *row])
                print(" ".join(rows[-1]), file=sys.stderr)
    print(f"\n{jobs:,} finished jobs. The aggregate is that of `bunqueue analytics aggregate`; sqlite3 only")
    print("counts by outcome, takes percentiles of wait and run by queue and minute, and lists errors.\n")
    print(markdown(["shards", "reader", "jobs read per second", "aggregate, s", "memory at most, MB"], rows))


# Beside a loaded server


class Pipeline:
    """`bunqueue analytics aggregate` on the folder of a server, repeated, with pauses in between."""

    def __init__(self, folder: Path, master: str, scratch: str) -> None:
        program = str(SCRIPTS / "spark_bench_readers.py")
        self._process = subprocess.Popen(
            [sys.executable, program, "spark-aggregate", str(folder), "--master", master, "--endless"],
            stdout=subprocess.PIPE,
            stderr=None if os.environ.get("BENCH_VERBOSE") else subprocess.DEVNULL,
            env=os.environ | {"TMPDIR": scratch},  # this also removes what it leaves behind when it is killed
            start_new_session=True,
            text=True,
        )
        self.passes = 0
        threading.Thread(target=self._count, daemon=True).start()
        self._tell(signal.SIGSTOP)

    def _count(self) -> None:
        assert self._process.stdout is not None
        for _ in self._process.stdout:
            self.passes += 1

    def _tell(self, what: signal.Signals) -> None:
        if self._process.poll() is not None:
            sys.exit("the pipeline ended; BENCH_VERBOSE=1 shows why")
        os.killpg(self._process.pid, what)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let the pipeline run during the block, from where it was paused."""
        self._tell(signal.SIGCONT)
        try:
            yield
        finally:
            self._tell(signal.SIGSTOP)

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def load(scenario: str, port: int, jobs: int) -> float:
    """Jobs per second of `load_test.py`."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        arguments = [scenario, "--port", str(port), "--jobs", str(jobs), "--json", file.name]
        subprocess.run(
            [sys.executable, str(SCRIPTS / "load_test.py"), *arguments], check=True, stdout=subprocess.DEVNULL
        )
        return float(json.load(file)["results"]["jobs_per_second"])


SCENARIOS = ("push", "push-batch", "drain")


def one_round(port: int, data: Path, jobs: int) -> dict[str, float]:
    """Jobs per second of each scenario, and MB of the longest log."""
    log = Peak(lambda: max((file.stat().st_size for file in data.glob("*-wal")), default=0) / 1e6)
    result = {scenario: load(scenario, port, jobs) for scenario in SCENARIOS}
    return result | {"log, MB": log.stop()}


def bench_beside(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        server, data = Server(folder, options.shards[0]), Path(folder, "data")
        server.start()
        try:
            make_history(server, options.jobs)
            one_round(server.port, data, options.load)  # warms up
            pipeline = Pipeline(data, MASTERS[-1], scratch=folder)
            try:
                rounds = list(both(server.port, data, options, pipeline))
            finally:
                pipeline.end()
        finally:
            server.stop()
    alone, beside = [each[0] for each in rounds], [each[1] for each in rounds]
    rows = [
        [
            name,
            f"{statistics.median(each[name] for each in alone):,.0f}",
            f"{statistics.median(each[name] for each in beside):,.0f}",
            f"{statistics.median(b[name] / a[name] for a, b in rounds):.2f}",
        ]
        for name in (*SCENARIOS, "log, MB")
    ]
    print(f"\nBeside {options.jobs:,} finished jobs, {options.rounds} rounds of {options.load:,} jobs,")
    print(f"in which the whole pipeline ran {pipeline.passes} times\n")
    print(markdown(["", "alone, jobs/s", "while Spark works, jobs/s", "ratio"], rows))


def both(
    port: int, data: Path, options: argparse.Namespace, pipeline: Pipeline
) -> Iterator[tuple[dict[str, float], dict[str, float]]]:
    """Rounds in turn, in alternating order, so that changes on the machine affect both."""
    for number in range(options.rounds):
        with pipeline.running():  # each round covers another part of its work
            time.sleep(ADVANCE_S)
        found = {}
        for busy in (False, True) if number % 2 else (True, False):
            with pipeline.running() if busy else nullcontext():
                found[busy] = one_round(port, data, options.load)
        print(f"round {number + 1}: {found[False]} {found[True]}, {pipeline.passes} passes", file=sys.stderr)
        yield found[False], found[True]


def markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=1_000_000, help="finished jobs (1000000)")
    parser.add_argument("--shards", type=int, nargs="+", default=[2], help="powers of two (2)")
    parser.add_argument(
        "--beside", action="store_true", help="a server at work, with and without the pipeline"
    )
    parser.add_argument("--rounds", type=int, default=5, help="of --beside (5)")
    parser.add_argument("--load", type=int, default=200_000, help="jobs of each round (200000)")
    options = parser.parse_args()
    begin = time.perf_counter()
    if options.beside:
        bench_beside(options)
    else:
        bench_reading(options.shards, options.jobs)
    print(f"\n{time.perf_counter() - begin:,.0f} s in all", file=sys.stderr)


if __name__ == "__main__":
    main()

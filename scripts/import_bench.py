"""Measures what importing a client costs, and how soon a server and a worker answer.

    python scripts/import_bench.py                      this project
    python scripts/import_bench.py --beside PYTHON      also celery, rq and saq, as that interpreter has them

Each figure is the median of ROUNDS new processes: seconds, and MiB of memory at their end. A server starts
with an empty folder and two shards; it is ready with the reply to a PUSH. A worker is ready when its handler
starts for a job that waited. Figures of a machine that does other things as well are too high.
"""

from __future__ import annotations

import argparse
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bunqueue import Queue
from bunqueue.errors import BunqueueError

ROUNDS = 7
MODULES = {"bunqueue": "bunqueue", "celery": "celery", "rq": "rq.cli", "saq": "saq"}
IMPORTS = {
    "bunqueue": "from bunqueue import Queue",
    "celery": "from celery import Celery",
    "rq": "from rq import Queue",
    "saq": "from saq import Queue",
}
HELP = "import runpy; sys.argv = ['program', '--help']; runpy.run_module({!r}, run_name='__main__')"
# The memory of a process that was just executed; what the kernel tells its parent includes the parent's own.
PRELUDE = """
import atexit, sys
def report():
    line = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    print(line.split()[1], file=sys.stderr)
atexit.register(report)
"""
WORKER = """
import sys
from bunqueue import Worker
def handler(job):
    print("started", flush=True)
Worker("work", handler, port=int(sys.argv[1])).run_forever()
"""


def process(python: str, program: str) -> tuple[float, float]:
    """Seconds and MiB of a process."""
    begun = time.perf_counter()
    done = subprocess.run([python, "-c", PRELUDE + program], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{program} fails: {done.stderr}")
    return time.perf_counter() - begun, int(done.stderr.split()[-1]) / 1024


def median(measure: Callable[[], tuple[float, float]]) -> tuple[float, float]:
    found = [measure() for _ in range(ROUNDS)]
    return statistics.median(s for s, _ in found), statistics.median(mib for _, mib in found)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@contextmanager
def server(folder: Path, port: int) -> Iterator[None]:
    command = [sys.executable, "-m", "bunqueue", "start", "--host", "127.0.0.1", "--tcp-port", str(port)]
    command += ["--http-port", "0", "--data-dir", str(folder), "--shards", "2", "--log-level", "error"]
    started = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        started.terminate()
        started.wait()


def first_answer() -> tuple[float, float]:
    """From `bunqueue start` to the first reply."""
    port, begun = free_port(), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, server(Path(folder, "data"), port):
        while True:
            with suppress(BunqueueError, OSError), socket.create_connection(("127.0.0.1", port)):
                with Queue("first", port=port) as queue:
                    queue.add("job")
                return time.perf_counter() - begun, 0.0
            time.sleep(0.005)


def first_job(port: int) -> tuple[float, float]:
    """From the start of a worker's process to that of its handler."""
    with Queue("work", port=port) as queue:
        queue.add("job")
    begun = time.perf_counter()
    worker = subprocess.Popen([sys.executable, "-c", WORKER, str(port)], stdout=subprocess.PIPE)
    assert worker.stdout is not None
    worker.stdout.readline()
    took = time.perf_counter() - begun
    worker.terminate()
    worker.wait()
    return took, 0.0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--beside", metavar="PYTHON", help="an interpreter that has celery, rq and saq")
    options = parser.parse_args()
    print("| | import | `--help` |\n|---|---|---|")
    for name, statement in IMPORTS.items():
        python = sys.executable if name == "bunqueue" else options.beside
        if python is None:
            continue
        cells = []
        for program in (statement, HELP.format(MODULES[name])):
            seconds, mib = median(lambda: process(python, program))  # noqa: B023 (called in this round)
            cells.append(f"{1000 * seconds:.0f} ms, {mib:.0f} MiB")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    print(f"\nserver, to its first reply: {median(first_answer)[0]:.2f} s")
    port = free_port()
    with tempfile.TemporaryDirectory() as folder, server(Path(folder, "data"), port):
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.005)
        print(f"worker, to its first handler: {median(lambda: first_job(port))[0]:.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())

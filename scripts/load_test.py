"""Puts load on a running server and reports its throughput.

    python scripts/load_test.py push --jobs 200000
    python scripts/load_test.py drain --connections 8 --batch 200 --json drain.json

Scenarios:

    push         one PUSH per job, many in flight on every connection
    push-batch   PUSHB of --batch jobs
    drain        jobs exist already (pushing them is not timed); PULLB and ACKB until none is left
    mixed        every connection pushes a batch, pulls a batch, acknowledges it, until all jobs are done

Every reply is checked. The first error reply ends the run with its text and exit status 1, for example when
the server limits the requests of a connection. Queues are named after the run and removed at its end;
if the server cannot do that, there is a warning. Needs the `msgpack` package: an encoder that the server does
not share finds bugs in both.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import platform
import secrets
import signal
import sys
import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from multiprocessing.connection import Connection as Pipe
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from typing import Any

from rich.console import Console
from rich.table import Table

from load_client import SCENARIOS, Connection, LoadError, Options, Outcome, Request, ask, connect, drive

DEPTH_SINGLE = 50  # requests in flight when each carries one job; servers accept 50 at once per connection
DEPTH_BATCH = 4  # requests in flight when each carries many
MAX_BATCH = 1000  # the most jobs that servers accept in one command


# Processes. A client process sends "ready", waits for "go", then sends counts of finished jobs and at last an
# Outcome, or at any time a LoadError.


def client(options: Options, indexes: Sequence[int], pipe: Pipe) -> None:
    """A client process: drives the connections with these numbers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent also gets it, and ends us
    outcome = Outcome()
    try:
        connections = [Connection(options, index, outcome) for index in indexes]
        pipe.send("ready")
        pipe.recv()
        started = time.perf_counter()
        drive(connections, progress=lambda: pipe.send(outcome.jobs))
        outcome.seconds = time.perf_counter() - started
        pipe.send(outcome)
    except (LoadError, OSError) as error:
        pipe.send(LoadError(str(error)))


class Fleet:
    """The client processes of one run. All of them end with the block."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.members: dict[Pipe, SpawnProcess] = {}

    def __enter__(self) -> Fleet:
        context = multiprocessing.get_context("spawn")
        for number in range(self.options.processes):
            indexes = range(number, self.options.connections, self.options.processes)
            ours, theirs = context.Pipe()
            process = context.Process(target=client, args=(self.options, indexes, theirs), daemon=True)
            process.start()
            theirs.close()
            self.members[ours] = process
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.members.values():
            process.terminate()
            process.join()

    def hear(self, pipes: Sequence[Pipe]) -> Iterator[tuple[Pipe, Any]]:
        """The next messages of the processes, at least one; raises their errors."""
        for pipe in wait(pipes):
            assert isinstance(pipe, Pipe)
            try:
                message = pipe.recv()
            except EOFError:
                raise LoadError("a client process ended unexpectedly") from None
            if isinstance(message, LoadError):
                raise message
            yield pipe, message

    def run(self) -> Outcome:
        waiting = list(self.members)
        while waiting:
            for pipe, _ in self.hear(waiting):
                waiting.remove(pipe)
        for pipe in self.members:
            pipe.send("go")
        total = Outcome()
        counts = dict.fromkeys(self.members, 0)
        running = list(self.members)
        while running:
            for pipe, message in self.hear(running):
                if isinstance(message, Outcome):
                    running.remove(pipe)
                    total.add(message)
                    counts[pipe] = message.jobs
                else:
                    counts[pipe] = message
            show_progress(self.options, sum(counts.values()))
        return total


def perform(options: Options) -> Outcome:
    """Run one scenario; all its jobs must be accounted for."""
    with Fleet(options) as fleet:
        outcome = fleet.run()
    clear_progress()
    if outcome.jobs != options.jobs:
        raise LoadError(f"{outcome.jobs} of {options.jobs} jobs came through")
    return outcome


def show_progress(options: Options, jobs: int) -> None:
    if sys.stderr.isatty():
        print(
            f"\r{options.scenario}: {jobs:,} of {options.jobs:,} jobs ", end="", file=sys.stderr, flush=True
        )


def clear_progress() -> None:
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


@contextmanager
def own_queues(options: Options) -> Iterator[None]:
    """Try to remove the queues of this run at its end; the figures are valid even if that fails."""
    try:
        yield
    finally:
        try:
            obliterate(options)
        except (LoadError, OSError) as error:
            print(f"warning: the queues {options.prefix}-* are left behind: {error}", file=sys.stderr)


def obliterate(options: Options) -> None:
    with connect(options) as connection:
        for queue in options.queue_names():
            ask(connection, Request("Obliterate", {"queue": queue}))


# Reports


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of all values does not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def summary(outcome: Outcome) -> dict[str, Any]:
    latency = {}
    for command, values in outcome.latencies.items():
        ordered = array("d", sorted(values))
        latency[command] = {
            "requests": len(ordered),
            "p50_ms": round(percentile(ordered, 0.50) * 1000, 3),
            "p99_ms": round(percentile(ordered, 0.99) * 1000, 3),
        }
    return {
        "jobs": outcome.jobs,
        "seconds": round(outcome.seconds, 3),
        "jobs_per_second": round(outcome.jobs / outcome.seconds),
        "latency": latency,
    }


def show(options: Options, results: dict[str, Any]) -> None:
    table = Table(title=f"{options.scenario}: {results['jobs_per_second']:,} jobs/s", title_justify="left")
    table.caption = f"{results['jobs']:,} jobs in {results['seconds']:.2f} s"
    table.caption_justify = "left"
    table.add_column("request")
    for heading in ("number", "p50 ms", "p99 ms"):
        table.add_column(heading, justify="right")
    for command, row in results["latency"].items():
        table.add_row(command, f"{row['requests']:,}", f"{row['p50_ms']:.2f}", f"{row['p99_ms']:.2f}")
    Console().print(table)


def report(options: Options, results: dict[str, Any], path: str | None) -> None:
    show(options, results)
    if path:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(record(options, results), file, indent=2)
            file.write("\n")


def record(options: Options, results: dict[str, Any]) -> dict[str, Any]:
    """Everything needed to compare this run with another."""
    parameters = asdict(options)
    del parameters["token"], parameters["prefix"]
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "cpu_count": os.cpu_count(),
        "parameters": parameters,
        "results": results,
    }


# Command line


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def command_line() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scenario", choices=SCENARIOS)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=positive, default=6789)
    parser.add_argument("--token", help="authenticate every connection with this token")
    parser.add_argument("--jobs", type=positive, default=100_000, help="jobs in all (100000)")
    parser.add_argument("--connections", type=positive, default=4, help="connections in all (4)")
    parser.add_argument("--processes", type=positive, help="client processes (one for two cores)")
    parser.add_argument(
        "--depth", type=positive, help="requests in flight per connection (push 50, others 4)"
    )
    parser.add_argument("--batch", type=positive, default=100, help="jobs per batch command (100)")
    parser.add_argument("--payload", type=int, default=100, help="characters of data in each job (100)")
    parser.add_argument("--queues", type=positive, default=8, help="queues the jobs are spread over (8)")
    parser.add_argument("--json", metavar="FILE", help="write parameters and results there")
    return parser


def default_processes() -> int:
    """Half the cores, so that a server on the same machine has the other half."""
    return max(1, (os.cpu_count() or 1) // 2)


def parse(arguments: argparse.Namespace) -> Options:
    """The command line's values, with the defaults that depend on other values."""
    if arguments.batch > MAX_BATCH:
        raise LoadError(f"--batch: at most {MAX_BATCH}")
    return Options(
        scenario=arguments.scenario,
        host=arguments.host,
        port=arguments.port,
        token=arguments.token,
        connections=arguments.connections,
        depth=arguments.depth or (DEPTH_SINGLE if arguments.scenario == "push" else DEPTH_BATCH),
        batch=arguments.batch,
        payload=arguments.payload,
        queues=arguments.queues,
        jobs=arguments.jobs,
        processes=min(arguments.processes or default_processes(), arguments.connections),
        prefix=f"load-{secrets.token_hex(4)}",
    )


def main() -> int:
    arguments = command_line().parse_args()
    try:
        options = parse(arguments)
        with own_queues(options):
            if options.scenario == "drain":
                perform(replace(options, scenario="push-batch"))
            report(options, summary(perform(options)), arguments.json)
    except (LoadError, OSError) as error:
        clear_progress()
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

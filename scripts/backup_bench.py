"""What backups cost: time and size of backups and restores, and how soon `--backup` has stored a change.

    python scripts/backup_bench.py
    python scripts/backup_bench.py --waiting 1000000 --finished 5000000
    python scripts/backup_bench.py --litestream PROGRAM        Litestream as well, with copies of the files

Makes the jobs on a server of its own, and backs it up into a folder while it runs: a first time, again, and
after one job more for each hundred. Verifies and restores the last backup. The server that starts on the
restored folder ships to another one, while a client pushes, pulls and completes --rate jobs a second. Prints
Markdown.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from large_test import Client, Server, batches
from spark_bench_history import make_history

PROGRAM = str(Path(sys.executable).with_name("bunqueue"))
WAITING = [f"waiting-{number}" for number in range(8)]
BUSY = [f"busy-{number}" for number in range(8)]
MOST = 1000  # jobs in a batch
LOOK_S = 0.02  # between two looks at what is stored


class Row(NamedTuple):
    what: str
    seconds: float
    processor: float = 0.0  # seconds of the command and all that it starts
    stored: float = 0.0  # MB

    def __str__(self) -> str:
        processor = f"{self.processor:,.1f} s" if self.processor else ""
        stored = f"{self.stored:,.1f} MB" if self.stored else ""
        return f"| {self.what} | {self.seconds:,.2f} s | {processor} | {stored} |"


def megabytes(folder: Path, pattern: str = "*") -> float:
    return sum(path.stat().st_size for path in folder.rglob(pattern) if path.is_file()) / 1e6


def timed(*command: str | Path) -> tuple[float, float, str]:
    """The seconds that a command takes, those of the processor, and what it writes."""
    begin, before = time.perf_counter(), os.times()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    took, after = time.perf_counter() - begin, os.times()
    processor = after.children_user + after.children_system - before.children_user - before.children_system
    return took, processor, done.stdout


async def push(port: int, jobs: int) -> None:
    """Add jobs that wait, of 100 bytes each."""
    client = await Client.connect(port)
    each = [{"name": "send", "data": {"number": n, "text": "x" * 60}} for n in range(jobs // len(WAITING))]
    for queue in WAITING:
        await client.ask_all(batches(queue, each))


def backups(server: Server, data: Path, target: Path, more: int) -> Iterator[Row]:
    """Backs up a server that runs, and puts a restored folder into the place of its own."""

    def backup(what: str) -> Row:
        took, processor, said = timed(PROGRAM, "backup", "create", target, "--data-dir", data, "--json")
        return Row(what, took, processor, json.loads(said)["newBytes"] / 1e6)

    yield backup("the first backup")
    yield backup("another, nothing changed")
    asyncio.run(push(server.port, more))
    yield backup(f"another, after {more:,} more jobs")
    yield Row("`verify`", *timed(PROGRAM, "backup", "verify", target, "--scratch", data.parent)[:2])
    server.stop()
    restored = data.with_name("restored")
    yield Row("`restore`, with its checks", *timed(PROGRAM, "restore", target, "--data-dir", restored)[:2])
    shutil.rmtree(data)
    restored.rename(data)
    os.environ["BUNQUEUE_BACKUP"] = str(target.with_name("shipped"))
    yield Row("the next start", server.start() / 1000)


def shipping(port: int, rate: int, seconds: float) -> Iterator[Row]:
    reached, found = asyncio.run(_delays(port, rate, seconds))
    what = f"until a change is stored, at {reached:,.0f} jobs/s"
    yield Row(f"{what}: median", statistics.median(found))
    yield Row(f"{what}: at most", max(found))


async def _delays(port: int, rate: int, seconds: float) -> tuple[float, list[float]]:
    """The jobs a second that were pushed, pulled and completed; and for each moment meanwhile the seconds
    until all that was committed before was stored."""
    load, watch = await Client.connect(port), await Client.connect(port)
    seen: list[tuple[float, float]] = []  # when, and up to when all was stored then

    async def look(until: float) -> None:
        while not seen or seen[-1][1] < until:
            seen.append((time.time(), await _stored(watch)))
            await asyncio.sleep(LOOK_S)

    await look(time.time())  # it begins with a backup
    begin, done = time.time(), 0
    looking = asyncio.ensure_future(look(begin + seconds))
    while (now := time.time()) < begin + seconds:
        done += await _work(load, BUSY[done % len(BUSY)], min(int(rate * (now - begin)) - done, MOST))
    await looking
    moments = [begin + LOOK_S * number for number in range(int(seconds / LOOK_S))]
    return done / seconds, [next(at for at, until in seen if until >= each) - each for each in moments]


async def _work(client: Client, queue: str, count: int) -> int:
    """Push, pull and complete so many jobs."""
    if count <= 0:
        await asyncio.sleep(0.001)
        return 0
    await client.ask("PUSHB", queue=queue, jobs=[{"data": "x" * 100}] * count)
    pulled = await client.ask("PULLB", queue=queue, count=count, owner="bench")
    await client.ask("ACKB", ids=[job["id"] for job in pulled["jobs"]], tokens=pulled["tokens"])
    return count


async def _stored(client: Client) -> float:
    """Up to when all is stored, epoch seconds; 0 until the first backup is made."""
    lines: list[str] = (await client.ask("Prometheus"))["data"]["metrics"].splitlines()
    found = dict(line.split(" ") for line in lines if line.startswith("bunqueue_backup_"))
    is_begun = float(found["bunqueue_backup_last_base_timestamp_seconds"])
    return float(found["bunqueue_backup_last_success_timestamp_seconds"]) if is_begun else 0.0


def litestream(program: str, data: Path) -> Iterator[Row]:
    """Litestream copies the files of the server, which has stopped, and restores them."""
    target = data.with_name("litestream")
    places = {file: f"file://{target}/{file.name}" for file in sorted(data.glob("shard-*.db"))}
    for what, command in (
        ("Litestream: a first copy", lambda file: ("replicate", "-once", file)),
        ("Litestream: `restore`, without checks", lambda file: ("restore", "-o", f"{file}.restored")),
    ):
        runs = [timed(program, *command(file), place) for file, place in places.items()]
        stored = megabytes(target) if "copy" in what else 0.0
        yield Row(what, sum(run[0] for run in runs), sum(run[1] for run in runs), stored)


def measure(folder: Path, options: argparse.Namespace) -> Iterator[Row]:
    server, data = Server(str(folder), options.shards), folder / "data"
    server.start()
    try:
        make_history(server, options.finished)
        asyncio.run(push(server.port, options.waiting))
        size = megabytes(data, "shard-*.db")
        print(f"{options.waiting:,} waiting and {options.finished:,} finished jobs: ", end="")
        print(f"{size:,.0f} MB in {options.shards} shards\n")
        print("| What | Time | Processor | Stored |\n|---|---|---|---|")
        yield from backups(server, data, folder / "target", (options.waiting + options.finished) // 100)
        yield from shipping(server.port, options.rate, options.seconds)
    finally:
        server.stop()
    if options.litestream:
        yield from litestream(options.litestream, data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--waiting", type=int, default=200_000)
    parser.add_argument("--finished", type=int, default=1_000_000)
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--rate", type=int, default=20_000, help="jobs a second while changes are shipped")
    parser.add_argument("--seconds", type=float, default=20.0, help="of that")
    parser.add_argument("--litestream", metavar="PROGRAM")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for row in measure(Path(folder), options):
            print(row, flush=True)


if __name__ == "__main__":
    main()

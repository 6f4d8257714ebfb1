"""Measures how long a PUSH takes while a server has other work, and draws it.

    python scripts/half_load.py --minutes 10            prints the figures
    python scripts/half_load.py --minutes 10 --write    also writes docs/images/half-load.svg

A server of its own has a queue of FINISHED finished jobs. All the time, one client pushes, pulls and
completes jobs in batches of 100 for half of the time, one searches the finished jobs by their data, one lists
them by the thousand, and a snapshot of the data folder is made every 20 seconds. Beside them, one client
sends a PUSH every 5 ms, and measures how long the reply takes.
"""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from math import log10
from multiprocessing.context import SpawnProcess
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

from bench_check import port_of
from bench_loads import DATA, frame, messages

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "images" / "half-load.svg"
FINISHED = 100_000
PUSH_EVERY_S = 0.005
SNAPSHOT_EVERY_S = 20.0
BUCKETS = 60  # of the picture
GOAL_MS = 10.0
COLOURS = {"p50": "#2a9d7f", "p99": "#e07a3f", "longest": "#7c8db5"}
LEFT, TOP, WIDTH, HEIGHT = 60, 50, 780, 220
LOWEST_MS, HIGHEST_MS = 0.1, 1000.0

Sample = tuple[float, float]  # when a PUSH was sent, and how many ms it took


class Client:
    """One connection."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        self._socket.close()

    def ask(self, command: dict[str, Any]) -> dict[str, Any]:
        self._socket.sendall(frame({**command, "reqId": 1}))
        data = b""
        while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
            more = self._socket.recv(1 << 20)
            if not more:
                raise SystemExit("the server has closed the connection")
            data += more
        (reply,) = messages(data)
        if not reply["ok"]:
            raise SystemExit(f"{command['cmd']} is refused: {reply}")
        return reply


def work_off(client: Client, queue: str, count: int = 100) -> None:
    """Push, pull and complete a batch."""
    client.ask({"cmd": "PUSHB", "queue": queue, "jobs": [{"name": "send", "data": DATA}] * count})
    pulled = client.ask({"cmd": "PULLB", "queue": queue, "count": count, "owner": "w", "lockTtl": 60_000})
    ids = [job["id"] for job in pulled["jobs"]]
    client.ask({"cmd": "ACKB", "ids": ids, "tokens": pulled["tokens"], "results": [1] * len(ids)})


def drain(port: int) -> None:
    """Batches for half of the time."""
    client = Client(port)
    while True:
        begun = time.monotonic()
        work_off(client, "drained")
        time.sleep(time.monotonic() - begun)


def search(port: int) -> None:
    client = Client(port)
    while True:
        client.ask(
            {"cmd": "FindJobs", "queue": "finished", "data": {"to": "nobody@example.com"}, "limit": 10}
        )
        time.sleep(0.2)


def browse(port: int) -> None:
    client, offset = Client(port), 0
    while True:
        client.ask(
            {"cmd": "GetJobs", "queue": "finished", "state": "completed", "limit": 1000, "offset": offset}
        )
        offset = (offset + 1000) % FINISHED
        time.sleep(0.2)


def push(port: int, seconds: float, results: Queue[list[Sample]]) -> None:
    """Measure."""
    client, samples, begun = Client(port), [], time.monotonic()
    while (at := time.monotonic()) < begun + seconds:
        client.ask({"cmd": "PUSH", "queue": "measured", "name": "send", "data": DATA})
        samples.append((at, 1000 * (time.monotonic() - at)))
        time.sleep(max(0.0, at + PUSH_EVERY_S - time.monotonic()))
    results.put(samples)


@contextmanager
def server(folder: Path) -> Iterator[int]:
    command = [sys.executable, "-m", "bunqueue", "start", "--host", "127.0.0.1", "--tcp-port", "0"]
    command += ["--http-port", "0", "--data-dir", str(folder), "--shards", "2", "--log-level", "error"]
    started = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert started.stdout is not None
    try:
        yield port_of(started.stdout.readline())
    finally:
        started.terminate()
        started.wait()
        started.stdout.close()


def measured(minutes: float) -> tuple[list[Sample], list[Sample]]:
    """The pushes, and the snapshots: when each began, and how many ms it took."""
    processes = multiprocessing.get_context("spawn")
    snapshots: list[Sample] = []
    with tempfile.TemporaryDirectory() as folder, server(Path(folder, "data")) as port:
        client = Client(port)
        for _ in range(FINISHED // 1000):
            work_off(client, "finished", 1000)
        client.close()
        results: Queue[list[Sample]] = processes.Queue()
        beside: Sequence[Callable[[int], None]] = (drain, search, browse)
        others: list[SpawnProcess] = [processes.Process(target=each, args=(port,)) for each in beside]
        pushing = processes.Process(target=push, args=(port, 60 * minutes, results))
        for each in (*others, pushing):
            each.start()
        try:
            while results.empty() and pushing.is_alive():
                snapshots.append(snapshot(Path(folder, "data"), Path(folder, "copy")))
                pushing.join(SNAPSHOT_EVERY_S)
                if not all(each.is_alive() for each in others):
                    raise SystemExit("a client has ended")
            return results.get(timeout=10), snapshots
        finally:
            for each in (*others, pushing):
                each.kill()
                each.join()


def snapshot(data: Path, copy: Path) -> Sample:
    at = time.monotonic()
    command = [sys.executable, "-m", "bunqueue", "snapshot", "--data-dir", str(data), "--out", str(copy)]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(copy)
    return at, 1000 * (time.monotonic() - at)


def quantiles(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        "p50": statistics.median(ordered),
        "p99": ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))],
        "longest": ordered[-1],
    }


def picture(samples: list[Sample], snapshots: list[Sample]) -> str:
    """The quantiles of each part of the time as an SVG."""
    first, last = samples[0][0], samples[-1][0]
    span = (last - first) / BUCKETS
    buckets: list[list[float]] = [[] for _ in range(BUCKETS)]
    for at, ms in samples:
        buckets[min(BUCKETS - 1, int((at - first) / span))].append(ms)
    found = [quantiles(bucket) for bucket in buckets if bucket]
    step = WIDTH / max(1, len(found) - 1)
    whole = quantiles([ms for _, ms in samples])
    title = f"{len(samples):,} PUSHes in {(last - first) / 60:.0f} min, ms: " + ", ".join(
        f"{name} {value:.1f}" for name, value in whole.items()
    )
    width, height = LEFT + WIDTH + 90, TOP + HEIGHT + 40
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
        f' height="{height}" font-family="system-ui, sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="24" fill="#333333">{title}</text>',
    ]
    for ms in (0.1, 1, 10, 100, 1000):
        y = _height(ms)
        dash = ' stroke-dasharray="4 3"' if ms == GOAL_MS else ""
        lines.append(f'<path d="M {LEFT} {y:.1f} h {WIDTH}" stroke="#cccccc"{dash}/>')
        lines.append(
            f'<text x="{LEFT - 8}" y="{y + 4:.1f}" fill="#333333" text-anchor="end">{ms:g} ms</text>'
        )
    for at, took in snapshots:
        x = LEFT + max(0.0, at - first) / (last - first) * WIDTH
        long = took / 1000 / (last - first) * WIDTH
        place = f'x="{x:.1f}" y="{TOP + HEIGHT + 4}" width="{long:.1f}" height="6"'
        lines.append(f'<rect {place} fill="#555555"/>')
    lines.append(f'<text x="{LEFT}" y="{TOP + HEIGHT + 26}" fill="#333333">snapshots</text>')
    for row, (name, colour) in enumerate(COLOURS.items()):
        points = [(LEFT + place * step, _height(each[name])) for place, each in enumerate(found)]
        path = "".join(f"L {x:.1f} {y:.1f} " for (_, _), (x, y) in pairwise(points))
        begin = f"M {points[0][0]:.1f} {points[0][1]:.1f} "
        lines.append(f'<path d="{begin}{path}" stroke="{colour}" stroke-width="1.5" fill="none"/>')
        lines.append(f'<text x="{LEFT + WIDTH + 10}" y="{TOP + 20 + 18 * row}" fill="{colour}">{name}</text>')
    return "\n".join([*lines, "</svg>\n"])


def _height(ms: float) -> float:
    """The place of a time, on a logarithmic scale."""
    within = min(max(ms, LOWEST_MS), HIGHEST_MS)
    return TOP + HEIGHT * (1 - log10(within / LOWEST_MS) / log10(HIGHEST_MS / LOWEST_MS))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--write", action="store_true", help="write the picture of the documentation")
    options = parser.parse_args()
    samples, snapshots = measured(options.minutes)
    found = quantiles([ms for _, ms in samples])
    print(f"{len(samples):,} PUSHes:", ", ".join(f"{name} {ms:.2f} ms" for name, ms in found.items()))
    print(f"{len(snapshots)} snapshots, {max(took for _, took in snapshots):.0f} ms at most")
    if options.write:
        PICTURE.write_text(picture(samples, snapshots), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

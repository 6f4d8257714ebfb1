"""Measure this server and the reference server side by side, scenario by scenario.

    python scripts/compare.py --bench wirebench.py --reference DIR [--rounds 5] [--json FILE]

DIR is a folder where ``npm install bun bunqueue`` was run.  Both servers run at the same time on
ports of their own and are loaded in turn, so that both see the same noise; the figures are medians
over the rounds, the ratio is the median of the rounds' ratios.  ``--bench`` is a load generator that
is called as ``wirebench.py PORT SCENARIO --n JOBS`` and prints ``jobs/s=NUMBER``, or for ``single``
``p50=NUMBERus``.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

# scenario -> jobs for this server, jobs for the reference, further arguments, what is compared
SCENARIOS: dict[str, tuple[int, int, list[str], str]] = {
    "push": (100_000, 20_000, [], "jobs/s"),
    "pushb": (300_000, 60_000, [], "jobs/s"),
    "drain": (100_000, 15_000, [], "jobs/s"),
    "pullack": (60_000, 10_000, [], "jobs/s"),
    "single": (3_000, 2_000, ["--conns", "1"], "p50"),
}
NEEDED = {"push": 6.0, "pushb": 6.0, "drain": 12.0, "pullack": 6.0, "single": 1.0}


@dataclass
class Series:
    """The measurements of one scenario, round by round."""

    ours: list[float] = field(default_factory=list)
    reference: list[float] = field(default_factory=list)

    def ratio(self, unit: str) -> float:
        pairs = zip(self.ours, self.reference, strict=True)
        return statistics.median(b / a if unit == "p50" else a / b for a, b in pairs)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until a server listens there."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    sys.exit(f"no server came up on port {port}")


def start_ours(port: int, folder: str, shards: int) -> subprocess.Popen[bytes]:
    command = [str(Path(sys.executable).with_name("bunqueue")), "start", "--http-port", "0"]
    command += ["--tcp-port", str(port), "--data-dir", f"{folder}/ours", "--shards", str(shards)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def start_reference(port: int, folder: str, where: Path) -> subprocess.Popen[bytes]:
    binaries = where / "node_modules" / ".bin"
    command = [str(binaries / "bun"), str(binaries / "bunqueue"), "start", "--tcp-port", str(port)]
    command += ["--http-port", str(free_port()), "--data-path", f"{folder}/reference.db"]
    environment = {**os.environ, "RATE_LIMIT_MAX_REQUESTS": "1000000000"}
    return subprocess.Popen(
        command, env=environment, cwd=where, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def measure(bench: Path, port: int, scenario: str, jobs: int, more: list[str], unit: str) -> float:
    command = [sys.executable, str(bench), str(port), scenario, "--n", str(jobs), *more]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(rf"{re.escape(unit)}=(\d+)", done.stdout)
    if done.returncode or not found:
        sys.exit(f"{scenario} on port {port} failed: {done.stdout}{done.stderr}")
    return float(found.group(1))


def report(results: dict[str, Series]) -> None:
    print(f"\n{'scenario':10} {'ours':>12} {'reference':>12} {'ratio':>7} {'aim':>6}")
    for name, series in results.items():
        unit = SCENARIOS[name][3]
        shown = "µs" if unit == "p50" else "/s"
        ours, other = statistics.median(series.ours), statistics.median(series.reference)
        ratio = series.ratio(unit)
        print(f"{name:10} {ours:>10,.0f}{shown} {other:>10,.0f}{shown} {ratio:>6.1f}x {NEEDED[name]:>5.0f}x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--bench", type=Path, required=True)
    parser.add_argument("--reference", type=Path, required=True, help="folder with node_modules")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--only", nargs="*", default=list(SCENARIOS), choices=list(SCENARIOS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = {name: Series() for name in options.only}
    with tempfile.TemporaryDirectory() as folder:
        ports = free_port(), free_port()
        servers = [start_ours(ports[0], folder, options.shards)]
        servers.append(start_reference(ports[1], folder, options.reference))
        try:
            for port, server in zip(ports, servers, strict=True):
                wait_for(port, server)
            for number in range(options.rounds):
                for name, series in results.items():
                    ours, theirs, more, unit = SCENARIOS[name]
                    series.ours.append(measure(options.bench, ports[0], name, ours, more, unit))
                    series.reference.append(measure(options.bench, ports[1], name, theirs, more, unit))
                    print(
                        f"round {number + 1} {name}: {series.ours[-1]:,.0f} | {series.reference[-1]:,.0f}",
                        flush=True,
                    )
        finally:
            for server in servers:
                server.terminate()
            for server in servers:
                server.wait(20)
    report(results)
    if options.json:
        options.json.write_text(json.dumps({k: vars(v) for k, v in results.items()}, indent=2))


if __name__ == "__main__":
    main()

"""Connects listeners to a server's HTTP gateway, some of which never read, and measures their cost.

    python scripts/listeners.py                        # starts a server of its own
    python scripts/listeners.py --listeners 200 --deaf 50 --jobs 300000

Pushes over TCP without any listener and with all of them, in turns that change from round to round, and
prints each round, the gateway's CPU time and memory in it, and the median of the ratios. The exit status is 1
if the push got slower by more than --allowed, or the gateway's memory grew by more than --memory. Every other
listener reads Server-Sent Events, the rest a WebSocket; the deaf ones among them are connections that never
read. Some rounds differ by a tenth without any listener (--listeners 0 --deaf 0).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from websockets.asyncio.client import connect

ROOT = Path(__file__).resolve().parent.parent
READY = re.compile(r"bunqueue ready tcp=\S+:(\d+) http=\S+:(\d+) ")
REQUEST = b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n"
MIB = 1 << 20


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--listeners", type=int, default=200, help="how many there are (200)")
    parser.add_argument("--deaf", type=int, default=50, help="how many of them never read (50)")
    parser.add_argument("--jobs", type=int, default=200_000, help="jobs a round (200000)")
    parser.add_argument("--rounds", type=int, default=9, help="pairs of measurements (9)")
    parser.add_argument(
        "--allowed", type=float, default=0.10, help="by how much the push may be slower (0.10)"
    )
    parser.add_argument("--memory", type=int, default=100, help="MiB by which the gateway may grow (100)")
    return parser.parse_args()


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def gateway_of(router: int) -> int:
    """The process id of a server's gateway."""
    children = Path(f"/proc/{router}/task/{router}/children").read_text().split()
    lines = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children}
    return next(int(pid) for pid, line in lines.items() if b"bunqueue gateway" in line)


@asynccontextmanager
async def server(folder: str) -> AsyncIterator[tuple[int, int, int]]:
    """A server; its TCP port, its HTTP port and the process id of its gateway."""
    command = [str(Path(sys.executable).with_name("bunqueue")), "start", "--data-dir", folder]
    command += ["--tcp-port", "0", "--http-port", str(free_port()), "--log-level", "error"]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        ready = READY.match((await process.stdout.readline()).decode())
        if ready is None:
            sys.exit("the server did not start; its log says why")
        gateway = gateway_of(process.pid)
        yield int(ready[1]), int(ready[2]), gateway
    finally:
        process.terminate()
        await process.wait()


def resident(pid: int) -> int:
    """Bytes of memory of a process."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) * 1024 if found else 0


def cpu_s(pid: int) -> float:
    """Seconds of CPU time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def push(port: int, jobs: int) -> float:
    """Jobs a second, as scripts/load_test.py measures them."""
    with tempfile.NamedTemporaryFile(suffix=".json") as results:
        command = [sys.executable, str(ROOT / "scripts" / "load_test.py"), "push", "--port", str(port)]
        command += ["--jobs", str(jobs), "--json", results.name]
        process = await asyncio.create_subprocess_exec(
            *command, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        _, error = await process.communicate()
        if process.returncode:
            sys.exit(f"the load test failed:\n{error.decode()}")
        return float(json.load(results)["results"]["jobs_per_second"])


async def listen(port: int, number: int, heard: list[int]) -> None:
    """Read events until cancelled; count the bytes."""
    if number % 2:
        async with connect(f"ws://127.0.0.1:{port}/ws", proxy=None, max_size=None) as websocket:
            await websocket.send('{"cmd": "Subscribe"}')
            while True:
                heard[number] += len(await websocket.recv())
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(REQUEST)
    while data := await reader.read(MIB):
        heard[number] += len(data)


def deaf(port: int) -> socket.socket:
    """A listener that never reads."""
    sock = socket.create_connection(("127.0.0.1", port))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.sendall(REQUEST)
    return sock


@asynccontextmanager
async def listeners(port: int, count: int, silent: int) -> AsyncIterator[list[int]]:
    """All listeners, for as long as the block runs; yields the number of bytes that each has received."""
    heard = [0] * (count - silent)
    tasks = [asyncio.create_task(listen(port, number, heard)) for number in range(count - silent)]
    sockets = [deaf(port) for _ in range(silent)]
    await asyncio.sleep(2)  # until all are connected
    try:
        yield heard
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for sock in sockets:
            sock.close()


async def measure(options: argparse.Namespace) -> int:
    alone, together, grown = [], [], 0
    with tempfile.TemporaryDirectory() as folder:
        async with AsyncExitStack() as stack:
            tcp, http, gateway = await stack.enter_async_context(server(folder))
            before = resident(gateway)
            for number in range(options.rounds):
                if number % 2 == 0:
                    alone.append(await push(tcp, options.jobs))
                async with listeners(http, options.listeners, options.deaf) as heard:
                    begun, used = time.monotonic(), cpu_s(gateway)
                    together.append(await push(tcp, options.jobs))
                    share = (cpu_s(gateway) - used) / (time.monotonic() - begun)
                    grown = max(grown, resident(gateway) - before)
                if number % 2:
                    alone.append(await push(tcp, options.jobs))
                cost = f"{share:.0%} of a core and grew by {grown / MIB:,.1f} MiB"
                print(
                    f"round {number + 1}: {alone[-1]:,.0f} jobs/s alone, {together[-1]:,.0f} with listeners, "
                    f"who heard {sum(heard) / MIB:,.1f} MiB; the gateway took {cost}",
                    flush=True,
                )
    ratio = statistics.median(each / other for each, other in zip(together, alone, strict=True))
    who = f"{options.listeners} listeners, {options.deaf} of them deaf"
    print(f"push with {who}: {ratio:.1%} of the push alone")
    return 1 if ratio < 1 - options.allowed or grown > options.memory * MIB else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(measure(arguments())))

"""The cost of large numbers: starts a server in a temporary folder and measures it scenario by scenario.

    python scripts/large_test.py                        all but `finished`
    python scripts/large_test.py delayed cron           only these
    python scripts/large_test.py finished --jobs 5000000

Scenarios:

    delayed      100,000 delayed jobs that become due within a second
    queues       10,000 queues with a job each
    cron         10,000 schedules that are due in the same second
    keys         10,000 unique keys, each pushed twice
    flow         a flow of 1,000 children over 8 queues, processed
    slices       a queue of 200,000 jobs: a page, Drain, Clean, Obliterate
    finished     --jobs jobs processed, then a restart

During each step, another connection keeps sending small requests to the same shard: `worst` is the slowest of
them, which is how long the step kept others waiting.  Times in ms.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, Self

import msgpack

LENGTH = struct.Struct(">I")
IN_FLIGHT = 40
Fields = dict[str, Any]


class Client:
    """A connection that sends commands one after the other, many in flight."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def connect(cls, port: int) -> Self:
        client = cls(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 26))
        await client.ask("Hello", protocolVersion=3)
        return client

    async def ask(self, command: str, **fields: Any) -> Fields:
        return (await self.ask_all([{"cmd": command, **fields}]))[0]

    async def ask_all(self, commands: Iterable[Fields]) -> list[Fields]:
        """The replies in order.  Exits if one is an error."""
        replies: list[Fields] = []
        waiting = 0
        for command in commands:
            payload = msgpack.packb({**command, "reqId": waiting})
            self._writer.write(LENGTH.pack(len(payload)) + payload)
            waiting += 1
            if waiting - len(replies) >= IN_FLIGHT:
                replies.append(await self._reply())
        while len(replies) < waiting:
            replies.append(await self._reply())
        return sorted(replies, key=lambda reply: int(reply["reqId"]))

    async def _reply(self) -> Fields:
        (size,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
        reply: Fields = msgpack.unpackb(await self._reader.readexactly(size))
        if not reply.get("ok"):
            sys.exit(f"refused: {reply}")
        return reply


class Server:
    """A server of our own on a folder; may be restarted."""

    def __init__(self, folder: str, shards: int) -> None:
        self._command = [str(Path(sys.executable).with_name("bunqueue")), "start", "--http-port", "0"]
        self._command += ["--tcp-port", "0", "--data-dir", f"{folder}/data", "--shards", str(shards)]
        self._process: subprocess.Popen[str] | None = None
        self.port = 0

    def start(self) -> float:
        """Start it; the ms until it is ready."""
        begin = time.perf_counter()
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._process.stdout is not None
        ready = re.search(r"tcp=\S+:(\d+)", self._process.stdout.readline())
        if ready is None:
            sys.exit("the server does not start: " + " ".join(self._command))
        self.port = int(ready.group(1))
        return (time.perf_counter() - begin) * 1000

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60)
            self._process = None

    def memory(self) -> float:
        """Resident MB of router and shards together."""
        assert self._process is not None
        pid = self._process.pid
        pids = [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
        pages = sum(int(Path(f"/proc/{each}/statm").read_text().split()[1]) for each in pids)
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


class Bench:
    """Measures steps on one server."""

    def __init__(self, server: Server, client: Client, canary: Client) -> None:
        self.server, self.client, self._canary = server, client, canary

    async def step(self, what: str, work: Awaitable[Any], count: int = 0, queue: str = "q") -> Any:
        """Await ``work``; print how long it took, and how long others on the queue's shard had to wait."""
        worst = 0.0
        over = False

        async def watch() -> None:
            nonlocal worst
            while not over:
                begin = time.perf_counter()
                await self._canary.ask("IsPaused", queue=queue)
                worst = max(worst, time.perf_counter() - begin)
                await asyncio.sleep(0.001)

        watching = asyncio.ensure_future(watch())
        begin = time.perf_counter()
        result = await work
        took = time.perf_counter() - begin
        over = True
        await watching
        rate = f"{count / took:>10,.0f}/s" if count else " " * 12
        print(f"  {what:44} {took * 1000:>10,.1f} ms {rate}   worst {worst * 1000:>7,.1f} ms", flush=True)
        return result

    async def until(self, queues: list[str], waiting: int) -> None:
        """Wait until this many jobs wait in these queues."""
        asks: list[Fields] = [{"cmd": "GetJobCounts", "queue": queue} for queue in queues]
        while sum(reply["counts"]["waiting"] for reply in await self.client.ask_all(asks)) < waiting:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async def work_off(self, queues: list[str], size: int = 1000) -> int:
        """Pull and complete all ready jobs of these queues."""
        done = 0
        for queue in queues:
            while jobs := (await self.client.ask("PULLB", queue=queue, count=size))["jobs"]:
                await self.client.ask("ACKB", ids=[job["id"] for job in jobs])
                done += len(jobs)
        return done


def batches(queue: str, jobs: list[Fields], size: int = 1000) -> list[Fields]:
    parts = (jobs[start : start + size] for start in range(0, len(jobs), size))
    return [{"cmd": "PUSHB", "queue": queue, "jobs": part} for part in parts]


async def delayed(bench: Bench) -> None:
    plain = batches("plain", [{"data": number} for number in range(100_000)])
    await bench.step("100,000 plain jobs, to compare", bench.client.ask_all(plain), 100_000, "plain")
    jobs = [{"data": number, "delay": 8_000 + number % 1000} for number in range(100_000)]
    await bench.step("100,000 delayed jobs pushed", bench.client.ask_all(batches("q", jobs)), 100_000)
    await bench.step("counts", bench.client.ask("GetJobCounts", queue="q"))
    await bench.step(
        "a page of delayed ones", bench.client.ask("GetJobs", queue="q", state="delayed", limit=100)
    )

    await bench.step("until all are due", bench.until(["q"], 100_000))
    await bench.step("worked off", bench.work_off(["q"]), 100_000)


async def queues(bench: Bench) -> None:
    names = [f"q-{number}" for number in range(10_000)]
    pushes = [{"cmd": "PUSH", "queue": name, "data": 1} for name in names]
    await bench.step("a job into each of 10,000 new queues", bench.client.ask_all(pushes), 10_000)
    await bench.step("another one into each", bench.client.ask_all(pushes), 10_000)
    await bench.step("ListQueues", bench.client.ask("ListQueues"))
    await bench.step("Stats", bench.client.ask("Stats"))
    await bench.step("Prometheus", bench.client.ask("Prometheus"))
    await bench.step("DashboardQueues", bench.client.ask("DashboardQueues"))
    await bench.step("worked off", bench.work_off(names, 10), 20_000)


async def cron(bench: Bench) -> None:
    every = 20_000
    adds: list[Fields] = [
        {"cmd": "Cron", "name": f"c{number}", "queue": f"q{number % 8}", "repeatEvery": every, "data": number}
        for number in range(10_000)
    ]
    begin = time.perf_counter()
    await bench.step("10,000 schedules added", bench.client.ask_all(adds), 10_000, "q0")
    await bench.step("CronList", bench.client.ask("CronList"), queue="q0")
    await bench.step("one of them", bench.client.ask("CronGet", name="c77"), queue="q0")

    names = [f"q{number}" for number in range(8)]
    await bench.step("until each has pushed a job", bench.until(names, 10_000), queue="q0")
    print(f"  the last job came {time.perf_counter() - begin - every / 1000:.2f} s after the first was due")


async def keys(bench: Bench) -> None:
    pushes = [{"cmd": "PUSH", "queue": "q", "data": 1, "uniqueKey": f"k{number}"} for number in range(10_000)]
    await bench.step("10,000 jobs with unique keys", bench.client.ask_all(pushes), 10_000)
    again = await bench.step("each of them again", bench.client.ask_all(pushes), 10_000)
    assert len({reply["id"] for reply in again}) == 10_000
    await bench.step("worked off", bench.work_off(["q"]), 10_000)
    own = [{"cmd": "PUSH", "queue": "q", "data": 1, "jobId": f"own{number}"} for number in range(10_000)]
    await bench.step("10,000 jobs with own ids", bench.client.ask_all(own), 10_000)
    await bench.step("each of them again", bench.client.ask_all(own), 10_000)


async def flow(bench: Bench) -> None:
    names = [f"q{number}" for number in range(8)]
    jobs: list[Fields] = [
        {
            "id": f"child{number}",
            "queue": names[number % 8],
            "input": {"data": {"n": number}, "parentId": "parent"},
        }
        for number in range(1000)
    ]
    children = [job["id"] for job in jobs]
    parent: Fields = {"data": {}, "dependsOn": children, "childrenIds": children}
    jobs.append({"id": "parent", "queue": "parents", "input": parent})
    await bench.step(
        "a flow of 1,000 children over 8 queues", bench.client.ask("PUSHF", jobs=jobs), 1000, "parents"
    )
    await bench.step("the children worked off", bench.work_off(names, 50), 1000, "parents")
    pulled = await bench.step(
        "the parent pulled", bench.client.ask("PULL", queue="parents", timeout=5000), queue="parents"
    )
    assert pulled["job"]["id"] == "parent"
    got = await bench.step(
        "its children's values", bench.client.ask("GetChildrenValues", id="parent"), queue="parents"
    )
    print(f"  {len(got['data']['values'])} values")


async def slices(bench: Bench) -> None:
    jobs = [{"data": {"n": number}} for number in range(200_000)]
    pushed = batches("q", jobs)
    await bench.step("200,000 jobs pushed", bench.client.ask_all(pushed), 200_000)
    await bench.step("a page at 150,000", bench.client.ask("GetJobs", queue="q", offset=150_000, limit=100))
    await bench.step("Drain", bench.client.ask("Drain", queue="q"), 200_000)
    await bench.client.ask_all(pushed)
    await bench.work_off(["q"])
    await bench.step(
        "Clean of 200,000 completed",
        bench.client.ask("Clean", queue="q", grace=0, limit=200_000, state="completed"),
        200_000,
    )
    await bench.client.ask_all(pushed)
    await bench.step("Obliterate", bench.client.ask("Obliterate", queue="q"), 200_000)


async def finished(bench: Bench, jobs: int) -> None:
    names = [f"q{number}" for number in range(8)]
    left = jobs
    begin = time.perf_counter()
    while left > 0:
        size = min(left, 80_000)
        some = [{"data": {"n": number}} for number in range(size // 8)]
        for name in names:
            await bench.client.ask_all(batches(name, some))
        await bench.work_off(names)
        left -= size
        print(f"\r  {jobs - left:,} of {jobs:,} jobs finished", end="", file=sys.stderr)
    print(f"\r  {jobs:,} jobs pushed and worked off in {time.perf_counter() - begin:.0f} s")
    print(f"  memory {bench.server.memory():,.0f} MB")
    bench.server.stop()
    print(f"  ready again after {bench.server.start():,.0f} ms, memory {bench.server.memory():,.0f} MB")
    bench.client = await Client.connect(bench.server.port)
    counts = await bench.client.ask("GetJobCounts", queue="q0")
    print(f"  {counts['counts']}")


SCENARIOS: dict[str, Callable[[Bench], Awaitable[None]]] = {
    each.__name__: each for each in (delayed, queues, cron, keys, flow, slices)
}


async def run(name: str, options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        server = Server(folder, options.shards)
        server.start()
        try:
            print(f"{name}")
            bench = Bench(server, await Client.connect(server.port), await Client.connect(server.port))
            await (finished(bench, options.jobs) if name == "finished" else SCENARIOS[name](bench))
            if name != "finished":
                print(f"  memory {server.memory():,.0f} MB")
        finally:
            server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help="default: all but finished")
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=1_000_000, help="of the scenario finished")
    options = parser.parse_args()
    for name in options.scenarios or SCENARIOS:
        if name != "finished" and name not in SCENARIOS:
            parser.error(f"there is no scenario {name!r}; there are {', '.join([*SCENARIOS, 'finished'])}")
    for name in options.scenarios or SCENARIOS:
        asyncio.run(run(name, options))


if __name__ == "__main__":
    main()

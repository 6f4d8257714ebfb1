"""SIGKILLs of workers, shards, routers and whole servers while flows with names run over several shards.

Diamonds, flows to which their own jobs add more, and batches that are open while they run, are added all the
time until the last kill is over.  Then every flow has come to its end, each job has ended once, and what
gathers a batch has run after all of it.  KILL_SEED repeats their choice.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from support.budget import a_seed, budget
from support.folders import opened
from support.naming import queue_on
from support.server import StartServer, quiet_port
from support.waiting import eventually
from support.worker_kills import Workers, kill_at_random, persistently

from bunqueue import AsyncFlowProducer, AsyncQueue, CommandFailed, FlowJob, JobFailed
from shardproc.storage.event_log import read

SHARDS = 4
QUEUES = [queue_on(shard, "flow", SHARDS) for shard in range(SHARDS)]
AT_ONCE = 8
PATIENCE = 600_000
"""ms for one flow: a job that has lost its worker waits until its lock expires."""
ENDED = {"completed", "failed", "cancelled"}
LENGTH = 4  # of a flow that grows
SENT = 12  # jobs of a batch
TRIES: Any = {"max_attempts": 50, "backoff": 50}

PROGRAM = """
import asyncio, os, sys
from bunqueue import ActiveJob, AsyncFlowProducer, CommandFailed, FlowJob, Unrecoverable, Worker

URL, LOG, *QUEUES = sys.argv[1:]
file = os.open(LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
flows = AsyncFlowProducer(url=URL)


def note(*words):
    os.write(file, (" ".join(map(str, words)) + "\\n").encode())


async def node(job: ActiveJob) -> int:
    flow, name = job.id.split(":")
    note("ran", flow, name)
    if name.startswith("on-"):
        info = await flows.graph(flow).info()
        live = [each.name for each in info.nodes if each.state in ("waiting", "active", "waiting-children")]
        if [each for each in live if not each.startswith("on-")]:
            note("early", flow, name, live)
    await asyncio.sleep(0.01)  # so that kills meet jobs
    if job.data["adds"]:
        made = {
            each["name"]: FlowJob("node", each["data"], queue=each["queue"], max_attempts=50, backoff=50)
            .after(*each["after"])
            for each in job.data["adds"]
        }
        try:
            await flows.graph(flow).add(made)
        except CommandFailed as error:
            if error.server_code != "FLOW_EXISTS":  # it was added, but the answer was lost
                raise
    if job.data["fails"]:
        raise Unrecoverable("it is down")
    return 1 + sum((await flows.results()).values())


async def main():
    async with asyncio.TaskGroup() as tasks:
        for queue in QUEUES:
            tasks.create_task(Worker(queue, node, url=URL, concurrency=5, lock_ttl=6_000).run())


asyncio.run(main())
"""


def spec(name: str, after: list[str], adds: list[Any] | None = None) -> dict[str, Any]:
    """A job that another one adds."""
    queue = QUEUES[sum(name.encode()) % SHARDS]
    return {"name": name, "queue": queue, "after": after, "data": {"adds": adds or [], "fails": False}}


def growing(number: int = 0) -> list[dict[str, Any]]:
    """A job that adds the next one, and one beside it; the last of them adds one that waits for all."""
    if number == LENGTH:
        end = spec("end", [f"side-{each}" for each in range(1, LENGTH)] + [f"link-{LENGTH}"])
        return [spec(f"link-{number}", [f"link-{number - 1}"], [end])]
    after = [f"link-{number - 1}"] if number else []
    found = [spec(f"link-{number}", after, growing(number + 1))]
    return [*found, spec(f"side-{number}", after)] if number else found


@dataclass
class Load:
    """Flows, some of them at a time, until `over`."""

    flows: AsyncFlowProducer
    queue: AsyncQueue
    over: asyncio.Event = field(default_factory=asyncio.Event)
    numbers: count[int] = field(default_factory=count)
    ends: dict[str, str] = field(default_factory=dict)  # job -> how it has to end
    added: Counter[str] = field(default_factory=Counter)

    async def run(self) -> None:
        await asyncio.gather(*(self._some() for _ in range(AT_ONCE)))

    async def _some(self) -> None:
        while not self.over.is_set():
            number = next(self.numbers)
            kind = ("diamond", "growing", "batch", "broken")[number % 4]
            await {"diamond": self._diamond, "growing": self._growing}.get(kind, self._batch)(
                f"{kind}-{number}"
            )
            self.added[kind] += 1

    async def _diamond(self, flow: str) -> None:
        graph: Mapping[str, list[str]] = {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"], "e": ["d", "a"]}
        jobs = {name: self._job(name).after(*after) for name, after in graph.items()}
        await self._once(lambda: self.flows.graph(flow).start(jobs))
        assert await self._result(flow, "e") == 7
        self._completed(flow, graph)

    async def _growing(self, flow: str) -> None:
        (first,) = growing()
        job = FlowJob[int]("node", first["data"], queue=first["queue"], **TRIES)
        await self._once(lambda: self.flows.graph(flow).start({first["name"]: job}))
        links, sides = range(LENGTH + 1), range(1, LENGTH)
        await self._until_there(flow, "end")
        assert await self._result(flow, "end") == 1 + sum(each + 1 for each in sides) + LENGTH + 1
        self._completed(
            flow, ["end", *(f"link-{each}" for each in links), *(f"side-{each}" for each in sides)]
        )

    async def _batch(self, flow: str) -> None:
        """It is open while it runs, and one of its jobs adds another one.  If it is broken, one job fails."""
        batch, fails = self.flows.batch(flow), int(flow.startswith("broken"))
        gather = {"on_complete": self._job("on-complete"), "on_success": self._job("on-success")}
        await self._once(lambda: batch.open(**gather))
        names = [f"send-{number}" for number in range(SENT)]
        for start in range(0, SENT, SENT // 3):
            jobs = {name: self._job(name) for name in names[start : start + SENT // 3]}
            if start == 0:
                jobs["adds"] = self._job("adds", adds=[spec("added", [])])
                jobs["bad"] = self._job("bad", fails=bool(fails))
            await self._once(lambda jobs=jobs: batch.add(jobs))  # type: ignore[misc]
        assert await self._result(flow, "adds") == 1
        assert await persistently(batch.close) == SENT + 3
        assert await self._result(flow, "on-complete") == 1 + SENT + 3 - fails
        self._completed(flow, [*names, "adds", "added", "on-complete"])
        self.ends |= {f"{flow}:{name}": "failed" if fails else "completed" for name in ("bad", "on-success")}
        if fails:
            with suppress(JobFailed):
                raise AssertionError(await self._result(flow, "on-success"))
        else:
            assert await self._result(flow, "on-success") == 1 + SENT + 3

    def _job(self, name: str, *, adds: list[Any] | None = None, fails: bool = False) -> FlowJob[int]:
        queue = QUEUES[sum(name.encode()) % SHARDS]
        return FlowJob("node", {"adds": adds or [], "fails": fails}, queue=queue, **TRIES)

    def _completed(self, flow: str, names: Any) -> None:
        self.ends |= {f"{flow}:{name}": "completed" for name in names}

    async def _once(self, add: Callable[[], Awaitable[None]]) -> None:
        """Add something, also when the answer is lost."""
        try:
            await persistently(add)
        except CommandFailed as error:
            if error.server_code != "FLOW_EXISTS":
                raise

    async def _until_there(self, flow: str, name: str) -> None:
        """Wait until another job has added it."""

        async def is_there() -> bool:
            return name in [node.name for node in (await persistently(self.flows.graph(flow).info)).nodes]

        try:
            await eventually(is_there, f"{flow}:{name} is there", PATIENCE / 1000)
        except AssertionError:
            print(*(await self.flows.graph(flow).info()).nodes, sep="\n")
            raise

    async def _result(self, flow: str, name: str) -> int:
        handle = self.queue.handle(f"{flow}:{name}", int)
        return await persistently(lambda: handle.result(PATIENCE))


def ended(folder: Path) -> Counter[tuple[str, str]]:
    """How often each job has ended in which way, as the shards have logged it."""
    found: Counter[tuple[str, str]] = Counter()
    with opened(folder) as shards:
        for shard in shards:
            for event in read(shard, 0, 10**9):
                if event.kind == "completed" or (event.kind == "failed" and event.fields.get("terminal")):
                    found[event.job_id, event.kind] += 1
    return found


async def test_every_job_of_every_flow_ends_once(make_server: StartServer, tmp_path: Path) -> None:
    kills = budget(2, 100)
    seed = a_seed()
    server = make_server("--log-level", "warning", shards=SHARDS, port=quiet_port())
    await asyncio.to_thread(server.start)
    program, log = tmp_path / "works.py", tmp_path / "log"
    program.write_text(PROGRAM)
    log.touch()
    url = f"bunqueue://{server.host}:{server.port}"
    workers = Workers(program, url, log, *QUEUES)
    workers.start()
    async with AsyncFlowProducer(url=url) as flows, AsyncQueue(QUEUES[0], url=url) as queue:
        load = Load(flows, queue)
        running = asyncio.create_task(load.run())
        try:
            killing = asyncio.create_task(kill_at_random(server, workers, log, kills, random.Random(seed)))
            await asyncio.wait([killing, running], return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                print(f"seed {seed}: {dict(await killing)}")
                load.over.set()
            await running
            print(f"{dict(load.added)}, {len(load.ends)} jobs")
        finally:
            running.cancel()
            workers.kill()
    await asyncio.to_thread(server.stop)
    found = ended(tmp_path / "data")
    wanted = Counter({(job_id, state): 1 for job_id, state in load.ends.items()})
    assert found == wanted, (seed, found - wanted, wanted - found)
    assert [line for line in log.read_text().splitlines() if line.startswith("early")] == [], seed
    assert len(load.added) == 4

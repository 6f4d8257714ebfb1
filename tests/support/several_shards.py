"""What users of several shards see: commands that are repeated over crashes, and all jobs of some queues."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Any

from .naming import queue_on
from .waiting import PATIENCE_S, eventually
from .wire import Address, ConnectionEnded, Reply, Wire

AGAIN = ("SHARD_UNAVAILABLE", "ID_CONTENDED")  # nothing was done, and it may be tried again
STATES = ("waiting", "prioritized", "delayed", "active", "waiting-children", "completed", "failed")


async def attempt(address: Address, cmd: str, **fields: Any) -> Reply | None:
    """The reply to a command that is sent once; None when nobody can say whether it was carried out."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                wire = await Wire.open(address)
            except OSError:
                await asyncio.sleep(0.02)  # between two tries
                continue
            async with wire:
                try:
                    await wire.ok("Hello", protocolVersion=3)
                except ConnectionEnded:
                    continue
                try:
                    reply = await wire.call(cmd, **fields)
                except ConnectionEnded:
                    return None
            if reply.get("code") not in AGAIN:
                return reply
            await asyncio.sleep(0.02)  # between two tries


class SeveralShards:
    """The queues and ids of one test on a server of some shards."""

    def __init__(self, address: Address, prefix: str, shards: int = 4) -> None:
        self.address = address
        self.prefix = prefix
        self.shards = shards
        self.queues: list[str] = []
        self.ids: list[str] = []
        self.ignored: set[str] = set()  # jobs whose failure does not matter to those that depend on them
        self.delivered: Counter[str] = Counter()

    def queue(self, shard: int, name: str = "q") -> str:
        """A queue on that shard."""
        found = queue_on(shard, f"{self.prefix}-{name}", self.shards)
        if found not in self.queues:
            self.queues.append(found)
        return found

    def id(self, shard: int, name: str) -> str:
        """An id of our own that points to that shard."""
        found = queue_on(shard, f"{self.prefix}-{name}", self.shards)
        if found not in self.ids:
            self.ids.append(found)
        return found

    async def once(self, cmd: str, **fields: Any) -> Reply | None:
        return await attempt(self.address, cmd, **fields)

    async def ask(self, cmd: str, **fields: Any) -> Reply:
        """The reply to a command that may be repeated."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                reply = await self.once(cmd, **fields)
                if reply is not None:
                    return reply

    async def ok(self, cmd: str, **fields: Any) -> Reply:
        """`ask` for what must succeed."""
        reply = await self.ask(cmd, **fields)
        assert reply["ok"], f"{cmd} {fields}: {reply}"
        return reply

    async def state(self, job_id: str) -> str:
        return str((await self.ok("GetState", id=job_id))["state"])

    async def until(self, job_id: str, *states: str) -> None:
        """Wait until a job is in one of these states."""

        async def is_there() -> bool:
            return await self.state(job_id) in states

        await eventually(is_there, f"{job_id} is {' or '.join(states)}")

    async def census(self) -> dict[str, dict[str, Any]]:
        """All jobs of all queues by id; each is there once, and the counts agree with the listing."""
        found: list[dict[str, Any]] = []

        async def list_queue() -> bool:  # something may have happened between the two
            nonlocal jobs
            jobs = (await self.ok("GetJobs", queue=queue, limit=1000))["jobs"]
            counts = (await self.ok("GetJobCounts", queue=queue))["counts"]
            states = Counter(job["state"] for job in jobs)
            return all(states[state] == counts.get(state, 0) for state in STATES)

        for queue in self.queues:
            jobs: list[dict[str, Any]] = []
            await eventually(list_queue, f"counts and listing of {queue} agree")
            found += jobs
        twice = [job_id for job_id, n in Counter(job["id"] for job in found).items() if n > 1]
        assert not twice, f"more than once: {twice}"
        return {job["id"]: job for job in found}

    async def pull(self, queue: str, **fields: Any) -> tuple[str, str]:
        """Id and token of the one job that is ready in a queue."""
        reply = await self.ok("PULL", queue=queue, owner="w", lockTtl=600_000, detach=True, **fields)
        assert reply["job"] is not None, f"nothing is ready in {queue}"
        return reply["job"]["id"], reply["token"]

    async def work_off(self) -> None:
        """Complete all jobs as they become ready; each with a result that names it."""

        async def is_done() -> bool:
            for queue in self.queues:
                await self._drain(queue)
            jobs = await self.census()
            return all(job["state"] in ("completed", "failed") for job in jobs.values())

        await eventually(is_done, "all jobs are finished", step_s=0.05)

    async def _drain(self, queue: str) -> None:
        while (reply := await self.ok("PULL", queue=queue, owner="w", detach=True))["job"] is not None:
            job = reply["job"]
            await self.may_start(job)
            self.delivered[job["id"]] += 1
            await self.ok("ACK", id=job["id"], token=reply["token"], result=job["id"])

    async def may_start(self, job: dict[str, Any]) -> None:
        """A job was delivered: all it depends on must have completed."""
        for dep in job["dependsOn"]:
            ended = await self.state(dep) in ("completed", "unknown")
            assert ended or dep in self.ignored, f"{job['id']} started before {dep}"

    async def ids_are_free(self, ids: Iterable[str]) -> None:
        """Finished jobs have left nothing behind that holds their ids: each can begin a new life."""
        ids = list(ids)
        for number, own in enumerate(ids):
            queue = self.queue(number % self.shards, "again")
            reply = await self.ok("PUSH", queue=queue, data="again", jobId=own)
            assert reply["id"] == own
        jobs = await self.census()
        for own in ids:
            assert jobs[own]["data"] == "again", f"{own} cannot be pushed again"
            assert jobs[own]["state"] == "waiting"
        await self.work_off()

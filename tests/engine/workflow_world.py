"""Workflows driven by hand: a worker that says on the wire what a test wants it to, on one shard or on
several, perhaps with a crash of every shard after each command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.shard_world import CONN, World

ALPHA, BETA, GAMMA = "alpha", "delta", "gamma"  # on shards of their own, if there are four
SECOND, HOUR, DAY = 1_000, 3_600_000, 86_400_000


class Workflows:
    """A world, and what tests of workflows say in it."""

    def __init__(self, folder: Path, shards: int, *, crashes: bool) -> None:
        self.world = World(folder, shards, 7, crash_rate=0.0)
        self.crashes = crashes
        self.tokens: dict[str, str] = {}
        self.queues: dict[str, str] = {}

    def ask(self, cmd: str, **fields: Any) -> dict[str, Any]:
        """One command and its reply; then, if the test wants that, all shards die and come back."""
        reply = self.world.ask(cmd=cmd, **fields)
        assert reply is not None, (cmd, fields)
        self.world.settle()
        if self.crashes:
            self.crash()
        return reply

    def ok(self, cmd: str, **fields: Any) -> dict[str, Any]:
        reply = self.ask(cmd, **fields)
        assert reply["ok"], reply
        return reply

    def refused(self, cmd: str, **fields: Any) -> str:
        reply = self.ask(cmd, **fields)
        assert not reply["ok"], reply
        return str(reply["error"])

    def crash(self) -> None:
        """Every shard dies, and comes back with what it has stored."""
        for number in range(self.world.count):
            self.world.crash(number)
            self.world.settle()

    def pass_time(self, ms: int) -> None:
        """Let time pass; workers renew their locks meanwhile."""
        self.world.now += ms
        for number, shard in enumerate(self.world.shards):
            shard.engine.renew([CONN], self.world.now)
            shard.engine.resume_timeouts(self.world.now)
            shard.engine.tick(self.world.now)
            while shard.engine.work():
                pass
            self.world.finish(number)
        self.world.settle()

    def lose_workers(self) -> None:
        """Time passes in which no worker renews its locks."""
        for _ in range(4):
            self.world.now += 10 * SECOND
            for number, shard in enumerate(self.world.shards):
                shard.engine.tick(self.world.now)
                self.world.finish(number)
        self.world.settle()

    # -- a client

    def start(self, job_id: str, queue: str = ALPHA, **options: Any) -> str:
        fields = {"name": "order", "data": {"n": 1}, "workflow": True, "jobId": job_id, **options}
        self.ok("PUSH", queue=queue, **fields)
        return job_id

    def state(self, job_id: str) -> str:
        return str(self.ok("GetState", id=job_id)["state"])

    def job(self, job_id: str) -> dict[str, Any]:
        return dict(self.ok("GetJob", id=job_id)["job"])

    def view(self, job_id: str) -> dict[str, Any]:
        return dict(self.ok("GetWorkflow", id=job_id)["data"])

    def steps(self, job_id: str) -> dict[str, str]:
        """The states of its steps, by name, in order."""
        return {step["name"]: step["status"] for step in self.view(job_id)["steps"]}

    def step(self, job_id: str, name: str) -> dict[str, Any]:
        return next(step for step in self.view(job_id)["steps"] if step["name"] == name)

    def signal(self, job_id: str, name: str, data: Any = None, **more: Any) -> bool:
        return bool(self.ok("SendSignal", id=job_id, name=name, data=data, **more)["data"]["delivered"])

    def broadcast(self, name: str, key: str, data: Any = None, **more: Any) -> int:
        """How many took it; a router would add up what the shards answer."""
        count = 0
        fields = {"broadcastId": f"{name} {key} {data}", **more}
        for shard in range(self.world.count):
            sent = self.world.send(cmd="Broadcast", at=shard, name=name, key=key, data=data, **fields)
            self.world.settle()
            reply = self.world.replies[sent]
            assert reply["ok"], reply
            count += reply["count"]
        if self.crashes:
            self.crash()
        return count

    # -- a worker

    def pull(self, queue: str = ALPHA, **more: Any) -> dict[str, Any] | None:
        reply = self.ok("PULL", **{"queue": queue, "owner": "w", "lockTtl": DAY, "signals": True, **more})
        job = reply["job"]
        if job is not None:
            self.tokens[job["id"]], self.queues[job["id"]] = reply["token"], queue
        return job

    def run(self, job_id: str, queue: str = ALPHA, **more: Any) -> dict[str, Any]:
        """Pull the job, which has to be the next one."""
        job = self.pull(queue, **more)
        assert job is not None, (job_id, self.state(job_id))
        assert job["id"] == job_id
        return job

    def held(self, job_id: str) -> dict[str, str]:
        return {"id": job_id, "token": self.tokens[job_id]}

    def record(self, job_id: str, name: str, **fields: Any) -> dict[str, Any]:
        """Record a step; the answer, empty if there is nothing to say."""
        step = {**self.held(job_id), "name": name, **fields}
        (answer,) = self.ok("RecordSteps", queue=self.queues[job_id], steps=[step])["results"]
        return answer or {}

    def done(self, job_id: str, name: str, result: Any = None, **fields: Any) -> None:
        assert self.record(job_id, name, result=result, **fields) == {}

    def nap(self, job_id: str, name: str, ms: float) -> dict[str, Any]:
        return self.record(job_id, name, kind="sleep", status="waiting", delay=ms)

    def wait(self, job_id: str, name: str, signal: str, **fields: Any) -> dict[str, Any]:
        return self.record(job_id, name, kind="signal", status="waiting", signal=signal, **fields)

    def child(
        self, job_id: str, step: str, queue: str = BETA, *, detached: bool = False, **fields: Any
    ) -> str:
        order = {"queue": queue, "input": {"data": {}, **fields}, "detached": detached}
        return str(self.record(job_id, step, kind="child", status="waiting", child=order)["child"])

    def suspend(self, job_id: str, *groups: list[str]) -> None:
        self.ok(
            "SuspendJob",
            queue=self.queues[job_id],
            groups=[{"steps": group} for group in groups],
            **self.held(job_id),
        )

    def ack(self, job_id: str, result: Any = None) -> None:
        self.ok("ACK", result=result, **self.held(job_id))

    def fail(self, job_id: str, error: str = "bad", **fields: Any) -> None:
        self.ok("FAIL", error=error, **self.held(job_id), **fields)

    def stored(self, query: str) -> list[tuple[Any, ...]]:
        """What a query finds in the files of all shards."""
        found: list[tuple[Any, ...]] = []
        for shard in self.world.shards:
            found += shard.store.database.connection.execute(query).fetchall()
        return found

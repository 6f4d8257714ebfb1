"""Some shards in one process whose power fails: of what was written and not flushed anything may be gone.

The shards are small, so all of it is in their write-ahead logs.  A cut leaves of each log what was flushed,
and of the rest all, nothing, or a piece up to any byte.
"""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path
from typing import Any

from engine.shard_driver import nothing
from engine.shard_world import CONN, QUEUES, Reply, World, state_of
from engine.tenancy import one_tenant

from shardproc.core import Shard

real_flush = os.fdatasync
Row = tuple[Any, ...]


class PowerWorld(World):
    """A world whose power can be cut.  `flush` has to stand in for `os.fdatasync`."""

    def __init__(self, folder: Path, shards: int, seed: int, *, full_sync: bool = False) -> None:
        self.full_sync = full_sync
        self.flushed: dict[int, int] = {}  # inode of a log -> bytes that are on the disk
        self.cuts = 0
        super().__init__(folder, shards, seed, 0.0)
        self._power_up()

    def _open(self, number: int) -> Shard:
        path = str(self._files(number)[0])
        place = {"shard": number, "shards": self.count}
        shard = Shard(path, full_sync=self.full_sync, prepare=one_tenant, **place)
        shard.recover(self.now, f"router-{self.cuts}", nothing)
        shard.engine.reattach([CONN], self.now)
        return shard

    def _power_up(self) -> None:
        """All shards hear that the others are there."""
        for shard in self.shards:
            shard.commit()
        for source in range(self.count):
            for target in set(range(self.count)) - {source}:
                self.wires.setdefault((source, target), deque()).append(None)

    def flush(self, descriptor: int) -> None:
        real_flush(descriptor)
        found = os.fstat(descriptor)
        self.flushed[found.st_ino] = found.st_size

    def fail(self, mode: str = "any") -> None:
        """The power fails and comes back.  ``mode`` says what becomes of what was not flushed: "all", "none"
        of it is kept, or "any" piece, in each file another one."""
        self.start_on([self.image(number, mode) for number in range(self.count)])

    def start_on(self, images: list[tuple[bytes, bytes]]) -> None:
        """Start a new server on such files, database and log of each shard."""
        for shard in self.shards:
            shard.close()
        for number, (database, log) in enumerate(images):
            self._restore(number, database, log)
        self.wires.clear()
        self.now += 60_000
        self.cuts += 1
        self.shards = [self._open(number) for number in range(self.count)]
        self._power_up()

    def image(self, number: int, mode: str) -> tuple[bytes, bytes]:
        """What the disk may hold of a shard now: its database and its log."""
        database, log = self._files(number)
        data = log.read_bytes() if log.exists() else b""
        safe = len(data) if self.full_sync else self.flushed.get(log.stat().st_ino, 0) if data else 0
        kept = {"all": len(data), "none": safe}.get(mode, self.rng.randint(safe, len(data)))
        return database.read_bytes(), data[:kept]

    def _restore(self, number: int, database: bytes, log: bytes) -> None:
        for path, content in zip(self._files(number), (database, log), strict=True):
            path.unlink(missing_ok=True)
            path.write_bytes(content)
            self.flushed[path.stat().st_ino] = len(content)
        database_path = self._files(number)[0]
        database_path.with_name(f"{database_path.name}-shm").unlink(missing_ok=True)

    def _files(self, number: int) -> tuple[Path, Path]:
        database = self.folder / f"{number}.db"
        return database, database.with_name(database.name + "-wal")

    def stored(self) -> dict[str, int]:
        """The jobs in the files, live and finished, with their shards."""
        return {
            job_id: number
            for number, shard in enumerate(self.shards)
            for (job_id,) in shard.store.database.connection.execute("select id from jobs")
        }


NODE = {"data": {}, "onDeadDependency": "fail"}  # what waits for one that was lost fails, too


class PowerLife:
    """Pushes all that concerns several shards, some of it durable, and remembers what was promised."""

    def __init__(self, world: PowerWorld) -> None:
        self.world = world
        self.rng = world.rng
        self.promised: set[str] = set()  # ids of durable jobs whose push was answered
        self.flows: list[list[str]] = []
        self.families: list[tuple[str, str]] = []  # parent, child that was pushed as such
        self.graphs: list[str] = []  # flows with names, which grow
        self.gathered: list[str] = []  # flows whose jobs are gathered until they are closed
        self.needs: dict[str, list[str]] = {}
        self.done: set[str] = set()
        self.serial = 0

    def step(self) -> None:
        self.serial += 1
        some = (
            self.own_id,
            self.batch,
            self.flow,
            self.child,
            self.after,
            self.work,
            self.graph,
            self.gather,
        )
        self.rng.choice(some)()

    def push(self, *, durable: bool, **fields: Any) -> Reply | None:
        """Send a push; now and then its answer is not waited for."""
        if durable:
            fields["durable"] = True
        if self.rng.random() < 0.3:
            self.world.send(**{"cmd": "PUSH", **fields})
            for _ in range(self.rng.randrange(8)):
                self.world.turn()
            return None
        return self.world.ask(**{"cmd": "PUSH", **fields})

    def own_id(self) -> None:
        job_id, durable = f"own-{self.serial}", self.rng.random() < 0.6
        reply = self.push(durable=durable, queue=self.rng.choice(QUEUES), data=1, jobId=job_id)
        if self.rng.random() < 0.3:  # the same again, from one who was not answered and wants it durable
            durable = True
            reply = self.push(durable=True, queue=self.rng.choice(QUEUES), data=1, jobId=job_id)
        if durable and reply is not None:
            self.promised.add(job_id)

    def batch(self) -> None:
        ids = [f"batch-{self.serial}-{n}" for n in range(4)]
        jobs = [{"data": n, "jobId": own, "durable": n == 2} for n, own in enumerate(ids)]
        if self.world.ask(cmd="PUSHB", queue=self.rng.choice(QUEUES), jobs=jobs) is not None:
            self.promised.update(ids)

    def flow(self) -> None:
        durable = self.rng.random() < 0.4
        parent = f"parent-{self.serial}"
        children = [f"child-{self.serial}-{n}" for n in range(self.rng.randrange(1, 4))]
        ids = [*children, parent]
        jobs = [
            {"id": own, "queue": self.rng.choice(QUEUES), "input": {"data": {}, "parentId": parent}}
            for own in children
        ]
        fields = {"data": {}, "dependsOn": children, "childrenIds": children}
        jobs.append({"id": parent, "queue": self.rng.choice(QUEUES), "input": fields})
        if durable:
            self.rng.choice(jobs)["input"]["durable"] = True
        self.flows.append(ids)
        self.needs[parent] = children
        if self.rng.random() < 0.4:
            self.world.send(cmd="PUSHF", jobs=jobs)
            for _ in range(self.rng.randrange(10)):
                self.world.turn()
        elif self.world.ask(cmd="PUSHF", jobs=jobs) is not None and durable:
            self.promised.update(ids)

    def graph(self) -> None:
        """A flow with names, or more jobs of one."""
        grow = bool(self.graphs) and self.rng.random() < 0.4
        flow = self.rng.choice(self.graphs) if grow else f"graph-{self.serial}"
        before = sorted({own for ids in self.flows for own in ids if own.startswith(f"{flow}:")})
        names = [f"n{self.serial}-{n}" for n in range(self.rng.randrange(1, 5))]
        nodes = []
        for place, name in enumerate(names):
            known = [own.partition(":")[2] for own in before if own in self.world.stored()] + names[:place]
            after = self.rng.sample(known, min(len(known), self.rng.randrange(3)))
            self.needs[f"{flow}:{name}"] = [f"{flow}:{other}" for other in after]
            nodes.append(
                {"name": name, "queue": self.rng.choice(QUEUES), "after": after, "input": dict(NODE)}
            )
        self._add(flow, nodes, grow=grow, durable=not grow and self.rng.random() < 0.4)
        self.graphs.append(flow)

    def gather(self) -> None:
        """A batch is opened, grows or is closed."""
        flow = self.rng.choice(self.gathered) if self.gathered and self.rng.random() < 0.7 else None
        if flow is not None and self.rng.random() < 0.3:
            self.close(flow)
            return
        names = [f"n{self.serial}-{n}" for n in range(3)] if flow else ["on-complete", "on-success"]
        nodes = [{"name": name, "queue": self.rng.choice(QUEUES), "input": dict(NODE)} for name in names]
        for node in [] if flow else nodes:
            node["gathers"] = str(node["name"]).removeprefix("on-")
        self._add(flow or f"gather-{self.serial}", nodes, grow=flow is not None, durable=False)
        if flow is None:
            self.gathered.append(f"gather-{self.serial}")

    def _add(self, flow: str, nodes: list[dict[str, Any]], *, grow: bool, durable: bool) -> None:
        ids = [f"{flow}:{node['name']}" for node in nodes]
        if durable:
            self.rng.choice(nodes)["input"]["durable"] = True
        self.flows.append(ids)
        if self.rng.random() < 0.4:
            self.world.send(cmd="AddFlow", flow=flow, nodes=nodes, grow=grow)
            for _ in range(self.rng.randrange(10)):
                self.world.turn()
            return
        reply = self.world.ask(cmd="AddFlow", flow=flow, nodes=nodes, grow=grow)
        if reply is not None and reply["ok"] and durable:
            self.promised.update(ids)

    def close(self, flow: str) -> None:
        reply = self.world.ask(cmd="CloseFlow", flow=flow)
        if reply is not None and reply["ok"]:
            for name in ("on-complete", "on-success"):  # one that is closed again waits for no more
                self.needs.setdefault(f"{flow}:{name}", reply["data"]["ids"])

    def child(self) -> None:
        """A child of a job that waits in a queue which nobody works on."""
        parent, child = f"old-{self.serial}", f"young-{self.serial}"
        durable = self.rng.random() < 0.5
        if self.push(durable=durable, queue=self.rng.choice(QUEUES), data=1, jobId=parent) is None:
            return
        if durable:
            self.promised.add(parent)
        data = {"__parentId": parent}
        reply = self.push(
            durable=durable, queue=self.rng.choice(QUEUES), data=data, jobId=child, parentId=parent
        )
        if reply is not None and reply["ok"]:
            self.needs[parent] = [child]
            self.families.append((parent, child))
            if durable:
                self.promised.add(child)

    def after(self) -> None:
        before = [own for own in self.promised if own.startswith(("own-", "batch-"))]
        if not before:
            return
        job_id, deps = f"after-{self.serial}", self.rng.sample(before, 1)
        durable = self.rng.random() < 0.5
        self.needs[job_id] = deps
        reply = self.push(
            durable=durable, queue=self.rng.choice(QUEUES), data=1, jobId=job_id, dependsOn=deps
        )
        if durable and reply is not None and reply["ok"]:
            self.promised.add(job_id)

    def work(self) -> bool:
        """Pull a job of some queue and complete it; whether there was one."""
        for queue in self.rng.sample(QUEUES, len(QUEUES)):
            reply = self.world.ask(cmd="PULL", queue=queue, owner="w", lockTtl=30_000)
            if reply is not None and reply["job"] is not None:
                job_id = reply["job"]["id"]
                missing = [dep for dep in self.needs.get(job_id, ()) if dep not in self.done]
                missing = [dep for dep in missing if dep in self.world.stored()]
                assert not missing, f"{job_id} started before {missing} had completed"
                self.done.add(job_id)
                answer = self.world.ask(cmd="ACK", id=job_id, token=reply["token"])
                assert answer == {"ok": True}, (job_id, answer)
                return True
        return False

    # -- after a cut

    def check(self) -> None:
        """What must be true as soon as the shards have heard of each other."""
        world = self.world
        world.settle()
        stored = world.stored()
        lost = self.promised - stored.keys()
        assert not lost, f"durable jobs are lost: {sorted(lost)}"
        unknown = [job_id for job_id in stored if state_of(world, job_id) == "unknown"]
        assert not unknown, f"stored jobs are unknown: {unknown}"
        for ids in self.flows:
            there = [own for own in ids if own in stored]
            begun = any(own in self.done for own in ids)
            assert there in ([], ids) or begun, f"of the flow {ids} there is only {there}"
        for shard in world.shards:
            state = shard.engine.state
            left = (state.parts, state.prepared, state.decisions, state.asked, state.undecided)
            assert not any(left), left
            assert not state.recovery.uncertain
            assert not state.recovery.unannounced
            assert state.recovery.stored_until is None

    def finish(self) -> None:
        """Everything can be worked off, and nobody waits for ever."""
        world = self.world
        world.now += 120_000
        for number, shard in enumerate(world.shards):
            shard.engine.disconnect(CONN, world.now, severed=False)
            shard.engine.tick(world.now)  # locks of before the cut run out
            world.finish(number)
        world.settle()
        for flow in self.gathered:
            self.close(flow)
        world.settle()
        while self.work():
            world.settle()
        states = {job_id: state_of(world, job_id) for job_id in world.stored()}
        left = {own: state for own, state in states.items() if state not in ("completed", "failed")}
        assert not left, left
        failed = {own for own, state in states.items() if state == "failed"}
        assert not failed & self.promised, f"durable jobs failed: {failed & self.promised}"

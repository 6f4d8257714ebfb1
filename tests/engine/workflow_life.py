"""Random workflows on several shards, and a worker that works them as one of a library would.

Workers, shards and the router die on the way. The books say what the outside has seen, and are compared with
what the program gives in one straight line.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from engine.shard_world import CONN, QUEUES, Reply, World
from engine.workflow_world import DAY, HOUR, SECOND

PARTS = "parts-"
LOCK = 30 * SECOND
TRIES = 50  # of what is said again because its answer was lost
Operation = tuple[Any, ...]
INNER: list[Operation] = [("step", False), ("children", [("alpha", True), ("gamma", True)]), ("step", True)]
"""The program of workflows that others start."""


class Over(Exception):
    """The run has ended: it waits, its job belongs to somebody else, or its worker is dead."""


class SeveralShards(World):
    """A world in which one death happens at a place that is known beforehand, if that is wanted."""

    def __init__(
        self, folder: Path, shards: int, seed: int, crash_rate: float = 0.0, cut_rate: float = 0.0
    ) -> None:
        self.passed = (
            0  # boundaries: what a shard has just done is about to be committed, and then to be said
        )
        self.fatal: int | None = None
        self.victim = ""
        super().__init__(folder, shards, seed, crash_rate, cut_rate)

    def finish(self, number: int) -> None:
        self.passed += 1
        if self.passed != self.fatal:
            super().finish(number)
        elif self.victim == "router":
            known = set(self.replies)
            super().finish(number)
            for key in self.replies.keys() - known:
                del self.replies[key]  # it was on its way
            self.router_dies()
        else:
            self.doomed[number] = self.victim == "shard after its commit"
            super().finish(number)

    def router_dies(self) -> None:
        """The shards commit and end; all start again, and know nobody."""
        for number, shard in enumerate(self.shards):
            shard.commit()
            self.crash(number)
            self.shards[number].engine.disconnect(CONN, self.now, severed=True)

    def worker_dies(self) -> None:
        for number, shard in enumerate(self.shards):
            shard.engine.disconnect(CONN, self.now, severed=False)
            self.finish(number)

    def pass_time(self, ms: int) -> None:
        self.now += ms
        for number in range(self.count):
            self.shards[number].engine.tick(self.now)
            while self.shards[number].engine.work():
                pass
            self.finish(number)
        self.settle()


@dataclass
class Books:
    ran: Counter[str] = field(default_factory=Counter)
    recorded: set[str] = field(default_factory=set)
    """Steps of which the server has said that they are stored."""
    undone: dict[str, list[str]] = field(default_factory=dict)


@dataclass
class Story:
    """One workflow."""

    id: str
    queue: str
    program: list[Operation]
    fails: bool

    @property
    def signals(self) -> int:
        return sum(each[0] == "signal" for each in self.program)

    @property
    def broadcasts(self) -> list[str]:
        return [each[1] for each in self.program if each[0] == "broadcast"]

    @property
    def parts(self) -> int:
        inner = Story("", "", INNER, fails=False)
        return sum(
            len(each[1]) if each[0] == "children" else inner.parts if each[0] == "inner" else 0
            for each in self.program
        )

    @property
    def steps(self) -> int:
        """How many it records, beside its undo."""
        return sum(
            len(each[1]) if each[0] == "children" else 1 + (each[0] == "loser") for each in self.program
        )

    def result(self) -> list[Any]:
        """What it gives, in one straight line."""
        numbers = count()
        found: list[Any] = []
        for place, each in enumerate(self.program):
            match each:
                case ("step", _):
                    found.append(f"step {place}")
                case ("signal",):
                    found.append(next(numbers))
                case ("broadcast", key):
                    found.append(f"all {key}")
                case ("children", some):
                    found.append([10 * number if ok else "failed" for number, (_, ok) in enumerate(some)])
                case ("inner", _):
                    found.append(Story("", "", INNER, fails=False).result())
                case _:
                    found.append(None)
        return found

    def undo(self) -> list[str]:
        """The steps that are undone, in that order, if it fails."""
        steps = [f"step-{place}" for place, each in enumerate(self.program) if each == ("step", True)]
        return steps[::-1] if self.fails else []


class Life:
    """Workflows from their beginning to their end."""

    def __init__(self, world: SeveralShards, stories: list[Story], worker_dies: float = 0.0) -> None:
        self.world, self.books = world, Books()
        self.stories = {story.id: story for story in stories}
        self.rng = random.Random(world.rng.random())
        self._dies = worker_dies
        self._numbers = {story.id: count() for story in stories}

    # -- what is said until it is heard

    def say(self, cmd: str, **fields: Any) -> Reply:
        for _ in range(TRIES):
            reply = self.world.ask(cmd=cmd, **fields)
            if reply is not None:
                return reply
        raise AssertionError(f"{cmd} is never answered")

    def start(self) -> None:
        for story in self.stories.values():
            fields = {"data": {}, "jobId": story.id, "maxAttempts": 100, "backoff": 1, "workflow": True}
            assert self.say("PUSH", queue=story.queue, name="order", **fields)["ok"]

    def signal(self, story: Story) -> bool:
        """Send the next signal; whether there was one."""
        number = next(self._numbers[story.id])
        if number >= story.signals:
            return False
        fields = {"name": "go", "data": number, "signalId": f"{story.id} {number}"}
        assert self.say("SendSignal", id=story.id, **fields)["ok"]
        return True

    def broadcast(self, key: str) -> None:
        for shard in range(self.world.count):
            for _ in range(TRIES):
                fields = {
                    "name": "all",
                    "key": key,
                    "data": f"all {key}",
                    "broadcastId": key,
                    "keep": 99 * DAY,
                }
                sent = self.world.send(cmd="Broadcast", at=shard, **fields)
                self.world.settle()
                if sent in self.world.replies:
                    break

    # -- a worker

    def work(self) -> bool:
        """Run a job of some queue; whether there was one."""
        queues = [*QUEUES, *(PARTS + queue for queue in QUEUES)]
        for queue in self.rng.sample(queues, len(queues)):
            reply = self.world.ask(cmd="PULL", queue=queue, owner="w", lockTtl=LOCK, signals=True)
            if reply is not None and reply["job"] is not None:
                job, token = reply["job"], reply["token"]
                try:
                    self._run(job, Held(self, queue, job["id"], token))
                except Over:
                    pass
                return True
        return False

    def _run(self, job: Reply, held: Held) -> None:
        if job["name"] == "part":
            self.books.ran[job["id"]] += 1
            self.may_die()
            held.end(None if job["data"]["ok"] else "no", job["data"]["number"] * 10)
            return
        story = self.stories.get(job["id"]) or Story(job["id"], held.queue, INNER, fails=False)
        run = Run(self, story, held)
        if job["workflow"].get("undoing") is not None:
            run.undo()
            held.end("undone")
        found = [run.operate(place, each) for place, each in enumerate(story.program)]
        held.end("in the end" if story.fails else None, found)

    def may_die(self) -> None:
        if self.rng.random() < self._dies:
            self.world.worker_dies()
            raise Over

    # -- its end

    def go_on(self, things: Iterator[Callable[[], object]]) -> None:
        """Do these things, and what is to be done between them."""
        for thing in things:
            thing()
            for _ in range(self.rng.randrange(3)):
                self.work()

    def finish(self) -> None:
        """From here on nobody dies, and everybody gets what they wait for."""
        self._dies = self.world.crash_rate = self.world.cut_rate = 0.0
        for _ in range(100):
            for story in self.stories.values():
                while self.signal(story):
                    pass
            while self.work():
                pass
            if all(self.state(own) in ("completed", "failed") for own in self.stories):
                return
            self.world.pass_time(HOUR)
        raise AssertionError({own: self.say("GetWorkflow", id=own)["data"] for own in self.stories})

    def state(self, own: str) -> str:
        return str(self.say("GetState", id=own)["state"])

    def check(self) -> None:
        books = self.books
        for story in self.stories.values():
            assert self.state(story.id) == ("failed" if story.fails else "completed")
            if not story.fails:
                assert self.say("GetResult", id=story.id)["result"] == story.result()
            assert books.undone.get(story.id, []) == story.undo()
            view = self.say("GetWorkflow", id=story.id, limit=1000)["data"]
            assert view["signals"] == []
            assert [step for step in view["steps"] if step["endedAt"] is None] == []
            assert len(view["steps"]) == story.steps + len(story.undo())
        counts = Counter(self._parts())
        assert sum(counts.values()) == sum(story.parts for story in self.stories.values())

    def _parts(self) -> Iterator[str]:
        """All children that there ever were."""
        for shard in self.world.shards:
            query = "select id from jobs where name = 'part'"
            for (own,) in shard.store.database.connection.execute(query):
                yield str(own)


@dataclass
class Held:
    """A job that the worker has locked."""

    life: Life
    queue: str
    id: str
    token: str

    def say(self, cmd: str, **fields: Any) -> Reply:
        """Raises Over when it turns out that the job is not ours any more."""
        reply = self.life.say(cmd, **fields)
        if not reply["ok"]:
            assert "lock token" in reply["error"] or "not in processing state" in reply["error"], reply
            raise Over
        return reply

    def record(self, *records: Reply) -> list[Reply]:
        steps = [{"id": self.id, "token": self.token, **each} for each in records]
        answers = self.say("RecordSteps", queue=self.queue, steps=steps)["results"]
        for answer in answers:
            if answer is not None and "refused" in answer:
                assert answer["refused"]["code"] == "LOCK_LOST", answer
                raise Over
        return [answer or {} for answer in answers]

    def suspend(self, *names: str) -> None:
        groups = [{"steps": list(names)}]
        self.say("SuspendJob", queue=self.queue, id=self.id, token=self.token, groups=groups)
        raise Over

    def end(self, error: str | None, result: Any = None) -> None:
        if error is None:
            self.say("ACK", id=self.id, token=self.token, result=result)
        else:
            self.say("FAIL", id=self.id, token=self.token, error=error, unrecoverable=True)
        raise Over


class Run:
    """One run of a workflow."""

    def __init__(self, life: Life, story: Story, held: Held) -> None:
        self.life, self.story, self.held = life, story, held
        reply = held.say("GetSteps", queue=held.queue, id=held.id)
        self.known = {step["name"]: step for step in reply["data"]["steps"]}

    def operate(self, place: int, each: Operation) -> Any:
        match each:
            case ("step", undo):
                return self._step(place, undo=undo)
            case ("sleep", ms):
                return self._wait({"name": f"sleep-{place}", "kind": "sleep", "delay": ms})
            case ("signal",):
                return self._wait({"name": f"go-{place}", "kind": "signal", "signal": "go"})
            case ("broadcast", key):
                fields = {"kind": "signal", "signal": "all", "key": key}
                return self._wait({"name": f"all-{place}", **fields})
            case ("loser", ms):
                return self._loser(place, ms)
            case ("children", some):
                return self._children(place, some)
            case ("inner", queue):
                fields = {"name": "inner", "data": {}, "workflow": True, "maxAttempts": 100, "backoff": 1}
                child = {"queue": queue, "input": fields}
                return self._wait({"name": f"inner-{place}", "kind": "child", "child": child})
        raise AssertionError(each)

    def _has(self, name: str) -> bool:
        return name in self.known and self.known[name]["endedAt"] is not None

    def _step(self, place: int, *, undo: bool) -> Any:
        name = f"step-{place}"
        if self._has(name):
            return self.known[name]["result"]
        if undo and name not in self.known:
            self.held.record({"name": name, "status": "running", "undo": True})
        self._does(name)
        self.held.record({"name": name, "undo": undo, "result": f"step {place}"})
        self._did(name)
        return f"step {place}"

    def _does(self, name: str) -> None:
        key = f"{self.story.id}:{name}"
        assert key not in self.life.books.recorded, f"{key} runs again although it was recorded"
        self.life.books.ran[key] += 1
        self.life.may_die()

    def _did(self, name: str) -> None:
        self.life.books.recorded.add(f"{self.story.id}:{name}")
        self.life.may_die()

    def _wait(self, record: Reply) -> Any:
        name = record["name"]
        if not self._has(name):
            (self.known[name],) = self.held.record({**record, "status": "waiting"})
            self.life.may_die()
            if self.known[name]["status"] == "waiting":
                self.held.suspend(name)
            assert self.known[name]["status"] == "completed", self.known[name]
        return self.known[name].get("result")

    def _loser(self, place: int, ms: int) -> None:
        """A wait for a signal that never comes, beside a sleep."""
        never = {"name": f"never-{place}", "kind": "signal", "signal": "never"}
        if f"never-{place}" not in self.known:
            self.held.record({**never, "status": "waiting"})
        self._wait({"name": f"sleep-{place}", "kind": "sleep", "delay": ms})
        if not self._has(f"never-{place}"):
            self.held.record({**never, "status": "cancelled"})

    def _children(self, place: int, some: list[tuple[str, bool]]) -> list[Any]:
        records = []
        for number, (queue, ok) in enumerate(some):
            fields = {"name": "part", "data": {"number": number, "ok": ok}, "maxAttempts": 100, "backoff": 1}
            child = {"queue": PARTS + queue, "input": fields}
            records.append(
                {"name": f"part-{place}-{number}", "kind": "child", "status": "waiting", "child": child}
            )
        names = [record["name"] for record in records]
        if not all(map(self._has, names)):
            self.known |= zip(names, self.held.record(*records), strict=True)
            self.life.may_die()
            if left := [name for name in names if self.known[name]["status"] == "waiting"]:
                self.held.suspend(*left)
        return [
            self.known[name]["result"] if self.known[name]["status"] == "completed" else "failed"
            for name in names
        ]

    def undo(self) -> None:
        """What was done, the last step first; what was cut off is done before."""
        steps = [step for step in self.known.values() if step["undo"] and step["kind"] == "step"]
        for step in steps:
            if step["endedAt"] is None:
                self._does(step["name"])
                self.held.record({"name": step["name"], "undo": True, "result": None})
                self._did(step["name"])
        undone = self.life.books.undone.setdefault(self.story.id, [])
        for step in sorted(steps, key=lambda step: -step["number"]):
            if not self._has(f"undo:{step['name']}"):
                if step["name"] not in undone:
                    undone.append(step["name"])
                assert undone[-1] == step["name"], f"{step['name']} was undone again, out of turn"
                self.life.may_die()
                self.held.record({"name": f"undo:{step['name']}", "kind": "undo"})

"""What users do over several shards, each told so that it can be cut anywhere and gone on with.

A story prepares something, acts once, not knowing whether that was heard, and checks: what was answered is
so; what was not happened as a whole or not at all; and everything goes on to its end.

Shards: 0 carries out flows, jobs live on 1 and 2, and the ids point to 3, unless a story says otherwise.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Any

from support.several_shards import SeveralShards
from support.wire import Reply


class Story(ABC):
    """One thing that users do."""

    messages: tuple[str, ...] = ()  # between shards because of `act`; as often as it may be hit
    sparse = False  # few of its steps are tried unless all are asked for

    def __init__(self, world: SeveralShards) -> None:
        self.world = world

    async def prepare(self) -> None:  # noqa: B027  # most stories, not all, have something to prepare
        """Before anything is killed."""

    @abstractmethod
    async def act(self) -> None:
        """What is cut; it must not be repeated, but for commands that are refused."""

    @abstractmethod
    async def check(self) -> None:
        """All is up again."""

    def job(self, own: str, shard: int, **options: Any) -> dict[str, Any]:
        """A job of a flow."""
        return {"id": own, "queue": self.world.queue(shard), "input": {"data": {"own": own}, **options}}


class NewId(Story):
    """A job gets an id that nobody has."""

    messages = ("Claim", "Claimed")

    async def act(self) -> None:
        world = self.world
        self.own = world.id(3, "own")
        self.reply = await world.once("PUSH", queue=world.queue(1), data="first", jobId=self.own)

    async def check(self) -> None:
        world = self.world
        there = await world.census()
        assert self.reply in (None, {"ok": True, "id": self.own, "reqId": 2}), self.reply
        assert self.own in there or self.reply is None, "an acknowledged push is lost"
        for shard in (2, 3, 1):
            reply = await world.ok("PUSH", queue=world.queue(shard), data="second", jobId=self.own)
            assert reply["id"] == self.own
        job = (await world.census())[self.own]
        assert job["data"] == ("first" if self.own in there else "second")
        assert (await world.ok("GetJobByCustomId", customId=self.own))["job"]["queue"] == job["queue"]
        await world.work_off()
        assert world.delivered == {self.own: 1}
        assert (await world.ok("GetResult", id=self.own))["result"] == self.own
        await world.ids_are_free([self.own])


class RaceForId(NewId):
    """Clients race for one id on three shards, one of them that to which it points."""

    async def act(self) -> None:
        world = self.world
        self.own = world.id(3, "own")
        pushes = [world.once("PUSH", queue=world.queue(n), data="first", jobId=self.own) for n in (1, 2, 3)]
        replies = await asyncio.gather(*pushes)
        for reply in replies:
            assert reply is None or reply == {"ok": True, "id": self.own, "reqId": 2}, replies
        self.reply = next((reply for reply in replies if reply), None)


class SecondLife(Story):
    """A finished job's id is given to a new job on another shard."""

    messages = ("Claim", "Claimed", "Verify", "Verified")

    async def prepare(self) -> None:
        world = self.world
        self.own = world.id(3, "own")
        await world.ok("PUSH", queue=world.queue(2), data="old", jobId=self.own)
        await world.work_off()
        world.delivered.clear()

    async def act(self) -> None:
        world = self.world
        self.reply = await world.once("PUSH", queue=world.queue(1), data="new", jobId=self.own)

    async def check(self) -> None:
        world = self.world
        there = await world.census()
        if self.reply is not None:
            assert there[self.own]["data"] == "new"
        else:  # whoever gives an id to another job has given up the finished one
            assert not there or there[self.own]["data"] in ("old", "new")
        await world.ok("PUSH", queue=world.queue(1), data="new", jobId=self.own)
        assert (await world.census())[self.own]["data"] == "new"
        await world.work_off()
        assert world.delivered == {self.own: 1}
        await world.ids_are_free([self.own])


class TakenId(Story):
    """An id that a living job has is pushed again on another shard."""

    messages = ("Claim", "Claimed", "Verify", "Verified")

    async def prepare(self) -> None:
        self.own = self.world.id(3, "own")
        await self.world.ok("PUSH", queue=self.world.queue(2), data="old", jobId=self.own)

    async def act(self) -> None:
        world = self.world
        self.reply = await world.once("PUSH", queue=world.queue(1), data="new", jobId=self.own)

    async def check(self) -> None:
        world = self.world
        assert self.reply is None or self.reply["id"] == self.own
        assert (await world.census())[self.own]["data"] == "old"
        await world.work_off()
        assert world.delivered == {self.own: 1}


class Batch(Story):
    """A batch with ids that point to all shards, some of them taken."""

    messages = ("Claim", "Claimed", "Verify", "Verified")

    async def prepare(self) -> None:
        world = self.world
        self.ids = [world.id(shard, f"own{n}") for shard in range(4) for n in range(2)]
        await world.ok("PUSH", queue=world.queue(2), data="old", jobId=self.ids[0])
        await world.ok("PUSH", queue=world.queue(3), data="old", jobId=self.ids[5])

    async def act(self) -> None:
        jobs = [{"data": "new", "jobId": own} for own in self.ids]
        self.reply = await self.world.once("PUSHB", queue=self.world.queue(1), jobs=jobs)

    async def check(self) -> None:
        world = self.world
        there = (await world.census()).keys() - {self.ids[0], self.ids[5]}
        assert there in (set(), set(self.ids) - {self.ids[0], self.ids[5]}), "a batch is there in part"
        assert there or self.reply is None, "an acknowledged batch is lost"
        jobs = [{"data": "again", "jobId": own} for own in self.ids]
        assert (await world.ok("PUSHB", queue=world.queue(0), jobs=jobs))["ids"] == self.ids
        assert (await world.census()).keys() == set(self.ids)
        await world.work_off()
        assert world.delivered == dict.fromkeys(self.ids, 1)


class Depend(Story):
    """A job that depends on two others, on other shards, is pushed."""

    messages = ("Where", "Homes", "Watch", "Outcomes", "Claim", "Claimed")

    async def prepare(self) -> None:
        world = self.world
        self.deps = [world.id(3, "dep1"), world.id(0, "dep2")]
        for dep in self.deps:
            await world.ok(
                "PUSH", queue=world.queue(2), data=dep, jobId=dep, removeOnComplete=dep is self.deps[0]
            )
        self.own = world.id(3, "own")

    async def push(self) -> Reply | None:
        fields: dict[str, Any] = {"data": 1, "jobId": self.own, "dependsOn": self.deps}
        return await self.world.once("PUSH", queue=self.world.queue(1), **fields)

    async def act(self) -> None:
        self.reply = await self.push()

    async def check(self) -> None:
        world = self.world
        there = await world.census()
        assert self.own in there or self.reply is None, "an acknowledged push is lost"
        while await self.push() is None:
            pass
        assert await world.state(self.own) == "waiting-children"
        await world.work_off()
        assert world.delivered == dict.fromkeys([*self.deps, self.own], 1)
        assert await world.state(self.own) == "completed"


class Complete(Depend):
    """The last job completes on which another one depends."""

    messages = ("Forward", "Forwarded", "Outcomes")

    async def prepare(self) -> None:
        await super().prepare()
        assert await self.push() is not None
        world = self.world
        jobs = dict([await world.pull(world.queue(2)), await world.pull(world.queue(2))])
        await world.ok("ACK", id=self.deps[1], token=jobs[self.deps[1]], result=self.deps[1])
        self.token = jobs[self.deps[0]]

    async def act(self) -> None:
        self.reply = await self.world.once("ACK", id=self.deps[0], token=self.token)
        assert self.reply is None or self.reply["ok"], self.reply

    async def check(self) -> None:
        world = self.world
        if self.reply is None:
            await world.ask("ACK", id=self.deps[0], token=self.token)  # refused when it was heard
        assert await world.state(self.deps[0]) == "unknown"  # removed
        await world.until(self.own, "waiting")
        await world.work_off()
        assert world.delivered == {self.own: 1}


class Relayed(Story):
    """Commands for jobs whose ids point to another shard: each is carried out once, or not at all."""

    messages = ("Forward", "Forwarded") * 3

    async def prepare(self) -> None:
        world = self.world
        queue = world.queue(2)
        names = ("logged", "failed", "moved", "acked", "promoted", "cancelled")
        ids = dict(zip(names, (world.id(3, name) for name in names), strict=True))
        self.ids = ids
        for name in names[:4]:
            await world.ok("PUSH", queue=queue, data=name, jobId=ids[name], backoff=60_000)
        tokens = dict([await world.pull(queue) for _ in range(4)])
        for name in names[4:]:
            await world.ok("PUSH", queue=queue, data=name, jobId=ids[name], delay=60_000)
        fields: dict[str, dict[str, Any]] = {name: {"id": own} for name, own in ids.items()}
        for name in names[1:4]:
            fields[name]["token"] = tokens[ids[name]]
        fields["logged"]["message"] = "once"
        fields["moved"]["delay"] = 60_000
        commands = ("AddLog", "FAIL", "MoveToDelayed", "ACK", "Promote", "Cancel")
        self.asks = [(cmd, name, fields[name]) for cmd, name in zip(commands, names, strict=True)]

    async def act(self) -> None:
        self.done: dict[str, bool] = {}
        for cmd, name, fields in self.asks:
            reply = await self.world.once(cmd, **fields)
            assert reply is None or reply["ok"], f"{cmd} was refused: {reply}"
            self.done[name] = reply is not None

    async def check(self) -> None:
        world, ids = self.world, self.ids
        jobs = await world.census()
        logs = (await world.ok("GetLogs", id=ids["logged"]))["data"]["logs"]
        before, after = ("active", "active", "active", "active", "delayed", "delayed"), {
            "logged": "active", "failed": "delayed", "moved": "delayed", "acked": "completed",
            "promoted": "waiting", "cancelled": "unknown",
        }  # fmt: skip
        for (name, done), was in zip(self.done.items(), before, strict=True):
            state = jobs[ids[name]]["state"] if ids[name] in jobs else "unknown"
            assert state in ([after[name]] if done else [was, after[name]]), name
        assert len(logs) == 1 if self.done["logged"] else len(logs) <= 1, logs
        assert jobs[ids["failed"]]["attempts"] == (jobs[ids["failed"]]["state"] == "delayed")


class AckBatch(Story):
    """A batch of acks for jobs on two shards, with ids that point elsewhere."""

    messages = ("Forward", "Forwarded")

    async def prepare(self) -> None:
        world = self.world
        self.tokens: dict[str, str] = {}
        for number in range(6):
            queue = world.queue(1 + number % 2)
            await world.ok("PUSH", queue=queue, data=number, jobId=world.id(3, f"own{number}"))
            own, token = await world.pull(queue)
            self.tokens[own] = token

    async def act(self) -> None:
        ids = list(self.tokens)
        self.reply = await self.world.once("ACKB", ids=ids, tokens=list(self.tokens.values()), results=ids)
        assert self.reply is None or self.reply["ok"], self.reply

    async def check(self) -> None:
        world = self.world
        if self.reply is None:
            for own, token in self.tokens.items():
                await world.ask("ACK", id=own, token=token, result=own)
        for own in self.tokens:
            assert await world.state(own) == "completed"
            assert (await world.ok("GetResult", id=own))["result"] == own


class Forgotten(Story):
    """A job is removed when it completes, and its id is free again."""

    messages = ("Forward", "Forwarded", "Forget")

    async def prepare(self) -> None:
        world = self.world
        self.own = world.id(3, "own")
        await world.ok("PUSH", queue=world.queue(2), data=1, jobId=self.own, removeOnComplete=True)
        _, self.token = await world.pull(world.queue(2))

    async def act(self) -> None:
        self.reply = await self.world.once("ACK", id=self.own, token=self.token)
        assert self.reply is None or self.reply["ok"], self.reply

    async def check(self) -> None:
        world = self.world
        if self.reply is None:
            await world.ask("ACK", id=self.own, token=self.token)
        assert await world.state(self.own) == "unknown"
        assert await world.census() == {}
        await world.ids_are_free([self.own])

"""What workflows do over several shards; see `kill_stories`."""

from __future__ import annotations

from typing import Any

from faults.kill_stories import Story
from support.waiting import eventually


class Children(Story):
    """A workflow on shard 1 starts a child on shard 2 and one on shard 3, which has a unique key."""

    messages: tuple[str, ...] = ("StartChildren", "StartChildren", "ChildrenStarted")
    sparse = True  # tests/engine/workflows/test_deaths.py goes through every step of these in simulated time

    async def prepare(self) -> None:
        world = self.world
        self.id = world.id(1, "workflow")
        await world.ok("PUSH", queue=world.queue(1), data={}, jobId=self.id, workflow=True)
        self.names = ["pack", "weigh"]
        self.token = (await world.pull(world.queue(1)))[1]

    def records(self) -> list[dict[str, Any]]:
        held = {"id": self.id, "token": self.token, "kind": "child", "status": "waiting"}
        inputs = [{"data": 2}, {"data": 3, "uniqueKey": self.id}]
        return [
            {
                **held,
                "name": name,
                "child": {"queue": self.world.queue(shard, "parts"), "input": fields},
            }
            for shard, name, fields in zip((2, 3), self.names, inputs, strict=True)
        ]

    async def act(self) -> None:
        await self.world.once("RecordSteps", queue=self.world.queue(1), steps=self.records())

    async def check(self) -> None:
        """They are started once, as its worker says again what it wants; their results come, whoever died."""
        world = self.world
        answers = (await world.ok("RecordSteps", queue=world.queue(1), steps=self.records()))["results"]
        assert [answer["status"] for answer in answers] == ["waiting", "waiting"]
        await self.suspend()

        async def both_are_there() -> bool:
            return len(await world.census()) == 3

        await eventually(both_are_there, "both children are there")
        for shard in (2, 3):
            child, token = await world.pull(world.queue(shard, "parts"))
            await world.ok("ACK", id=child, token=token, result=shard)
        await world.until(self.id, "waiting")
        steps = (await world.ok("GetSteps", queue=world.queue(1), id=self.id))["data"]["steps"]
        assert [(step["name"], step["result"]) for step in steps] == [("pack", 2), ("weigh", 3)]
        assert len(await world.census()) == 3

    async def suspend(self) -> None:
        fields = {"id": self.id, "token": self.token, "groups": [{"steps": self.names}]}
        await self.world.ok("SuspendJob", queue=self.world.queue(1), **fields)


class CancelledChildren(Children):
    """... and is cancelled while it waits for them."""

    messages = ("CancelChildren", "CancelChildren", "ChildrenCancelled")

    async def prepare(self) -> None:
        await super().prepare()
        reply = await self.world.ok("RecordSteps", queue=self.world.queue(1), steps=self.records())
        self.children = [answer["child"] for answer in reply["results"]]
        await self.suspend()

        async def both_are_there() -> bool:
            return len(await self.world.census()) == 3

        await eventually(both_are_there, "both children are there")

    async def act(self) -> None:
        self.reply = await self.world.once("Cancel", id=self.id, reason="withdrawn")

    async def check(self) -> None:
        world = self.world
        if self.reply is None and await world.state(self.id) == "waiting-children":
            await world.ok("Cancel", id=self.id, reason="withdrawn")
        assert await world.state(self.id) == "cancelled"

        async def all_have_ended() -> bool:
            return all(
                [await world.state(child) == "unknown" for child in self.children]
            )  # they had not begun

        await eventually(all_have_ended, "the children are cancelled, too")

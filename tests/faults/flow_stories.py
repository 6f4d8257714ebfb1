"""What users do with flows and families over several shards; see `kill_stories`."""

from __future__ import annotations

import asyncio
from typing import Any

from faults.kill_stories import Story
from support.waiting import eventually

TOLD = ("Forward", "Forwarded", "Outcomes")  # when a child is decided


class Flow(Story):
    """Children on all shards, two of which do not keep their results, and a parent on shard 3."""

    messages: tuple[str, ...] = ()

    def make(self, **of_first: Any) -> None:
        """``of_first``: options of the first child, which is on shard 1."""
        world = self.world
        self.children = [world.id((number + 3) % 4, f"child{number}") for number in range(4)]
        self.parent = world.id(2, "parent")
        self.jobs = [
            self.job(child, (number + 1) % 4, parentId=self.parent, removeOnComplete=number > 1)
            for number, child in enumerate(self.children)
        ]
        self.jobs[0]["input"] |= of_first
        self.jobs.append(self.job(self.parent, 3, dependsOn=self.children, childrenIds=self.children))
        self.ids = [*self.children, self.parent]

    async def prepare(self) -> None:
        self.make()
        await self.world.ok("PUSHF", jobs=self.jobs)
        await self.appears()

    async def appears(self) -> None:
        """All of it; some shards may hear of the decision later."""

        async def is_there() -> bool:
            return (await self.world.census()).keys() >= set(self.ids)

        await eventually(is_there, "the whole flow is there")
        assert await self.world.state(self.parent) == "waiting-children"

    async def runs(self) -> None:
        """Children, then their parent, which sees the results that are kept."""
        world = self.world
        await world.work_off()
        assert world.delivered == dict.fromkeys(self.ids, 1)
        assert await self.values() == self.results()
        await world.ids_are_free(self.ids)

    async def values(self) -> dict[str, Any]:
        reply = await self.world.ok("GetChildrenValues", id=self.parent)
        found: dict[str, Any] = reply["data"]["values"]
        return found

    def results(self) -> dict[str, Any]:
        """What the children return; also those that are removed on completion."""
        return {f"{job['queue']}:{job['id']}": job["id"] for job in self.jobs[:-1]}


class PushFlow(Flow):
    """A flow is pushed."""

    messages = (
        "Prepare", "Prepare", "Prepared", "Claim", "Claimed", "Decide", "Decide", "Decided",
        "Where", "Homes", "Watch", "Outcomes",
    )  # fmt: skip

    async def prepare(self) -> None:
        self.make()

    async def act(self) -> None:
        self.reply = await self.world.once("PUSHF", jobs=self.jobs)
        assert self.reply is None or self.reply["ok"], self.reply

    async def check(self) -> None:
        if self.reply is None:  # its client does not know, so it pushes it again
            again = await self.world.ask("PUSHF", jobs=self.jobs)
            assert again["ok"] or again["error"].endswith("already exists"), again
        await self.appears()
        await self.runs()


class PushFlowOnce(PushFlow):
    """... and its client does not come back."""

    async def check(self) -> None:
        world = self.world

        async def is_settled() -> bool:  # some shards may hear of the decision later
            return (await world.census()).keys() in (set(), set(self.ids))

        await eventually(is_settled, "all of the flow is there, or nothing")
        if await world.census():
            await self.runs()
            return
        assert self.reply is None, "an acknowledged flow is lost"
        await world.ids_are_free(self.ids)


class UndecidedFlow(PushFlow):
    """The shard that decides about a flow is gone: what others ask about its jobs has to wait for it."""

    messages = ()

    async def act(self) -> None:
        world, child = self.world, self.children[0]
        flow = asyncio.create_task(world.once("PUSHF", jobs=self.jobs))
        assert await flow is None, "the flow is answered"
        after = world.id(2, "after")
        self.after, self.push, self.depend = await asyncio.gather(
            world.once("GetState", id=child),
            world.once("PUSH", queue=world.queue(2, "other"), data="other", jobId=child),
            world.once("PUSH", queue=world.queue(3, "other"), data=1, jobId=after, dependsOn=[child]),
        )

    async def check(self) -> None:
        world, child = self.world, self.children[0]
        jobs = await world.census()
        assert jobs.keys() <= {child, world.id(2, "after")}, "a flow that was given up has appeared"
        assert self.push is None or jobs[child]["data"] == "other", "an acknowledged push is lost"
        if self.depend is not None and not self.depend["ok"]:
            assert self.depend["error"] == f"Dependency job not found: {child}"
        await world.work_off()
        world.delivered.clear()
        await world.ok("PUSHF", jobs=self.jobs)
        await self.appears()
        await self.runs()


class RefusedFlow(Flow):
    """A flow is refused, as one of its ids is taken: nothing of it stays."""

    messages = ("Prepare", "Prepared", "Claim", "Claimed", "Decide", "Decided", "Verify", "Verified")

    async def prepare(self) -> None:
        self.make()
        await self.world.ok("PUSH", queue=self.world.queue(2, "other"), data="old", jobId=self.children[2])

    async def act(self) -> None:
        reply = await self.world.once("PUSHF", jobs=self.jobs)
        assert reply is None or reply["error"] == f"Flow job {self.children[2]} already exists", reply

    async def check(self) -> None:
        world = self.world
        assert (await world.census()).keys() == {self.children[2]}
        await world.work_off()
        await world.ids_are_free(self.ids)


class CompleteChildren(Flow):
    """Children complete one after the other, whereupon their parent is ready."""

    messages = TOLD

    async def prepare(self) -> None:
        await super().prepare()
        world = self.world
        pulled = [await world.pull(world.queue((number + 1) % 4)) for number in range(4)]
        self.tokens = dict(pulled)

    async def act(self) -> None:
        self.open: list[str] = []
        for child in self.children:
            reply = await self.world.once("ACK", id=child, token=self.tokens[child], result=child)
            assert reply is None or reply["ok"], reply
            if reply is None:
                self.open.append(child)

    async def check(self) -> None:
        world = self.world
        for child in self.open:  # refused when it was heard
            await world.ask("ACK", id=child, token=self.tokens[child], result=child)
        await world.until(self.parent, "waiting")
        assert await self.values() == self.results()
        await world.work_off()
        assert world.delivered == {self.parent: 1}


class ChildrenValues(Flow):
    """A parent asks for the results of its children."""

    messages = ("Forward", "Forwarded", "Where", "Homes", "Values", "ValuesAre")

    async def prepare(self) -> None:
        await super().prepare()
        await self.world.work_off()

    async def act(self) -> None:
        reply = await self.world.once("GetChildrenValues", id=self.parent)
        assert reply is None or reply["data"]["values"] == self.results(), reply

    async def check(self) -> None:
        assert await self.values() == self.results()


class FailingChild(Flow):
    """The first child fails for good; what that means for its parent is up to its policy."""

    messages: tuple[str, ...] = ()
    policy = ""
    removed = False

    async def prepare(self) -> None:
        self.make(**{self.policy: True, "removeOnFail": self.removed})
        await self.world.ok("PUSHF", jobs=self.jobs)
        await self.appears()
        _, self.token = await self.world.pull(self.world.queue(1))

    async def act(self) -> None:
        self.reply = await self.fail()
        assert self.reply is None or self.reply["ok"], self.reply

    async def fail(self) -> Any:
        fields = {"token": self.token, "error": "broken", "unrecoverable": True}
        return await self.world.once("FAIL", id=self.children[0], **fields)

    async def check(self) -> None:
        world = self.world
        while self.reply is None:
            self.reply = await self.fail()  # refused when it was heard
        assert await world.state(self.children[0]) == ("unknown" if self.removed else "failed")
        await self.consequence()

    @property
    def first(self) -> str:
        """As maps of errors name it."""
        return f"{self.jobs[0]['queue']}:{self.children[0]}"

    async def consequence(self) -> None:
        """What its failure means for its parent."""
        raise NotImplementedError


class FailParent(FailingChild):
    messages = TOLD
    policy = "failParentOnFailure"

    async def consequence(self) -> None:
        world = self.world
        await world.until(self.parent, "failed")
        job = (await world.ok("GetJob", id=self.parent))["job"]
        assert job["failedReason"] == f"Child job {self.children[0]} failed: broken"
        await world.work_off()
        assert world.delivered == dict.fromkeys(self.children[1:], 1)


class RemoveDependency(FailingChild):
    messages = TOLD
    policy = "removeDependencyOnFailure"

    async def consequence(self) -> None:
        world = self.world
        await world.work_off()
        assert world.delivered == dict.fromkeys(self.ids[1:], 1)


class IgnoreFailure(FailingChild):
    messages = TOLD
    policy = "ignoreDependencyOnFailure"

    async def consequence(self) -> None:
        world = self.world
        world.ignored = {self.children[0]}
        await world.work_off()
        assert world.delivered == dict.fromkeys(self.ids[1:], 1)
        ignored = (await world.ok("GetIgnoredChildrenFailures", id=self.parent))["values"]
        assert ignored == {self.first: "broken"}


class ContinueParent(FailingChild):
    messages = TOLD
    policy = "continueParentOnFailure"

    async def consequence(self) -> None:
        world = self.world
        await world.until(self.parent, "waiting")  # before the others have completed
        failed = (await world.ok("GetFailedChildrenValues", id=self.parent))["values"]
        assert failed == {self.first: "broken"}


class FailParentOfRemoved(FailParent):
    """... and nothing is kept of the child."""

    removed = True


class NewParent(Story):
    """A waiting job becomes the parent of another one."""

    messages = (
        "Where",
        "Homes",
        "FamilyOperation",
        "FamilyOperation",
        "FamilyOperation",
        "FamilyChanged",
        "FamilyChanged",
        "Watch",
        "Outcomes",
    )

    async def prepare(self) -> None:
        world = self.world
        self.parent, self.child = world.id(3, "parent"), world.id(3, "child")
        await world.ok("PUSH", queue=world.queue(1), data={}, jobId=self.parent)
        await world.ok("PUSH", queue=world.queue(2), data={}, jobId=self.child)
        self.fields = {"childId": self.child, "parentId": self.parent}

    async def act(self) -> None:
        self.reply = await self.world.once("UpdateParent", **self.fields)
        assert self.reply is None or self.reply["ok"], self.reply

    async def check(self) -> None:
        world = self.world
        if self.reply is None:
            await world.ok("UpdateParent", **self.fields)
        assert await world.state(self.parent) == "waiting-children"
        child = (await world.census())[self.child]
        assert child["parentId"] == child["data"]["__parentId"] == self.parent
        await world.work_off()
        assert list(world.delivered) == [self.child, self.parent]
        assert set(world.delivered.values()) == {1}
        values = (await world.ok("GetChildrenValues", id=self.parent))["data"]["values"]
        assert values == {f"{world.queue(2)}:{self.child}": self.child}


class PartChild(Flow):
    """A child is parted from its parent, which does not wait for it any more."""

    messages = ("Forward", "Forwarded", "Where", "Homes", "FamilyOperation", "FamilyChanged")

    async def act(self) -> None:
        self.reply = await self.world.once("RemoveChildDependency", id=self.children[0])
        assert self.reply is None or self.reply["ok"], self.reply

    async def check(self) -> None:
        world = self.world
        if self.reply is None:
            await world.ask("RemoveChildDependency", id=self.children[0])  # refused when it was heard
        await world.pull(world.queue(1))  # so that it does not complete
        for number in (2, 3, 0):
            own, token = await world.pull(world.queue(number))
            await world.ok("ACK", id=own, token=token)
        await world.until(self.parent, "waiting")


class RemoveChildren(Flow):
    """The children that were not started are removed, and their parent waits for the others alone.

    No shard hears at once that their ids are free: what became of a job that others wait for is remembered.
    """

    messages = (
        *("Forward", "Forwarded", "Where", "Homes"),
        *("FamilyOperation", "FamilyOperation", "FamilyChanged"),
    )

    async def prepare(self) -> None:
        await super().prepare()
        _, self.token = await self.world.pull(self.world.queue(1))

    async def act(self) -> None:
        self.reply = await self.world.once("RemoveUnprocessedChildren", id=self.parent)
        assert self.reply is None or self.reply["ok"], self.reply

    async def check(self) -> None:
        world = self.world
        if self.reply is None:
            await world.ok("RemoveUnprocessedChildren", id=self.parent)
        assert (await world.census()).keys() == {self.children[0], self.parent}
        assert await world.state(self.parent) == "waiting-children"
        await world.ok("ACK", id=self.children[0], token=self.token)
        await world.until(self.parent, "waiting")
        await world.work_off()
        await world.ids_are_free(self.ids)


class WaitForNewChildren(Story):
    """A running job waits for a child that it has just made."""

    messages = ("Forward", "Forwarded", "Where", "Homes", "Watch", "Outcomes")

    async def prepare(self) -> None:
        world = self.world
        self.maker, self.made = world.id(3, "maker"), world.id(0, "made")
        await world.ok("PUSH", queue=world.queue(1), data={}, jobId=self.maker)
        _, token = await world.pull(world.queue(1))
        await world.ok("PUSH", queue=world.queue(2), data={}, jobId=self.made, parentId=self.maker)
        await world.ok("UpdateParent", childId=self.made, parentId=self.maker)
        self.fields = {"id": self.maker, "token": token}

    async def act(self) -> None:
        self.reply = await self.world.once("MoveToWaitingChildren", **self.fields)
        assert self.reply is None or self.reply["ok"], self.reply

    async def check(self) -> None:
        world = self.world
        if self.reply is None:
            await world.ask("MoveToWaitingChildren", **self.fields)  # refused when it was heard
        assert await world.state(self.maker) == "waiting-children"
        await world.work_off()
        assert list(world.delivered) == [self.made, self.maker]
        assert set(world.delivered.values()) == {1}

"""What users do with flows and families over several shards; see `kill_stories`."""

from __future__ import annotations

import asyncio
from typing import Any

from faults.kill_stories import Story
from support.town import SETTLES_S
from support.waiting import eventually

TOLD = ("Forward", "Forwarded", "Outcomes")  # when a child is decided


class Flow(Story):
    """Children on all shards, two of which do not keep their results, and a parent on shard 3."""

    letters: tuple[str, ...] = ()

    def make(self, **of_first: Any) -> None:
        """``of_first``: options of the first child, which is on shard 1."""
        town = self.town
        self.children = [town.id((number + 3) % 4, f"child{number}") for number in range(4)]
        self.parent = town.id(2, "parent")
        self.jobs = [
            self.job(child, (number + 1) % 4, parentId=self.parent, removeOnComplete=number > 1)
            for number, child in enumerate(self.children)
        ]
        self.jobs[0]["input"] |= of_first
        self.jobs.append(self.job(self.parent, 3, dependsOn=self.children, childrenIds=self.children))
        self.ids = [*self.children, self.parent]

    async def prepare(self) -> None:
        self.make()
        await self.town.ok("PUSHF", jobs=self.jobs)
        await self.appears()

    async def appears(self) -> None:
        """All of it; some shards may hear of the decision later."""

        async def is_there() -> bool:
            return (await self.town.census()).keys() >= set(self.ids)

        await eventually(is_there, "the whole flow is there", SETTLES_S)
        assert await self.town.state(self.parent) == "waiting-children"

    async def runs(self) -> None:
        """Children, then their parent, which sees the results that are kept."""
        town = self.town
        await town.work_off()
        assert town.delivered == dict.fromkeys(self.ids, 1)
        assert await self.values() == self.results()
        await town.ids_are_free(self.ids)

    async def values(self) -> dict[str, Any]:
        reply = await self.town.ok("GetChildrenValues", id=self.parent)
        found: dict[str, Any] = reply["data"]["values"]
        return found

    def results(self) -> dict[str, Any]:
        """What the children return; also those that are removed on completion."""
        return {f"{job['queue']}:{job['id']}": job["id"] for job in self.jobs[:-1]}


class PushFlow(Flow):
    """A flow is pushed."""

    letters = (
        "Prepare", "Prepare", "Prepared", "Claim", "Claimed", "Decide", "Decide", "Decided",
        "Where", "Homes", "Watch", "Outcomes",
    )  # fmt: skip

    async def prepare(self) -> None:
        self.make()

    async def act(self) -> None:
        self.reply = await self.town.once("PUSHF", jobs=self.jobs)
        assert self.reply is None or self.reply["ok"], self.reply

    async def check(self) -> None:
        if self.reply is None:  # its client does not know, so it pushes it again
            again = await self.town.ask("PUSHF", jobs=self.jobs)
            assert again["ok"] or again["error"].endswith("already exists"), again
        await self.appears()
        await self.runs()


class PushFlowOnce(PushFlow):
    """... and its client does not come back."""

    async def check(self) -> None:
        town = self.town

        async def is_settled() -> bool:  # some shards may hear of the decision later
            return (await town.census()).keys() in (set(), set(self.ids))

        await eventually(is_settled, "all of the flow is there, or nothing", SETTLES_S)
        if await town.census():
            await self.runs()
            return
        assert self.reply is None, "an acknowledged flow is lost"
        await town.ids_are_free(self.ids)


class UndecidedFlow(PushFlow):
    """The shard that decides about a flow is gone: what others ask about its jobs has to wait for it."""

    letters = ()

    async def act(self) -> None:
        town, child = self.town, self.children[0]
        flow = asyncio.create_task(town.once("PUSHF", jobs=self.jobs))
        assert await flow is None, "the flow is answered"
        after = town.id(2, "after")
        self.after, self.push, self.depend = await asyncio.gather(
            town.once("GetState", id=child),
            town.once("PUSH", queue=town.queue(2, "other"), data="other", jobId=child),
            town.once("PUSH", queue=town.queue(3, "other"), data=1, jobId=after, dependsOn=[child]),
        )

    async def check(self) -> None:
        town, child = self.town, self.children[0]
        jobs = await town.census()
        assert jobs.keys() <= {child, town.id(2, "after")}, "a flow that was given up has appeared"
        assert self.push is None or jobs[child]["data"] == "other", "an acknowledged push is lost"
        if self.depend is not None and not self.depend["ok"]:
            assert self.depend["error"] == f"Dependency job not found: {child}"
        await town.work_off()
        town.delivered.clear()
        await town.ok("PUSHF", jobs=self.jobs)
        await self.appears()
        await self.runs()


class RefusedFlow(Flow):
    """A flow is refused, as one of its ids is taken: nothing of it stays."""

    letters = ("Prepare", "Prepared", "Claim", "Claimed", "Decide", "Decided", "Verify", "Verified")

    async def prepare(self) -> None:
        self.make()
        await self.town.ok("PUSH", queue=self.town.queue(2, "other"), data="old", jobId=self.children[2])

    async def act(self) -> None:
        reply = await self.town.once("PUSHF", jobs=self.jobs)
        assert reply is None or reply["error"] == f"Flow job {self.children[2]} already exists", reply

    async def check(self) -> None:
        town = self.town
        assert (await town.census()).keys() == {self.children[2]}
        await town.work_off()
        await town.ids_are_free(self.ids)


class CompleteChildren(Flow):
    """Children complete one after the other, whereupon their parent is ready."""

    letters = TOLD

    async def prepare(self) -> None:
        await super().prepare()
        town = self.town
        pulled = [await town.pull(town.queue((number + 1) % 4)) for number in range(4)]
        self.tokens = dict(pulled)

    async def act(self) -> None:
        self.open: list[str] = []
        for child in self.children:
            reply = await self.town.once("ACK", id=child, token=self.tokens[child], result=child)
            assert reply is None or reply["ok"], reply
            if reply is None:
                self.open.append(child)

    async def check(self) -> None:
        town = self.town
        for child in self.open:  # refused when it was heard
            await town.ask("ACK", id=child, token=self.tokens[child], result=child)
        await town.until(self.parent, "waiting")
        assert await self.values() == self.results()
        await town.work_off()
        assert town.delivered == {self.parent: 1}


class ChildrenValues(Flow):
    """A parent asks for the results of its children."""

    letters = ("Forward", "Forwarded", "Where", "Homes", "Values", "ValuesAre")

    async def prepare(self) -> None:
        await super().prepare()
        await self.town.work_off()

    async def act(self) -> None:
        reply = await self.town.once("GetChildrenValues", id=self.parent)
        assert reply is None or reply["data"]["values"] == self.results(), reply

    async def check(self) -> None:
        assert await self.values() == self.results()


class FailingChild(Flow):
    """The first child fails for good; what that means for its parent is up to its policy."""

    letters: tuple[str, ...] = ()
    policy = ""
    removed = False

    async def prepare(self) -> None:
        self.make(**{self.policy: True, "removeOnFail": self.removed})
        await self.town.ok("PUSHF", jobs=self.jobs)
        await self.appears()
        _, self.token = await self.town.pull(self.town.queue(1))

    async def act(self) -> None:
        self.reply = await self.fail()
        assert self.reply is None or self.reply["ok"], self.reply

    async def fail(self) -> Any:
        fields = {"token": self.token, "error": "broken", "unrecoverable": True}
        return await self.town.once("FAIL", id=self.children[0], **fields)

    async def check(self) -> None:
        town = self.town
        while self.reply is None:
            self.reply = await self.fail()  # refused when it was heard
        assert await town.state(self.children[0]) == ("unknown" if self.removed else "failed")
        await self.consequence()

    @property
    def first(self) -> str:
        """As maps of errors name it."""
        return f"{self.jobs[0]['queue']}:{self.children[0]}"

    async def consequence(self) -> None:
        """What its failure means for its parent."""
        raise NotImplementedError


class FailParent(FailingChild):
    letters = TOLD
    policy = "failParentOnFailure"

    async def consequence(self) -> None:
        town = self.town
        await town.until(self.parent, "failed")
        job = (await town.ok("GetJob", id=self.parent))["job"]
        assert job["failedReason"] == f"Child job {self.children[0]} failed: broken"
        await town.work_off()
        assert town.delivered == dict.fromkeys(self.children[1:], 1)


class RemoveDependency(FailingChild):
    letters = TOLD
    policy = "removeDependencyOnFailure"

    async def consequence(self) -> None:
        town = self.town
        await town.work_off()
        assert town.delivered == dict.fromkeys(self.ids[1:], 1)


class IgnoreFailure(FailingChild):
    letters = TOLD
    policy = "ignoreDependencyOnFailure"

    async def consequence(self) -> None:
        town = self.town
        town.ignored = {self.children[0]}
        await town.work_off()
        assert town.delivered == dict.fromkeys(self.ids[1:], 1)
        ignored = (await town.ok("GetIgnoredChildrenFailures", id=self.parent))["values"]
        assert ignored == {self.first: "broken"}


class ContinueParent(FailingChild):
    letters = TOLD
    policy = "continueParentOnFailure"

    async def consequence(self) -> None:
        town = self.town
        await town.until(self.parent, "waiting")  # before the others have completed
        failed = (await town.ok("GetFailedChildrenValues", id=self.parent))["values"]
        assert failed == {self.first: "broken"}


class FailParentOfRemoved(FailParent):
    """... and nothing is kept of the child."""

    removed = True


class NewParent(Story):
    """A waiting job becomes the parent of another one."""

    letters = (
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
        town = self.town
        self.parent, self.child = town.id(3, "parent"), town.id(3, "child")
        await town.ok("PUSH", queue=town.queue(1), data={}, jobId=self.parent)
        await town.ok("PUSH", queue=town.queue(2), data={}, jobId=self.child)
        self.fields = {"childId": self.child, "parentId": self.parent}

    async def act(self) -> None:
        self.reply = await self.town.once("UpdateParent", **self.fields)
        assert self.reply is None or self.reply["ok"], self.reply

    async def check(self) -> None:
        town = self.town
        if self.reply is None:
            await town.ok("UpdateParent", **self.fields)
        assert await town.state(self.parent) == "waiting-children"
        child = (await town.census())[self.child]
        assert child["parentId"] == child["data"]["__parentId"] == self.parent
        await town.work_off()
        assert list(town.delivered) == [self.child, self.parent]
        assert set(town.delivered.values()) == {1}
        values = (await town.ok("GetChildrenValues", id=self.parent))["data"]["values"]
        assert values == {f"{town.queue(2)}:{self.child}": self.child}


class PartChild(Flow):
    """A child is parted from its parent, which does not wait for it any more."""

    letters = ("Forward", "Forwarded", "Where", "Homes", "FamilyOperation", "FamilyChanged")

    async def act(self) -> None:
        self.reply = await self.town.once("RemoveChildDependency", id=self.children[0])
        assert self.reply is None or self.reply["ok"], self.reply

    async def check(self) -> None:
        town = self.town
        if self.reply is None:
            await town.ask("RemoveChildDependency", id=self.children[0])  # refused when it was heard
        await town.pull(town.queue(1))  # so that it does not complete
        for number in (2, 3, 0):
            own, token = await town.pull(town.queue(number))
            await town.ok("ACK", id=own, token=token)
        await town.until(self.parent, "waiting")


class RemoveChildren(Flow):
    """The children that were not started are removed, and their parent waits for the others alone.

    No shard hears at once that their ids are free: what became of a job that others wait for is remembered.
    """

    letters = (
        *("Forward", "Forwarded", "Where", "Homes"),
        *("FamilyOperation", "FamilyOperation", "FamilyChanged"),
    )

    async def prepare(self) -> None:
        await super().prepare()
        _, self.token = await self.town.pull(self.town.queue(1))

    async def act(self) -> None:
        self.reply = await self.town.once("RemoveUnprocessedChildren", id=self.parent)
        assert self.reply is None or self.reply["ok"], self.reply

    async def check(self) -> None:
        town = self.town
        if self.reply is None:
            await town.ok("RemoveUnprocessedChildren", id=self.parent)
        assert (await town.census()).keys() == {self.children[0], self.parent}
        assert await town.state(self.parent) == "waiting-children"
        await town.ok("ACK", id=self.children[0], token=self.token)
        await town.until(self.parent, "waiting")
        await town.work_off()
        await town.ids_are_free(self.ids)


class WaitForNewChildren(Story):
    """A running job waits for a child that it has just made."""

    letters = ("Forward", "Forwarded", "Where", "Homes", "Watch", "Outcomes")

    async def prepare(self) -> None:
        town = self.town
        self.maker, self.made = town.id(3, "maker"), town.id(0, "made")
        await town.ok("PUSH", queue=town.queue(1), data={}, jobId=self.maker)
        _, token = await town.pull(town.queue(1))
        await town.ok("PUSH", queue=town.queue(2), data={}, jobId=self.made, parentId=self.maker)
        await town.ok("UpdateParent", childId=self.made, parentId=self.maker)
        self.fields = {"id": self.maker, "token": token}

    async def act(self) -> None:
        self.reply = await self.town.once("MoveToWaitingChildren", **self.fields)
        assert self.reply is None or self.reply["ok"], self.reply

    async def check(self) -> None:
        town = self.town
        if self.reply is None:
            await town.ask("MoveToWaitingChildren", **self.fields)  # refused when it was heard
        assert await town.state(self.maker) == "waiting-children"
        await town.work_off()
        assert list(town.delivered) == [self.made, self.maker]
        assert set(town.delivered.values()) == {1}

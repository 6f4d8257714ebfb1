"""Real processes, killed at each step of what shards do together: ids, dependencies, flows, families.

A step is a message between shards, seen from the one that sends it or gets it, before its commit or after, or
after what it says has left; what is killed is this shard, or the router, or all processes.

``make nightly`` tries each step in every story.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from itertools import count

import pytest
from faults import flow_stories, workflow_stories  # noqa: F401  # its stories are found as subclasses
from faults.kill_stories import Story
from support.budget import NIGHTLY, budget
from support.crashes import CrashingServer, Step
from support.server import dispose, quiet_port
from support.several_shards import SeveralShards

SHARDS = 4
EVERY_STEP = NIGHTLY
MOMENTS = ("before commit", "after commit", "sent")
_numbers = count()


def every_story(kind: type[Story] = Story) -> Iterator[type[Story]]:
    """The stories in which shards write messages, those of workflows, too."""
    if kind.messages:
        yield kind
    for other in kind.__subclasses__():
        yield from every_story(other)


def steps_of(story: type[Story]) -> Iterator[Step]:
    for message, times in Counter(story.messages).items():
        for moment in MOMENTS:
            yield Step(message, "receives", moment)
            for nth in range(1, times + 1):
                if (message, moment) != ("Forwarded", "before commit"):  # it is written after the commit
                    yield Step(message, "sends", moment, nth=nth)
        if times > 1:
            yield Step(message, "sends", "half sent")
        for victim in ("router", "server"):
            yield Step(message, "sends", "after commit", victim)
            yield Step(message, "receives", "after commit", victim)


def cases() -> Iterator[tuple[type[Story], Step]]:
    """For each message half of the moments of both shards, and the end of the router or of all processes, in
    one of the stories; all of them in all stories when that is asked for."""
    seen: set[tuple[str, ...]] = set()
    messages: dict[str, int] = {}
    for story in every_story():
        for step in steps_of(story):
            number = messages.setdefault(step.message, len(messages))
            if is_left_out(story, step) or not (EVERY_STEP or is_due(step, number)):
                continue
            alone = step.victim == "shard"
            what = (step.message, step.victim, *((step.role, step.moment) if alone else ()))
            if EVERY_STEP or what not in seen:
                seen.add(what)
                yield story, step


def is_due(step: Step, number: int) -> bool:
    """Whether a step is among those of each change: messages with even numbers have the one half of the
    steps, the others the other half."""
    if step.moment not in MOMENTS:
        return True
    kind = step.victim == "router" if step.victim != "shard" else MOMENTS.index(step.moment)
    return (number + kind + (step.role == "sends" and step.victim == "shard")) % 2 == 0


def is_left_out(story: type[Story], step: Step) -> bool:
    """One moment of each shard, and the end of the router, are enough for a story that is sparse."""
    alone = step.victim == "shard" or (step.victim == "router" and step.role == "receives")
    return story.sparse and not EVERY_STEP and not (alone and step.moment == "after commit")


@pytest.fixture(scope="module")
def one_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrashingServer]:
    server = CrashingServer(tmp_path_factory.mktemp("flows") / "data", shards=SHARDS, port=quiet_port())
    server.start()
    yield server
    dispose(server)


@pytest.fixture
def server(one_server: CrashingServer) -> CrashingServer:
    """A server that all tests here kill; each has queues and ids of its own."""
    if not one_server.running:
        one_server.restart()
    return one_server


@pytest.mark.parametrize(
    ("kind", "step"), [pytest.param(*case, id=f"{case[0].__name__}-{case[1]}") for case in cases()]
)
async def test_a_kill_at_one_step(server: CrashingServer, kind: type[Story], step: Step) -> None:
    await tell(kind, server, step)


async def tell(kind: type[Story], server: CrashingServer, *steps: Step) -> None:
    """A story from its beginning to its end."""
    world = SeveralShards(server.address, f"s{next(_numbers)}", SHARDS)
    story = kind(world)
    await story.prepare()
    server.arm(*steps)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(server.crash())
        tasks.create_task(story.act())
    await story.check()


COORDINATOR_IS_GONE = Step("Prepared", "receives", "before commit", shard=0)


async def test_what_is_asked_about_a_flow_waits_for_its_decision(server: CrashingServer) -> None:
    await tell(flow_stories.UndecidedFlow, server, COORDINATOR_IS_GONE)


@pytest.mark.parametrize("role", ["sends", "receives"])
@pytest.mark.parametrize("message", ["Recall", "Recalled"])
@pytest.mark.parametrize("moment", budget(MOMENTS[1:2], MOMENTS))
@pytest.mark.parametrize("kind", [flow_stories.PushFlow, flow_stories.PushFlowOnce])
async def test_a_second_kill_while_the_shards_ask_what_was_decided(
    server: CrashingServer, kind: type[Story], message: str, role: str, moment: str
) -> None:
    await tell(kind, server, COORDINATOR_IS_GONE, Step(message, role, moment))

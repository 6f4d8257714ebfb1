"""Real processes, killed at each step of what shards do together: ids, dependencies, flows, families.

A step is a letter between shards, seen from the one that sends it or gets it, before its commit or after, or
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
from support.budget import NIGHTLY
from support.crashes import CrashingServer, Step
from support.server import dispose, quiet_port
from support.town import Town

SHARDS = 4
EVERY_STEP = NIGHTLY
MOMENTS = ("before commit", "after commit", "sent")
_numbers = count()


def every_story(kind: type[Story] = Story) -> Iterator[type[Story]]:
    """The stories in which shards write letters, those of workflows, too."""
    if kind.letters:
        yield kind
    for other in kind.__subclasses__():
        yield from every_story(other)


def steps_of(story: type[Story]) -> Iterator[Step]:
    for letter, times in Counter(story.letters).items():
        for moment in MOMENTS:
            yield Step(letter, "receives", moment)
            for nth in range(1, times + 1):
                if (letter, moment) != ("Forwarded", "before commit"):  # it is written after the commit
                    yield Step(letter, "sends", moment, nth=nth)
        if times > 1:
            yield Step(letter, "sends", "half sent")
        for victim in ("router", "server"):
            yield Step(letter, "sends", "after commit", victim)
            yield Step(letter, "receives", "after commit", victim)


def cases() -> Iterator[tuple[type[Story], Step]]:
    """For each letter every moment of both shards, and the end of the router and of all processes, in one of
    the stories; all of them in all stories when that is asked for."""
    seen: set[tuple[str, ...]] = set()
    for story in every_story():
        for step in steps_of(story):
            if is_left_out(story, step):
                continue
            alone = step.victim == "shard"
            what = (step.letter, step.victim, *((step.role, step.moment) if alone else ()))
            if EVERY_STEP or what not in seen:
                seen.add(what)
                yield story, step


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
    town = Town(server.address, f"s{next(_numbers)}", SHARDS)
    story = kind(town)
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
@pytest.mark.parametrize("letter", ["Recall", "Recalled"])
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("kind", [flow_stories.PushFlow, flow_stories.PushFlowOnce])
async def test_a_second_kill_while_the_shards_ask_what_was_decided(
    server: CrashingServer, kind: type[Story], letter: str, role: str, moment: str
) -> None:
    await tell(kind, server, COORDINATOR_IS_GONE, Step(letter, role, moment))

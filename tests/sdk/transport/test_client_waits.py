"""How many commands it takes to wait for many jobs, and that none of them is forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from msgspec import Raw
from support.waiting import eventually

from bunqueue.client import waits as module
from bunqueue.client.waits import Waits
from bunqueue.errors import BunqueueError
from bunqueue.protocol.commands.events import Ended, WaitJobs, WaitManyReply


class Puppet:
    """A server that parks what it is asked, until a test lets jobs end."""

    def __init__(self) -> None:
        self.asked: list[WaitJobs] = []
        self.parked: dict[asyncio.Future[list[Ended]], WaitJobs] = {}
        self.ended: dict[str, Ended] = {}
        self.error: BunqueueError | None = None
        self.most = 0

    async def __call__(self, command: WaitJobs) -> WaitManyReply:
        self.asked.append(command)
        if self.error is not None:
            raise self.error
        known = [self.ended[job_id] for job_id in command.ids if job_id in self.ended]
        if known or not command.timeout:
            await asyncio.sleep(0)
            return WaitManyReply(ended=known)
        future: asyncio.Future[list[Ended]] = asyncio.get_running_loop().create_future()
        self.parked[future] = command
        self.most = max(self.most, len(self.parked))
        try:
            async with asyncio.timeout(command.timeout / 1000):
                return WaitManyReply(ended=await future)
        except TimeoutError:
            return WaitManyReply(ended=[])
        finally:
            del self.parked[future]

    def end(self, ids: Iterable[str]) -> None:
        for job_id in ids:
            self.ended[job_id] = ended = Ended(id=job_id, state="completed", result=Raw(b"\x01"))
            for future, command in self.parked.items():
                if job_id in command.ids and not future.done():
                    future.set_result([ended])


@pytest.fixture
def puppet() -> Puppet:
    return Puppet()


@pytest.fixture
async def waits(puppet: Puppet) -> Waits:
    return Waits(puppet)


def ids(count: int, start: int = 0) -> list[str]:
    return [f"job-{number}" for number in range(start, start + count)]


async def begin(waits: Waits, names: Iterable[str], seconds: float | None = None) -> list[asyncio.Task[Any]]:
    tasks = [asyncio.ensure_future(waits.ended("q", name, seconds)) for name in names]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return tasks


async def test_those_that_begin_together_share_a_command(puppet: Puppet, waits: Waits) -> None:
    tasks = await begin(waits, ids(2500))
    await asyncio.sleep(0)
    assert [len(command.ids) for command in puppet.asked] == [1000, 1000, 500]
    puppet.end(ids(2500))
    ended = await asyncio.gather(*tasks)
    assert [each.id for each in ended] == ids(2500)
    assert not waits._queues["q"].waiting


async def test_queues_are_asked_apart(puppet: Puppet, waits: Waits) -> None:
    tasks = [asyncio.ensure_future(waits.ended(queue, "job-0", None)) for queue in ("a", "b")]
    await eventually(lambda: len(puppet.parked) == 2, "both are parked")
    assert {command.queue for command in puppet.asked} == {"a", "b"}
    puppet.end(ids(1))
    await asyncio.gather(*tasks)


async def test_two_who_wait_for_one_job(puppet: Puppet, waits: Waits) -> None:
    tasks = await begin(waits, ["job-0", "job-0"])
    puppet.end(ids(1))
    assert len({id(ended) for ended in await asyncio.gather(*tasks)}) == 1
    assert puppet.asked[0].ids == ["job-0"]


async def test_never_more_commands_than_few_however_they_come(
    puppet: Puppet, waits: Waits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SHORT_S", 0.02)
    tasks = []
    for name in ids(50):
        tasks += await begin(waits, [name])
    assert puppet.most == module.MOST
    await eventually(lambda: {n for each in puppet.asked for n in each.ids} == set(ids(50)), "all are asked")
    await eventually(
        lambda: sum(len(command.ids) for command in puppet.parked.values()) == 50,
        "all have a place among the parked",
    )
    puppet.end(ids(50))
    await asyncio.gather(*tasks)


async def test_one_for_which_there_is_no_room_is_asked_all_the_same(puppet: Puppet, waits: Waits) -> None:
    for name in ids(module.MOST):
        await begin(waits, [name])
    puppet.end(["job-99"])
    (task,) = await begin(waits, ["job-99"])
    assert (await asyncio.wait_for(task, 60)).id == "job-99"
    assert puppet.asked[-1].timeout == 0


async def test_with_no_time_it_is_asked_once(puppet: Puppet, waits: Waits) -> None:
    puppet.end(["job-0"])
    assert (await waits.ended("q", "job-0", 0)).id == "job-0"
    with pytest.raises(TimeoutError):
        await waits.ended("q", "job-1", 0)
    assert [(command.ids, command.timeout) for command in puppet.asked] == [(["job-0"], 0), (["job-1"], 0)]


async def test_patience_is_that_of_each(puppet: Puppet, waits: Waits) -> None:
    short, long = await begin(waits, ["job-0"], 0.05) + await begin(waits, ["job-1"])
    with pytest.raises(TimeoutError):
        await short
    puppet.end(["job-1"])
    assert (await long).id == "job-1"
    assert "job-0" not in waits._queues["q"].waiting


async def test_a_server_that_does_not_answer_is_not_waited_for_much_longer(
    puppet: Puppet, waits: Waits, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def deaf(command: WaitJobs) -> WaitManyReply:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(module, "GRACE_S", 0.05)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(Waits(deaf).ended("q", "job-0", 0.05), 60)


async def test_those_who_left_are_not_asked_for_again(puppet: Puppet, waits: Waits) -> None:
    first, second = await begin(waits, ["job-0", "job-1"])
    first.cancel()
    await asyncio.sleep(0)
    puppet.end(["job-7"])
    (third,) = await begin(waits, ["job-7"])
    await third
    for future in list(puppet.parked):
        future.set_result([])
    await eventually(lambda: puppet.asked[-1].ids == ["job-1"], "only the other is asked for again")
    puppet.end(["job-1"])
    await second
    assert first.cancelled()


@pytest.mark.parametrize("error", [BunqueueError("away"), ValueError("strange")])
async def test_errors_are_told_to_all(puppet: Puppet, waits: Waits, error: Any) -> None:
    puppet.error = error
    tasks = await begin(waits, ids(3))
    assert await asyncio.gather(*tasks, return_exceptions=True) == [error] * 3
    puppet.error = None
    (task,) = await begin(waits, ["job-9"])
    puppet.end(["job-9"])
    assert (await task).id == "job-9"

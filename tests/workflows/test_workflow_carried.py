"""Workflows that wait go to other shards and into backups, with their steps, waits, signals and undo."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from support.cli import Cli
from support.server import ROOT, Server, StartServer
from support.waiting import eventually

from bunqueue import Bunqueue, Flow, JobFailed, Unrecoverable
from bunqueue.client.queue.workflow import AsyncWorkflowHandle

PATIENCE = 60_000
MANY = 12  # over two queues, so that each shard has some


class Shop:
    """An app on a server, and what its steps have done in the life of one worker."""

    def __init__(self, server: Server) -> None:
        self.app = app = Bunqueue("shop", port=server.port)
        self.ran: list[str] = []
        self.undone: list[str] = []

        @app.job(queue="parts")
        async def part(name: str) -> str:
            return f"part of {name}"

        @app.workflow(queue="orders")
        async def order(flow: Flow, name: str, fails: bool) -> list[str]:
            found = [await flow.step("charge", self._charge, name, undo=self.undone.append)]
            found.append(await flow.run(part, name))
            found.append(await flow.wait_for("first", str))  # it waits for this when it is carried
            found.append(await flow.wait_for("second", str))  # this is kept for it
            found.append(await flow.wait_for("all", str, key="everybody"))  # so is this
            if fails:
                raise Unrecoverable("in the end")
            return found

        self.order = order

    def _charge(self, name: str) -> str:
        self.ran.append(name)
        return f"charge of {name}"

    def handles(self) -> list[AsyncWorkflowHandle[list[str]]]:
        return [self.order.handle_async(f"w{number}") for number in range(MANY)]


async def begin(server: Server) -> None:
    """Until all wait for their first signal; they have got their second one."""
    shop = Shop(server)
    async with shop.app:
        handles = [
            await shop.order.start_async(f"w{number}", number % 4 == 3, id=f"w{number}")
            for number in range(MANY)
        ]

        async def all_wait() -> bool:
            return all([await handle.state() == "waiting-signal" for handle in handles])

        await eventually(all_wait, "all workflows wait")
        for handle in handles:
            assert not await handle.signal("second", "kept")
        assert await shop.app.broadcast_async("all", "everybody", "everybody's") == 0
    assert sorted(shop.ran) == sorted(handle.id for handle in handles)


async def finish(server: Server) -> None:
    shop = Shop(server)
    async with shop.app:
        handles = shop.handles()
        for handle in handles:
            assert [step.name for step in await handle.history()] == ["charge", "part", "first"]
            assert [signal.name for signal in (await handle.info()).signals] == ["second"]
            assert await handle.signal("first", "sent")
        for number, handle in enumerate(handles):
            name = f"w{number}"
            if number % 4 == 3:
                with pytest.raises(JobFailed, match="in the end"):
                    await handle.result(PATIENCE)
            else:
                found = [f"charge of {name}", f"part of {name}", "sent", "kept", "everybody's"]
                assert await handle.result(PATIENCE) == found
    assert shop.ran == []  # what was recorded is not done again
    assert sorted(shop.undone) == sorted(f"charge of w{number}" for number in range(3, MANY, 4))


@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 2)])
async def test_over_a_change_of_the_number_of_shards(
    make_server: StartServer, before: int, after: int
) -> None:
    server = make_server(shards=before)
    server.start()
    await begin(server)
    server.stop()
    folder = Path(server.data_dir)
    command = [sys.executable, "-m", "bunqueue", "reshard", "--data-dir", str(folder), "--shards", str(after)]
    await asyncio.to_thread(subprocess.run, command, cwd=ROOT, check=True, timeout=60)
    other = make_server(data_dir=folder, shards=after)
    other.start()
    await finish(other)


async def test_from_a_backup(make_server: StartServer, tmp_path: Path) -> None:
    server = make_server()
    server.start()
    await begin(server)
    copy = tmp_path / "copy"
    Cli(server)("snapshot", "--data-dir", str(server.data_dir), "--out", str(copy))
    server.kill_all()
    other = make_server(data_dir=copy)
    other.start()
    await finish(other)

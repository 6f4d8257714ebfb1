"""A disk that fails for a while: what it cannot do is refused, the processes stay, and it passes."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from support.bad_disk import BadDisk
from support.naming import queue_on
from support.server import Server, StartServer
from support.waiting import eventually
from support.wire import Reply, Wire

from bunqueue.protocol.codes import Code

PASSES_S = 30.0


@pytest.fixture
def disk(tmp_path: Path) -> BadDisk:
    folder = tmp_path / "rules"
    folder.mkdir()
    return BadDisk(folder)


@pytest.fixture
def server(disk: BadDisk, make_server: StartServer) -> Server:
    server = make_server(shards=2)
    server.environ = disk.environ
    server.start()
    return server


async def accepted(wire: Wire, **fields: object) -> Reply:
    """The reply to a command that is refused for a while."""
    found: list[Reply] = []

    async def is_accepted() -> bool:
        found.append(await wire.call(**fields))
        return bool(found[-1]["ok"])

    await eventually(is_accepted, "it is accepted again", PASSES_S)
    return found[-1]


@pytest.mark.parametrize("number", [errno.EIO, errno.EDQUOT], ids=["EIO", "EDQUOT"])
async def test_a_flush_that_fails(server: Server, disk: BadDisk, number: int) -> None:
    wire = await Wire.open(server.address)
    here = queue_on(0)
    push = {"cmd": "PUSH", "queue": here, "data": 1, "durable": True}
    before = [process.pid for process in server.shard_processes()]
    kept = (await wire.ok(**push))["id"]
    with disk.failing("sync", number, "-wal"):
        code = Code.STORAGE_FAILED if number == errno.EIO else Code.STORAGE_FULL
        for own in ("", "a", "b", "c"):  # ids of which some are the other shard's business
            reply = await wire.call(**push, **({"jobId": own} if own else {}))
            assert reply["code"] == code, reply
        assert "cannot be flushed" in reply["error"]
        assert (await wire.ok("GetJob", id=kept))["job"]["data"] == 1
    await accepted(wire, **push, jobId="d")
    assert (await wire.ok("GetJob", id="d"))["job"]["data"] == 1
    await wire.ok(**push)
    assert [process.pid for process in server.shard_processes()] == before
    assert "Traceback" not in server.log()
    await wire.close()

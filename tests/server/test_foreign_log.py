"""A shard's write-ahead log that was exchanged while the server was down."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.server import NotStarted, Server, StartServer
from support.wire import Wire


async def fill(server: Server, queue: str) -> Path:
    """Leave jobs in the file, and in its log; the log."""
    server.start()
    async with await Wire.open(server.address) as wire:
        await wire.ok("PUSH", queue=queue, data="in the file")
    server.stop()
    server.restart()
    async with await Wire.open(server.address) as wire:
        await wire.ok("PUSH", queue=queue, data="in the log")
    server.kill_all()
    return Path(server.data_dir) / "shard-00.db-wal"


async def count(server: Server, queue: str) -> int:
    async with await Wire.open(server.address) as wire:
        found: int = (await wire.ok("Count", queue=queue))["count"]
        return found


async def test_the_log_of_another_folder_is_refused(make_server: StartServer, tmp_path: Path) -> None:
    server, other = make_server(shards=1), make_server(shards=1, data_dir=tmp_path / "other")
    log, foreign = await fill(server, "q"), await fill(other, "q")
    own = log.with_name("kept")
    log.rename(own)
    shutil.copy(foreign, log)
    with pytest.raises(NotStarted) as refused:
        server.start()
    assert refused.value.status == 9
    assert "shard-00.db has the -wal of another file beside it" in refused.value.refusals[0]
    own.replace(log)
    server.restart()
    assert await count(server, "q") == 2, "the refused start has changed something"

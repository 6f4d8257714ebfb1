"""Flows of which one shard has lost its part, as after a power cut: what is left of them is removed."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

from support.naming import queue_on
from support.server import StartServer
from support.waiting import wait_until
from support.wire import Wire

FLOWS = 7


async def test_removed_half_flows_are_logged_and_counted(make_server: StartServer) -> None:
    server = make_server()
    server.start()
    near, far = queue_on(0), queue_on(1)
    old = Path(server.data_dir) / "shard-01.db.old"
    async with await Wire.open(server.address) as wire:
        for queue in (near, far):
            await wire.ok("PUSH", queue=queue, data="whole")
        with closing(sqlite3.connect(old.with_suffix(""))) as db:
            db.execute("vacuum into ?", (str(old),))
        for number in range(FLOWS):
            parent, child = f"parent-{number}", f"child-{number}"
            fields = {"data": {}, "dependsOn": [child], "childrenIds": [child]}
            jobs = [
                {"id": child, "queue": near, "input": {"data": {}, "parentId": parent}},
                {"id": parent, "queue": far, "input": fields},
            ]
            await wire.ok("PUSHF", jobs=jobs)
    server.kill_all()
    for name in ("shard-01.db-wal", "shard-01.db-shm"):
        old.with_name(name).unlink(missing_ok=True)
    old.replace(old.with_suffix(""))
    server.restart()
    told = rf"half flows were removed: other shards have lost .* flows={FLOWS} jobs={FLOWS} examples=.*child-"
    wait_until(lambda: re.search(told, server.log()), "the log tells of half flows")
    async with await Wire.open(server.address) as wire:
        for queue in (near, far):
            assert (await wire.ok("Count", queue=queue))["count"] == 1
        metrics = (await wire.ok("Prometheus"))["data"]["metrics"]
        assert f'bunqueue_half_flows_removed_total{{shard="0"}} {FLOWS}.0' in metrics
        assert 'bunqueue_half_flows_removed_total{shard="1"} 0.0' in metrics

"""A reader that stays keeps the write-ahead log from being reset: it is told of, and the log has a limit."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from support.cli import Cli
from support.server import StartServer
from support.waiting import eventually
from support.wire import Wire

LIMIT_MB = 128
BOUND = (LIMIT_MB + 32) << 20  # bytes: what one look misses is less


async def test_pushes_wait_for_a_reader_that_stays(tmp_path: Path, make_server: StartServer) -> None:
    server = make_server("--wal-limit", str(LIMIT_MB), shards=1)
    server.start()
    wire = await Wire.open(server.address)
    ids = (await wire.ok("PUSHB", queue="small", jobs=[{"data": n} for n in range(10)]))["ids"]
    file = Path(server.data_dir) / "shard-00.db"
    wal = file.with_name(f"{file.name}-wal")
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True, isolation_level=None)) as reader:
        reader.execute("begin")
        reader.execute("select count(*) from jobs").fetchone()
        reply = {"ok": True}
        for _ in range(400):
            reply = await wire.call("PUSHB", queue="big", jobs=[{"data": "x" * 100_000}] * 10)
            if not reply["ok"]:
                break
            assert wal.stat().st_size < BOUND
        assert reply["code"] == "WAL_LIMIT", reply
        assert "end what keeps" in reply["error"]
        log = server.log()
        assert log.index("a reader keeps the WAL from being reset") < log.index("the WAL is too long")
        status = (await wire.ok("StorageStatus"))["data"]
        assert (status["code"], status["diskFull"]) == ("WAL_LIMIT", False)
        assert status["rooms"][0]["wal"] > LIMIT_MB << 20
        found = {row["check"]: row for row in Cli(server).json("doctor", status=1)}
        assert found["storage"]["status"] == "problem"
        metrics = (await wire.ok("Prometheus"))["data"]["metrics"]
        assert 'bunqueue_sqlite_wal_size_bytes{shard="0"}' in metrics

        # Work goes on.
        pulled = await wire.ok("PULLB", queue="small", count=10, owner="w")
        assert [job["id"] for job in pulled["jobs"]] == ids
        await wire.ok("ACKB", ids=ids, tokens=pulled["tokens"])

    async def accepted() -> bool:
        return bool((await wire.call("PUSH", queue="small", data=1))["ok"])

    await eventually(accepted, "pushes are accepted again")
    assert wal.stat().st_size < 64 << 20
    await wire.close()

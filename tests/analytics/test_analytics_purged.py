"""Jobs that a server has removed since they ended: their events tell of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import oracle
import pytest
from history import Past
from support.server import Server, dispose
from support.wire import Wire

from bunqueue.analytics import inputs, lake, pipeline
from bunqueue.analytics.engine import Engine
from bunqueue.analytics.engines.duck import Duck
from bunqueue.analytics.exporting import export
from bunqueue.analytics.pipeline import Result


async def _finish(server: Server) -> None:
    """Five dead letters, one of which had two attempts and one an id of its own, and two completed jobs."""
    async with await Wire.open(server.address) as wire:
        await wire.ok("Hello", protocolVersion=3)
        past = Past(wire)
        for number in range(5):
            own = {"jobId": "order-17"} if number == 1 else {}
            await past.push("pay", "charge", maxAttempts=1 + (number == 0), **own)
            for _ in range(1 + (number == 0)):
                await past.lose("pay", "ada", f"Boom {number}", number)
        for takes_ms in (5, 10):
            await past.push("pay", "charge")
            await past.work("pay", "ada", takes_ms)


async def _purge(server: Server) -> None:
    """As retention does it once a minute, where a queue keeps two dead letters and one completed job."""
    async with await Wire.open(server.address) as wire:
        await wire.ok("Hello", protocolVersion=3)
        await asyncio.sleep(0.01)  # what ended in this very millisecond is not older than now
        removed = (await wire.ok("Clean", queue="pay", state="failed", limit=3))["ids"]
        assert len(removed) == 3
        assert "order-17" in removed
        assert (await wire.ok("Clean", queue="pay", state="completed", limit=1))["count"] == 1


def _check(result: Result, folder: Path) -> None:
    """All seven jobs are there, as an independent reading of the events has them."""
    (row,) = result.tables["queues"].to_pylist()
    assert (row["created"], row["failed"], row["completed"], row["failed_attempts"]) == (7, 5, 2, 6)
    expected = oracle.activity(oracle.look_at({"web": folder}), _clock(result), lambda *_: "pay", lambda _: 1)
    for name in ("attempts", "retried", "run_total", "run_wasted", "wait_max", "run_p50", "run_max"):
        assert row[name] == pytest.approx(expected["pay"][name]), name
    (failures,) = (
        result.tables["failures"]
        .select(["jobs", "attempts"])
        .group_by([])
        .aggregate([("jobs", "sum"), ("attempts", "sum")])
        .to_pylist()
    )
    assert (failures["jobs_sum"], failures["attempts_sum"]) == (5, 6)
    assert result.tables["backlog"].to_pylist()[-1]["unfinished"] == 0


def _clock(result: Result) -> oracle.Clock:
    since, until = (round(at.timestamp() * 1000) for at in (result.about.since, result.about.until))
    return oracle.Clock(result.about.unit, "UTC", since, until)


def test_they_are_counted_once(duck: Engine, tmp_path: Path) -> None:
    """Also by a lake, which has read them before, with their names."""
    server, folder, place = Server(tmp_path / "data"), tmp_path / "data", tmp_path / "lake"
    try:
        server.start()
        asyncio.run(_finish(server))
        export([str(folder)], place, hosts=["web"])
        asyncio.run(_purge(server))
        server.stop()
    finally:
        dispose(server)
    _check(pipeline.aggregate(duck, inputs.from_folders(duck, [str(folder)], ["web"])[0]), folder)
    export([str(folder)], place, hosts=["web"])
    other = Duck()
    again = pipeline.aggregate(other, lake.from_lake(other, place))
    other.close()
    _check(again, folder)
    assert again.tables["names"]["name"].to_pylist() == ["charge"]

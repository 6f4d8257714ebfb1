"""Hosts of the previous commit's build are replaced by those of this one, one after the other, under load."""

from __future__ import annotations

import asyncio
import io
import itertools
import subprocess
import tarfile
from pathlib import Path

import pytest
from chaos.chaos_cluster import NAMES, QUEUES, running
from chaos.load import Load
from support.server import ROOT

from bunqueue import ActiveJob, AsyncQueue, Worker


@pytest.fixture
def previous(tmp_path: Path) -> Path:
    """The source tree of the previous commit."""
    done = subprocess.run(["git", "archive", "HEAD^"], cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        pytest.skip("the history of this source tree is not here")
    folder = tmp_path / "previous"
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


async def use(url: str, enough: asyncio.Event) -> list[str]:
    """A program that adds jobs and waits for their results, with a worker beside it, until it is told to end;
    it has no code for trouble.  The ids of the jobs that its worker has begun, in turn."""
    begun: list[str] = []

    async def handler(job: ActiveJob) -> int:
        begun.append(job.id)
        return int(job.data) + 1

    worker = Worker("program", handler, url=url)
    working = asyncio.create_task(worker.run())
    async with AsyncQueue("program", url=url) as queue:
        for number in itertools.count():
            if enough.is_set():
                break
            job = await queue.add("job", number)
            assert await job.result(timeout=60_000) == number + 1
    worker.stop_soon()
    await working
    return begun


@pytest.mark.nightly  # a minute: three hosts start twice, one after the other
async def test_no_client_sees_an_error(tmp_path: Path, previous: Path) -> None:
    with running(tmp_path / "hosts", code=previous) as cluster:
        load = Load(cluster.addresses, QUEUES)
        load.start()
        enough = asyncio.Event()
        url = "bunqueue://" + ",".join(f"{host}:{port}" for host, port in cluster.addresses)
        program = asyncio.create_task(use(url, enough))
        for name in NAMES:
            server = cluster.hosts.servers[name]
            assert await asyncio.to_thread(server.stop) == 0
            server.environ.pop("PYTHONPATH")
            await asyncio.to_thread(server.restart)
            await cluster.healed()
        enough.set()
        begun = await program
        assert len(begun) == len(set(begun)) > 10, "none ran twice"
        final = await cluster.drained(load)
        assert load.history.problems(final, cluster.log()) == []
        assert len(load.done) > 100

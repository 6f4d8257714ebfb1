"""Hosts of the previous commit's build are replaced by those of this one, one after the other, under load."""

from __future__ import annotations

import asyncio
import io
import subprocess
import tarfile
from pathlib import Path

import pytest
from chaos.load import Load
from chaos.victims import NAMES, QUEUES, running
from support.server import ROOT


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


async def test_no_client_sees_an_error(tmp_path: Path, previous: Path) -> None:
    with running(tmp_path / "hosts", code=previous) as cluster:
        load = Load(cluster.addresses, QUEUES)
        load.start()
        for name in NAMES:
            server = cluster.hosts.servers[name]
            assert await asyncio.to_thread(server.stop) == 0
            server.environ.pop("PYTHONPATH")
            await asyncio.to_thread(server.restart)
            await cluster.healed()
        final = await cluster.drained(load)
        assert load.history.problems(final, cluster.log()) == []
        assert len(load.done) > 100

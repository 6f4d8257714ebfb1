from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from engine.workflow_world import Workflows

PLACES = [(1, False), (1, True), (4, False), (4, True)]


@pytest.fixture(params=PLACES, ids=["1", "1-crashing", "4", "4-crashing"])
def flows(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Workflows]:
    """On one shard and on four, without crashes and with one of every shard after each command."""
    shards, crashes = request.param
    flows = Workflows(tmp_path, shards, crashes=crashes)
    yield flows
    flows.world.close()

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from engine.workflow_world import Workflows

NIGHT = pytest.mark.nightly
PLACES = [
    pytest.param((1, False), id="1", marks=NIGHT),
    pytest.param((1, True), id="1-crashing"),
    pytest.param((4, False), id="4"),
    pytest.param((4, True), id="4-crashing", marks=NIGHT),
]


@pytest.fixture(params=PLACES)
def flows(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Workflows]:
    """On one shard and on four, without crashes and with one of every shard after each command."""
    shards, crashes = request.param
    flows = Workflows(tmp_path, shards, crashes=crashes)
    yield flows
    flows.world.close()

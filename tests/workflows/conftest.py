"""The sentences of docs/workflows.md that the tests of this folder show to be true."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.server import Server

from bunqueue.client.connection.endpoint_options import EndpointOptions
from bunqueue.testing import Sandbox


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with Sandbox() as sandbox:
        yield sandbox


@pytest.fixture(params=["server", "embedded"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> EndpointOptions:
    """Options that lead to a server of two shards, shared by the module, or to a file of the test's own."""
    if request.param == "embedded":
        return {"embedded": True, "data_path": tmp_path / "jobs.db"}
    server: Server = request.getfixturevalue("shared_server")
    return {"host": server.host, "port": server.port}

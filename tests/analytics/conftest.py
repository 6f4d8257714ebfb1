"""A history that a real server has made."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from history import live_through, settle
from support.server import Server, dispose

from bunqueue.analytics.engine import Engine
from bunqueue.analytics.engines.duck import Duck


@pytest.fixture
def duck() -> Iterator[Engine]:
    """An engine without tables."""
    engine = Duck()
    yield engine
    engine.close()


@pytest.fixture(scope="session")
def past(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The data folder in which everything has happened that can."""
    folder = tmp_path_factory.mktemp("past") / "data"
    server = Server(folder)
    try:
        server.start()
        asyncio.run(live_through(server))
        server.stop()
        settle(folder)
        yield folder
    finally:
        dispose(server)

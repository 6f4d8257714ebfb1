"""PostgreSQL with a synchronous standby, and servers that keep their jobs in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.postgres import Postgres
from support.server import Server, dispose

SHARDS = 2

StoredServer = Callable[..., Server]


@pytest.fixture(scope="session")
def cluster() -> Iterator[Postgres]:
    """One PostgreSQL for all tests of a process; each has a database of its own."""
    with Postgres(standby=True) as running:
        yield running


@pytest.fixture
def database(cluster: Postgres) -> str:
    """The URL of a new, empty database."""
    return cluster.new_database()


@pytest.fixture
def stored_server(tmp_path: Path) -> Iterator[StoredServer]:
    """Makes servers with a store, not yet started: ``stored_server(url, *flags, data_dir=...)``."""
    made: list[Server] = []

    def make(
        url: str, *flags: str, data_dir: Path = tmp_path / "data", shards: int = SHARDS, port: int = 0
    ) -> Server:
        server = Server(data_dir, "--store", url, *flags, shards=shards, port=port)
        made.append(server)
        return server

    yield make
    for server in made:
        dispose(server)

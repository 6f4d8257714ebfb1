"""Running servers, and a shard that is driven by hand, for tests that need one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from engine.shard_driver import Driver
from support.server import Server, StartServer, dispose, quiet_port


@pytest.fixture
def make_server(tmp_path: Path) -> Iterator[StartServer]:
    """Makes servers, not yet started, whose processes end with the test: ``make_server(*flags, ...)``."""
    made: list[Server] = []

    def make(
        *flags: str,
        data_dir: Path | str = tmp_path / "data",
        shards: int = 2,
        port: int = 0,
        http_port: int = 0,
    ) -> Server:
        server = Server(data_dir, *flags, shards=shards, port=port, http_port=http_port)
        made.append(server)
        return server

    yield make
    for server in made:
        dispose(server)


@pytest.fixture
def server(make_server: StartServer) -> Server:
    """A server of the test's own with two shards."""
    server = make_server()
    server.start()
    return server


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all tests of a module; each uses queues of its own."""
    server = Server(tmp_path_factory.mktemp("shared") / "data")
    try:
        server.start()
        yield server
    finally:
        dispose(server)


@pytest.fixture(scope="module")
def web_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server with the HTTP gateway for all tests of a module; each uses queues of its own."""
    server = Server(tmp_path_factory.mktemp("web") / "data", http_port=quiet_port())
    try:
        server.start()
        yield server
    finally:
        dispose(server)


@pytest.fixture
def path(tmp_path: Path) -> str:
    """The file of a shard."""
    return str(tmp_path / "shard-00.db")


@pytest.fixture
def driver(path: str) -> Iterator[Driver]:
    """A shard without its process, fed and committed by hand; its connection 3 speaks the newest protocol."""
    driver = Driver(path)
    driver.versions[3] = 3
    yield driver
    driver.close()

"""Whatever clients do, the server has descriptors left for itself."""

from __future__ import annotations

import os
import resource
import signal
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from router_harness import RouterServer, wait_for
from support.procfs import open_files
from support.server import quiet_port

from bunqueue.server.host.descriptors import share

FILES = 256
FLOOD = 2000


@contextmanager
def flood(port: int) -> Iterator[None]:
    """So many connections that are there and say nothing."""
    sockets = []
    for _ in range(FLOOD):
        sock = socket.socket()
        sock.setblocking(False)
        sock.connect_ex(("127.0.0.1", port))
        sockets.append(sock)
    try:
        yield
    finally:
        for sock in sockets:
            sock.close()


@pytest.fixture(autouse=True)
def many_files() -> Iterator[None]:
    """For the sockets of the flood itself."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def storm(server: RouterServer) -> None:
    """All that the kernel keeps waiting comes in one turn of the event loop, and stays for some turns."""
    os.kill(server.process.pid, signal.SIGSTOP)
    with flood(server.port):
        os.kill(server.process.pid, signal.SIGCONT)
        wait_for(lambda: len(open_files(server.process.pid)) > FILES // 2)


def test_a_shard_comes_back_in_the_middle_of_a_flood(tmp_path: Path) -> None:
    with RouterServer(tmp_path, environ={"FILE_LIMIT": str(FILES)}) as server:
        storm(server)
        os.kill(server.shard_pids()[0], signal.SIGKILL)
        while server.log().count("shard ready") < 3:
            storm(server)
        assert server.log().count("shard ended") == 1, "it could not be started at once"


def test_the_gateway_keeps_descriptors_for_the_way_to_the_router(tmp_path: Path) -> None:
    port = quiet_port()
    with RouterServer(tmp_path, environ={"FILE_LIMIT": str(FILES)}, http_port=port) as server:
        *_, gateway = server.shard_pids()  # it is started last
        found = share(FILES, 4000, gateway=True)
        with flood(port):
            wait_for(lambda: len(open_files(gateway)) > found.clients // 2, "the flood is in")
            assert len(open_files(gateway)) <= FILES - found.waiting
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=30) as answer:
                assert answer.status == 200, "those that say nothing give way"
        wait_for(lambda: len(open_files(gateway)) < found.clients // 2, "the flood is gone")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health") as answer:
            assert answer.status == 200

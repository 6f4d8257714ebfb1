"""The router alone is killed while its children start or stop: they end, and have nothing to complain of."""

from __future__ import annotations

import os
import signal
import time

import pytest
from support.server import Server, StartServer, quiet_port
from support.waiting import wait_until

MOMENTS_S = [number / 25 for number in range(50)]


def killed(server: Server) -> None:
    """SIGKILL the router, and see how its children take it."""
    os.kill(server.pid, signal.SIGKILL)
    server.wait()
    server.until_gone()
    log = server.log()
    assert "Traceback" not in log
    assert log.count("router is gone") <= server.shards
    assert "was never awaited" not in log


@pytest.fixture
def whole(make_server: StartServer) -> Server:
    """A server with everything, not yet started."""
    return make_server(http_port=quiet_port())


def test_while_the_shards_start(whole: Server) -> None:
    whole.launch()
    wait_until(lambda: len(whole.shard_processes()) >= 2, "the shards have processes")
    killed(whole)


def test_while_the_gateway_starts(whole: Server) -> None:
    whole.launch()
    wait_until(lambda: "shard ready" in whole.log(), "the shards are ready")
    whole.gateway()
    killed(whole)


def test_while_the_shards_drain(whole: Server) -> None:
    whole.start()
    whole.signal(signal.SIGTERM)
    wait_until(lambda: " stopping " in whole.log(), "it stops")
    killed(whole)


@pytest.mark.nightly
@pytest.mark.parametrize("after_s", MOMENTS_S)
def test_at_any_moment_of_the_start(whole: Server, after_s: float) -> None:
    whole.launch()
    time.sleep(after_s)  # any moment: what happens then is not known
    killed(whole)

"""Running servers, a shard that is driven by hand, and how hard hypothesis tries.

Hypothesis gives the same examples each time, so that a change is blamed for what it broke.  By night it tries
many new ones; see `support.budget`.
"""

from __future__ import annotations

import gc
import os
import runpy
import signal
import sys
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path

import pytest
from engine.shard_driver import Driver
from hypothesis import HealthCheck, settings
from support import files_in_memory
from support.budget import NIGHTLY, budget
from support.proxy import Proxy
from support.server import Server, StartServer, dispose, quiet_port

# Some machines forbid Python to keep what it has compiled. The processes that tests start, some thousands,
# would each compile everything that they import: half of the time that a server takes to start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

runpy.run_path(str(Path(__file__).parent.parent / "scripts" / "unasync.py"), run_name="__main__")
files_in_memory.use()

settings.register_profile(
    "ours",
    max_examples=budget(20, 2_000),
    derandomize=not NIGHTLY,
    database=None,
    deadline=None,  # CI machines pause as they like
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("ours")

# The files that take longest, longest first: they begin first, or in the end all would wait for one of them.
LONGEST = (
    "test_abuse.py",
    "test_cluster.py",
    "test_snapshots.py",
    "test_store_moving.py",
    "test_restart.py",
    "test_flows_kill.py",
    "test_cli_docs.py",
    "test_server_with_store.py",
    "test_chaos.py",
    "test_browser_workflows.py",
    "test_browser_views.py",
    "test_data_identity.py",
    "test_patroni.py",
    "test_gateway_schema.py",
    "test_repair.py",
    "test_three_hosts.py",
    "test_several_routers.py",
    "test_clock_set.py",
    "test_browser_overview.py",
    "test_browser_care.py",
    "test_browser_jobs.py",
    "test_browser_layout.py",
    "test_simulation.py",
    "test_damage.py",
    "test_store_cli.py",
    "test_sdk_processes.py",
    "test_cli_terminal.py",
    "test_cli_worker.py",
    "test_examples_run.py",
    "test_docs_run.py",
    "test_store_seen.py",
    "test_store_kills.py",
    "test_router_process.py",
    "test_router_faults.py",
    "test_shardproc_storage.py",
    "test_demo.py",
    "test_worker_pool.py",
    "test_browser_flows.py",
    "test_browser_hosts.py",
    "test_browser_rest.py",
    "test_kill.py",
    "test_gateway_process.py",
    "test_worker_log_lines.py",
)

# A shell that starts tests in the background has them ignore Ctrl-C, and so would all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole files, longest first."""
    order = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path.name, len(order)))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected stays until the end: no garbage collection looks at it, neither now nor later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_unconfigure() -> None:
    """Else extension modules complain at the end that what they have made is still there."""
    gc.unfreeze()


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


@pytest.fixture
async def proxy(shared_server: Server) -> AsyncIterator[Proxy]:
    """A line to the module's server that can be cut and held up."""
    proxy = Proxy(shared_server.port)
    await proxy.start()
    yield proxy
    await proxy.stop()


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

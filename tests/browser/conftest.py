"""A server, perhaps with a shop's jobs flowing through it, and a browser that looks at it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import httpx2
import pytest
from playwright.sync_api import Browser, sync_playwright
from support.browser import DESK, Api, Visit, Visitor, launch, open_context
from support.server import ROOT, Server, StartServer, dispose, quiet_port
from support.waiting import PATIENCE_S, wait_until


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all tests of a module."""
    flags = ("--webhook-addresses", "any")
    server = Server(tmp_path_factory.mktemp("shop") / "data", *flags, http_port=quiet_port())
    try:
        server.start()
        yield server
    finally:
        dispose(server)


@pytest.fixture(scope="module")
def busy_shop(shop: Server) -> Iterator[Server]:
    """The same with workers, schedules and jobs that never end, which take an eighth of a core."""
    with Flow(shop):
        yield shop


class Flow:
    """Jobs flow through a server for as long as this is open."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def __enter__(self) -> None:
        program = [sys.executable, str(ROOT / "scripts/dashboard_demo.py"), "--port", str(self._server.port)]
        self._process = subprocess.Popen(program, cwd=ROOT, stderr=subprocess.PIPE)
        wait_until(self._flows, "jobs are completed")

    def _flows(self) -> bool:
        assert self._process.poll() is None, (self._process.stderr or sys.stdin).read()
        found = httpx2.get(f"{self._server.url}/overview", trust_env=False).json()["data"]
        return bool(found["stats"]["completed"] > 20 and found["collections"]["queues"] >= 7)

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.communicate(timeout=PATIENCE_S)


@pytest.fixture(scope="module")  # no longer: its event loop is in the way of tests that have one
def browser() -> Iterator[Browser]:
    """One browser for all tests of a module; each has profiles of its own."""
    with sync_playwright() as playwright:
        found = launch(playwright)
        yield found
        found.close()


@pytest.fixture
def visit(browser: Browser, make_server: StartServer) -> Iterator[Visit]:
    """Opens browsers: ``visit(server, size=..., dark=...)``; all are checked when the test ends.

    The test's own servers end after the browsers, which would complain about that: hence ``make_server``.
    """
    visitors: list[Visitor] = []

    def come(server: Server, size: tuple[int, int] = DESK, *, dark: bool = False) -> Visitor:
        visitor = Visitor(open_context(browser, size, dark=dark).new_page(), server.url)
        visitors.append(visitor)
        return visitor

    yield come
    for visitor in visitors:
        visitor.page.context.close()
    for visitor in visitors:
        visitor.check()


@pytest.fixture
def api(shop: Server) -> Api:
    return Api(shop)

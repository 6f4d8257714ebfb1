"""A browser on the dashboard: what goes wrong on a page fails its test."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable

import httpx2
import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Playwright, Request, expect

from .server import Server
from .waiting import wait_until

# The first is the same browser without its windows: a page costs less than half the processor time in it.
CHROMIUM = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
PATIENCE_MS = 60_000
PHONE = (360, 740)
DESK = (1280, 900)
CERTIFICATES = httpx2.create_ssl_context()  # once: to load them takes ten times as long as a call
# Messages disappear after some seconds, in which a busy machine may look at nothing.
KEEP_MESSAGES = """
window.messages = [];
new MutationObserver((changes) => {
  for (const node of changes.flatMap((change) => [...change.addedNodes])) {
    if (node.classList?.contains("toast")) window.messages.push(node.textContent.replace(/\\s+/g, " "));
  }
}).observe(document, { childList: true, subtree: true });
"""
TAKE_MESSAGE = """(text) => {
  const at = window.messages.findIndex((message) => message.includes(text));
  return at >= 0 && window.messages.splice(at, 1).length > 0;
}"""


def chromium() -> str:
    """The browser's program.  Without one tests are skipped, but never where CI is set."""
    found = next((path for name in CHROMIUM if (path := shutil.which(name))), None)
    if found is None:
        text = "no chromium here, so no browser tests the dashboard (apt-get install chromium-headless-shell)"
        if os.environ.get("CI"):
            pytest.fail(text)
        pytest.skip(text)
    return found


class Visitor:
    """Somebody who looks at the dashboard.  Leaving checks that nothing went wrong meanwhile."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self._refusals: list[int] = []
        self._problems: list[str] = []
        page.set_default_timeout(PATIENCE_MS)
        expect.set_options(timeout=PATIENCE_MS)
        page.on("console", self._note_console)
        page.on("pageerror", lambda error: self._problems.append(f"error: {error}"))
        page.on("requestfailed", self._note_failure)

    def expect_refusal(self, status: int) -> None:
        """The server is about to refuse something, once; a browser complains about that."""
        self._refusals.append(status)

    def _note_console(self, message: ConsoleMessage) -> None:
        status = re.search(r"status of (\d+)", message.text)
        if status and int(status[1]) in self._refusals:
            self._refusals.remove(int(status[1]))
        elif message.type in ("error", "warning"):
            self._problems.append(f"console: {message.text}")

    def _note_failure(self, request: Request) -> None:
        # A view that is left ends its own requests.
        if "ERR_ABORTED" not in str(request.failure):
            self._problems.append(f"failed: {request.method} {request.url}: {request.failure}")

    def go(self, path: str) -> Page:
        """Open an address."""
        self.page.goto(self.url + path)
        return self.page

    def check(self) -> None:
        """Nothing has gone wrong so far, and every refusal that was expected has come."""
        assert not self._problems, "\n".join(self._problems)
        assert not self._refusals, f"the server did not refuse with {self._refusals}"

    def wait_for_a_problem(self) -> None:
        """Raise what has gone wrong as soon as something has."""
        wait_until(self._look, "something goes wrong")
        self.check()

    def _look(self) -> bool:
        self.page.evaluate("0")  # lets the events of the page come
        return bool(self._problems)

    def forgive(self) -> None:
        """What has gone wrong so far was meant to."""
        self._problems.clear()

    def overflow(self) -> int:
        """How many pixels the page is wider than the window."""
        width: int = self.page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        return width


def launch(playwright: Playwright) -> Browser:
    """A headless browser."""
    arguments = ["--no-sandbox", "--disable-dev-shm-usage"]
    return playwright.chromium.launch(executable_path=chromium(), args=arguments)


def open_context(browser: Browser, size: tuple[int, int] = DESK, *, dark: bool = False) -> BrowserContext:
    """A fresh profile of a browser."""
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme="dark" if dark else "light",
        reduced_motion="reduce",
        locale="en-GB",
    )
    context.add_init_script(KEEP_MESSAGES)
    return context


Visit = Callable[..., Visitor]
"""Opens a browser on a server."""


class Api:
    """What a test does behind the page's back."""

    def __init__(self, server: Server, token: str | None = None) -> None:
        self._url = server.url
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def __call__(self, command: str, **fields: object) -> dict[str, object]:
        url, headers = f"{self._url}/commands/{command}", self._headers
        reply = httpx2.post(
            url,
            json=fields,
            headers=headers,
            trust_env=False,
            timeout=PATIENCE_MS / 1000,
            verify=CERTIFICATES,
        )
        found: dict[str, object] = reply.json()
        assert found["ok"], found
        return found

    def push(self, queue: str, **fields: object) -> str:
        return str(self("PUSH", queue=queue, **fields)["id"])

    def fail(self, queue: str, error: str, **fields: object) -> str:
        """A job that has become a dead letter."""
        job = self.push(queue, maxAttempts=1, **fields)
        self("PULL", queue=queue)
        self("FAIL", id=job, error=error, stack="Traceback\n  at line 42")
        return job

    def state(self, job: str) -> str:
        return str(self("GetState", id=job)["state"])


def act(page: Page, button: str, confirm: str | None = None) -> None:
    """Press a button, and the one of the dialog that asks."""
    page.get_by_role("button", name=button, exact=True).click()
    if confirm:
        page.get_by_role("dialog").get_by_role("button", name=confirm, exact=True).click()


def toast(page: Page, text: str) -> None:
    """Wait for a message; each counts once, and may have gone again."""
    wait_until(lambda: page.evaluate(TAKE_MESSAGE, text), f"the page says {text!r}")

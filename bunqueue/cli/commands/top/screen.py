"""``bunqueue top``: a live full-screen view of the server."""

from __future__ import annotations

import os
import re
import select
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bunqueue.errors import BunqueueError
from bunqueue.server.settings import SettingsError

from ...framework.session import Session
from ...framework.shared import verb
from ...framework.values import SPAN, option, span
from ...output import terminal
from ...output.output import plain

if TYPE_CHECKING:
    from .numbers import Samples, ServerNow
    from .view import Screen

app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)

LEAST_INTERVAL_MS = 100
PATIENCE_MS = 2000
"""How long an answer may take. No keys are read during that time."""

QUITTING = frozenset("qQ\x03\x04\x1b")
SEQUENCE = re.compile(r"\x1b[\[O][0-9;]*[A-Za-z~]")
"""The sequences of arrow and other keys, which begin with Escape."""
NO_LETTER = "."
"""A key without a meaning."""

Interval = Annotated[
    float,
    option("--interval", "-i", about="The time between updates. Default: 1s.", metavar=SPAN, parser=span),
]
Count = Annotated[int | None, option("--count", "-n", about="End after this many updates.", metavar="N")]


@verb(app, "bunqueue top", "bunqueue top --interval 5s", "bunqueue top --json --count 10")
def top(session: Session, interval: Interval = 1000, count: Count = None) -> None:
    """Watch the server live: rates, queues with their depth and oldest job, workers, shards.

    q quits; s sorts the queues by depth, oldest job, dead letters or name. With --json each update is a line,
    for other programs.
    """
    if interval < LEAST_INTERVAL_MS:
        raise SettingsError(f"--interval must be at least {LEAST_INTERVAL_MS} ms, not {interval:g}")
    if count is not None and count < 1:
        raise SettingsError(f"--count: {count} is not allowed; give a whole number from 1 on")
    session.timeout_ms = PATIENCE_MS
    poller = _Poller(session)
    if session.out.as_json:
        _print_lines(session, poller, interval, count)
        return
    if not sys.stdout.isatty():
        raise SettingsError("top draws on a terminal; elsewhere give --json, or see bunqueue stats")
    _draw_live(session, poller, interval, count)


class _Poller:
    """Polls the server; rates are between one poll and the next."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._admin = session.admin
        self._before: Samples | None = None
        self._at = 0.0

    def server(self) -> ServerNow:
        """Raises BunqueueError."""
        from .numbers import samples_of, server_now

        text = self._admin.prometheus()
        at, samples = time.monotonic(), samples_of(text)
        found = server_now(samples, self._before, at - self._at)
        self._before, self._at = samples, at
        return found

    def workers(self) -> list[dict[str, Any]]:
        """The registered workers, the busiest first."""
        now = time.time() * 1000
        rows = [plain(worker) for worker in self._admin.list_workers()]
        for row in rows:
            row["silence"] = max(0.0, now - row["lastSeen"])
        return sorted(rows, key=lambda row: (-row["activeJobs"], row["name"], row["pid"]))

    def paused(self) -> frozenset[str]:
        """The names of paused queues."""
        return frozenset(queue.name for queue in self._admin.list_queues() if queue.paused)


def _print_lines(session: Session, poller: _Poller, interval: float, count: int | None) -> None:
    from dataclasses import asdict

    poller.server()
    done = 0
    while count is None or done < count:
        time.sleep(interval / 1000)
        found = {"at": time.time_ns() // 1_000_000, **asdict(poller.server()), "workers": poller.workers()}
        session.out.line(found, "")
        done += 1


def _draw_live(session: Session, poller: _Poller, interval: float, count: int | None) -> None:
    from rich.live import Live

    from .view import Screen, draw

    console = terminal.console()
    screen = Screen(session.endpoint.address)
    _update(screen, poller)
    if screen.server is None:
        poller.server()  # raises the error
    with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        done = 0
        while count is None or done < count:
            live.update(draw(screen, *console.size), refresh=True)
            keys = pressed(interval / 1000)
            if not QUITTING.isdisjoint(keys):
                return
            for _ in range(keys.lower().count("s")):
                screen.next_sort()
            if not keys:
                _update(screen, poller)
                done += 1


def _update(screen: Screen, poller: _Poller) -> None:
    """Poll the server for the screen. If that fails, the screen shows the error and keeps what it has."""
    try:
        screen.remember(poller.server())
        screen.workers, screen.paused = poller.workers(), poller.paused()
        screen.problem = None
    except BunqueueError as error:
        screen.problem = str(error)


@contextmanager
def _keys() -> Iterator[Any]:
    """Yield a function that waits some seconds for keys, and returns those pressed, or an empty text."""
    try:
        import termios
        import tty

        before = termios.tcgetattr(sys.stdin)
    except (ImportError, OSError):  # standard input is not a terminal, or this is not Unix: Ctrl-C quits
        yield _sleep
        return
    tty.setcbreak(sys.stdin)
    try:
        yield _key
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _key(seconds: float) -> str:
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    typed = os.read(sys.stdin.fileno(), 64).decode("ascii", "replace") if ready else ""
    return SEQUENCE.sub(NO_LETTER, typed)


def _sleep(seconds: float) -> str:
    time.sleep(seconds)
    return ""

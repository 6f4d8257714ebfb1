"""``bunqueue top``: the server, live, on the whole terminal."""

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
from bunqueue.settings import SettingsError

from ...framework.session import Session
from ...framework.shared import verb
from ...framework.values import SPAN, option, span
from ...output.output import plain

if TYPE_CHECKING:
    from .numbers import Samples, ServerNow
    from .view import Screen

app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)

LEAST_INTERVAL_MS = 100
PATIENCE_MS = 2000
"""How long an answer may take: keys are not read meanwhile."""

QUITTING = frozenset("qQ\x03\x04\x1b")
SEQUENCE = re.compile(r"\x1b[\[O][0-9;]*[A-Za-z~]")
"""What arrows and the like send, which begins as Escape does."""
NO_LETTER = "."
"""A key that means nothing."""

Interval = Annotated[
    float, option("--interval", "-i", about="Between two looks. Default: 1s.", metavar=SPAN, parser=span)
]
Count = Annotated[int | None, option("--count", "-n", about="So many looks, then it ends.", metavar="N")]


@verb(app, "bunqueue top", "bunqueue top --interval 5s", "bunqueue top --json --count 10")
def top(session: Session, interval: Interval = 1000, count: Count = None) -> None:
    """Watch the server live: speeds, queues with their depth and oldest job, workers, shards.

    q quits, s sorts the queues by depth, oldest job, dead letters or name. With --json each look is a line,
    for other programs.
    """
    if interval < LEAST_INTERVAL_MS:
        raise SettingsError(f"--interval must be at least {LEAST_INTERVAL_MS} ms, not {interval:g}")
    if count is not None and count < 1:
        raise SettingsError(f"--count: {count} is not allowed; give a whole number from 1 on")
    session.timeout_ms = PATIENCE_MS
    looks = _Looks(session)
    if session.out.as_json:
        _print_lines(session, looks, interval, count)
        return
    if not sys.stdout.isatty():
        raise SettingsError("top draws on a terminal, and this is none; give --json, or see bunqueue stats")
    _draw_live(session, looks, interval, count)


class _Looks:
    """One look at the server after the other."""

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
        """The busiest first."""
        now = time.time() * 1000
        rows = [plain(worker) for worker in self._admin.list_workers()]
        for row in rows:
            row["silence"] = max(0.0, now - row["lastSeen"])
        return sorted(rows, key=lambda row: (-row["activeJobs"], row["name"], row["pid"]))

    def paused(self) -> frozenset[str]:
        """The names of queues."""
        return frozenset(queue.name for queue in self._admin.list_queues() if queue.paused)


def _print_lines(session: Session, looks: _Looks, interval: float, count: int | None) -> None:
    from dataclasses import asdict

    looks.server()
    done = 0
    while count is None or done < count:
        time.sleep(interval / 1000)
        look = {"at": time.time_ns() // 1_000_000, **asdict(looks.server()), "workers": looks.workers()}
        session.out.line(look, "")
        done += 1


def _draw_live(session: Session, looks: _Looks, interval: float, count: int | None) -> None:
    from rich.console import Console
    from rich.live import Live

    from .view import Screen, draw

    console = Console()
    screen = Screen(session.endpoint.address)
    _look(screen, looks)
    if screen.server is None:
        looks.server()  # raises what is the matter
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
                _look(screen, looks)
                done += 1


def _look(screen: Screen, looks: _Looks) -> None:
    """Take what there is to see; when the server is away, say so and go on."""
    try:
        screen.remember(looks.server())
        screen.workers, screen.paused = looks.workers(), looks.paused()
        screen.problem = None
    except BunqueueError as error:
        screen.problem = str(error)


@contextmanager
def _keys() -> Iterator[Any]:
    """A function that waits so many seconds for keys, and gives those pressed, or an empty text."""
    try:
        import termios
        import tty

        before = termios.tcgetattr(sys.stdin)
    except (ImportError, OSError):  # no terminal to read from, or none of this kind: Ctrl-C quits
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

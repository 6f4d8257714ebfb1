"""Long operations: confirmation before they start, and a progress bar on the terminal if they take a
while."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol, TypeVar

import typer

from bunqueue.errors import BunqueueError
from bunqueue.server.settings import SettingsError
from bunqueue.text import harmless

from .terminal import console

T = TypeVar("T")

UNNOTICED_S = 0.4
"""Shorter operations need no bar."""
STEP_S = 0.15


class Declined(Exception):
    """The user answered no."""


def confirm(question: str, yes: bool) -> None:
    """Ask before something is destroyed. Raises Declined, or SettingsError without a terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise SettingsError(f"{question} Nobody is there to be asked: give --yes to do it")
    if not typer.confirm(harmless(question), err=True):
        raise Declined


def _bar(what: str, total: float | None, *, sizes: bool = False) -> Any:
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    amount = DownloadColumn() if sizes else MofNCompleteColumn()
    columns = [SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), amount, TimeRemainingColumn()]
    progress = Progress(*columns, console=console(stderr=True), transient=True)
    progress.add_task(what, total=total)
    return progress


class Advance(Protocol):
    """Shows how much of a total is done; the total may change."""

    def __call__(self, done: float, total: float | None = None, /) -> None: ...


@contextmanager
def advancing(what: str, total: float | None, *, sizes: bool = False) -> Iterator[Advance]:
    """A progress bar. Shows nothing if standard error is not a terminal."""
    if not sys.stderr.isatty():
        yield lambda done, total=None: None
        return
    progress: Any = None
    began = time.monotonic()

    def advance(done: float, all_: float | None = None, /) -> None:
        nonlocal progress
        if progress is None:
            if time.monotonic() - began < UNNOTICED_S:
                return
            progress = _bar(what, total, sizes=sizes)
            progress.start()
        progress.update(progress.task_ids[0], completed=done, total=all_ or total)

    try:
        yield advance
    finally:
        if progress is not None:
            progress.stop()


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """A spinner on the terminal during a wait."""
    if not sys.stderr.isatty():
        yield
        return
    with console(stderr=True).status(what):
        yield


def watched(what: str, work: Callable[[], T], left: Callable[[], int]) -> T:
    """Run ``work`` in a thread and return its result; ``left`` returns how many jobs remain, for the bar."""
    if not sys.stderr.isatty():
        return work()
    total = left()
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append((work(), None))
        except BaseException as error:
            outcome.append((None, error))

    thread = threading.Thread(target=run, daemon=True)  # Ctrl-C abandons it: the server finishes the work
    thread.start()
    with advancing(what, total) as advance:
        thread.join(UNNOTICED_S)
        while thread.is_alive():
            with suppress(BunqueueError):  # the operation itself raises it
                advance(total - left())
            thread.join(STEP_S)
    result, error = outcome[0]
    if error is not None:
        raise error
    found: T = result
    return found

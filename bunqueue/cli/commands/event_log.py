"""``bunqueue events --since``: past events, from the server's event log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from bunqueue.text import plural

from ..framework.session import Session

PAGE = 1000
STEP_S = 0.5
"""The time between polls for more, with --follow."""


def replay(
    session: Session,
    wanted: dict[str, Any],
    since: float,
    follow: bool,
    emit: Callable[[dict[str, Any]], bool],
) -> None:
    """Pass events since a moment (epoch ms) to ``emit`` until it returns True.

    ``wanted`` are options of ``Admin.read_events``. Within each page the events are sorted by time.
    """
    for events in _pages(session, wanted, since, follow):
        for event in sorted(events, key=lambda event: (event["timestamp"], event["shard"], event["seq"])):
            if emit(event):
                return


def _pages(
    session: Session, wanted: dict[str, Any], since: float, follow: bool
) -> Iterator[list[dict[str, Any]]]:
    page = session.admin.read_events(since=since, limit=PAGE, **wanted)
    while True:
        yield page.events
        if page.last:
            if not follow:
                return
            time.sleep(STEP_S)
        page = session.admin.read_events(after=page.after, limit=PAGE, **wanted)
        if page.missed:
            text = f"{plural(page.missed, 'event')} had been forgotten before they were read"
            session.out.note(f"bunqueue: {text}")

"""``bunqueue events --since``: what has happened, from the server's log of events."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from ...readable import plural
from ..framework.session import Session

PAGE = 1000
STEP_S = 0.5
"""Between looks for more, when it is followed."""


def replay(
    session: Session,
    wanted: dict[str, Any],
    since: float,
    follow: bool,
    emit: Callable[[dict[str, Any]], bool],
) -> None:
    """Tell ``emit`` of the events since a moment (epoch ms), until it says that it has enough.

    ``wanted`` are options of ``Admin.read_events``. Of each page the events come in the order of their time.
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
            said = f"{plural(page.missed, 'event')} had been forgotten before they were read"
            session.out.note(f"bunqueue: {said}")

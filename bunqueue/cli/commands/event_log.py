"""``bunqueue events --since``: what has happened, from the server's log of events."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from bunqueue.protocol.commands import Reply
from bunqueue.protocol.commands.events import GetEvents, LogPlace

from ...readable import plural
from ..framework.session import Session

PAGE = 1000
STEP_S = 0.5
"""Between looks for more, when it is followed."""


class Logged(Reply, kw_only=True):
    """The reply of GetEvents."""

    events: list[dict[str, Any]]
    places: list[LogPlace]


def replay(
    session: Session,
    wanted: dict[str, Any],
    since: float,
    follow: bool,
    emit: Callable[[dict[str, Any]], bool],
) -> None:
    """Tell ``emit`` of the events since a moment (epoch ms), until it says that it has enough.

    ``wanted`` are fields of GetEvents. Of each page the events come in the order of their time.
    """
    for events in _pages(session, wanted, since, follow):
        for event in sorted(events, key=lambda event: (event["timestamp"], event["shard"], event["seq"])):
            if emit(event):
                return


def _pages(
    session: Session, wanted: dict[str, Any], since: float, follow: bool
) -> Iterator[list[dict[str, Any]]]:
    reply = session.call(GetEvents(since=since, limit=PAGE, **wanted), Logged)
    while True:
        yield reply.events
        places = sorted(reply.places, key=lambda place: place.shard)
        if all(place.after >= place.last for place in places):
            if not follow:
                return
            time.sleep(STEP_S)
        after = [place.after for place in places]
        reply = session.call(GetEvents(after=after, limit=PAGE, **wanted), Logged)
        missed = sum(place.missed for place in reply.places)
        if missed:
            session.out.note(f"bunqueue: {plural(missed, 'event')} had been forgotten before they were read")

"""``bunqueue bounds``: how much may wait in a queue, and how long completed jobs are kept."""

from __future__ import annotations

from typing import Annotated, Any

from bunqueue.server.settings import SettingsError

from ...framework.session import Session
from ...framework.shared import noun, verb
from ...framework.values import SPAN, QueueName, option, span
from ...output.output import Column, Kind, plain

app = noun("How much may wait in a queue, and how long completed jobs are kept.")

BOUNDS = (
    Column("maxWaiting", Kind.NUMBER, "at most waiting"),
    Column("waiting", Kind.NUMBER),
    Column("maxWaitingBytes", Kind.NUMBER, "at most bytes waiting"),
    Column("waitingBytes", Kind.NUMBER, "bytes waiting"),
    Column("whenFull"),
    Column("keepAge", Kind.SPAN, "completed jobs are kept for"),
    Column("keepCount", Kind.NUMBER, "and at most"),
    Column("refused", Kind.NUMBER),
    Column("dropped", Kind.NUMBER),
)

MaxWaiting = Annotated[int | None, option("--max-waiting", about="How many jobs may wait.", metavar="N")]
MaxBytes = Annotated[
    int | None, option("--max-waiting-bytes", about="How many bytes of data may wait.", metavar="N")
]
WhenFull = Annotated[
    str | None,
    option("--when-full", about="When it is full: refuse, or drop-oldest.", metavar="WHAT"),
]
KeepAge = Annotated[
    float | None,
    option("--keep-age", about="How long completed jobs are kept; 0: for ever.", metavar=SPAN, parser=span),
]
KeepCount = Annotated[
    int | None, option("--keep-count", about="How many completed jobs are kept; 0: any number.", metavar="N")
]
Clear = Annotated[bool, option("--clear", about="Remove all bounds of the queue.")]


@verb(
    app,
    "bunqueue bounds config emails",
    "bunqueue bounds config emails --max-waiting 10000 --when-full drop-oldest",
    "bunqueue bounds config emails --keep-age 1h --keep-count 1000",
    "bunqueue bounds config emails --clear",
)
def config(
    session: Session,
    queue: QueueName,
    max_waiting: MaxWaiting = None,
    max_waiting_bytes: MaxBytes = None,
    when_full: WhenFull = None,
    keep_age: KeepAge = None,
    keep_count: KeepCount = None,
    clear: Clear = False,
) -> None:
    """Print what bounds a queue, and what waits in it. With options, change that first."""
    given: dict[str, Any] = {
        "max_waiting": max_waiting,
        "max_waiting_bytes": max_waiting_bytes,
        "when_full": when_full,
        "keep_age": keep_age,
        "keep_count": keep_count,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    if clear and changes:
        raise SettingsError("--clear: give that or new bounds")
    if clear:
        changes = {**dict.fromkeys(given), "when_full": "refuse"}
    found = session.queue(queue)
    if changes:
        found.set_bounds(**changes)
    reply = found.bounds()
    session.out.record({**plain(reply.config), **plain(reply.space)}, BOUNDS)

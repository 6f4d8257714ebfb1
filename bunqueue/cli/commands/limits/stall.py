"""``bunqueue stall``: when running jobs of a queue count as stalled."""

from __future__ import annotations

from typing import Annotated

from ...framework.session import Session
from ...framework.shared import noun, verb
from ...framework.values import SPAN, QueueName, option, span
from ...output.output import Column, Kind

app = noun("When running jobs of a queue count as stalled.")

CONFIG = (
    Column("enabled", Kind.FLAG),
    Column("stallInterval", Kind.SPAN, "after a silence of"),
    Column("maxStalls", Kind.NUMBER, "dead with the stall number"),
    Column("gracePeriod", Kind.SPAN, "not counting the first"),
)

Enabled = Annotated[bool | None, option("--on/--off", about="Whether to detect stalled jobs at all.")]
Interval = Annotated[
    float | None,
    option("--stall-interval", about="How long a job may go without a heartbeat.", metavar=SPAN, parser=span),
]
MaxStalls = Annotated[
    int | None,
    option("--max-stalls", about="The number of stalls that makes a job a dead letter.", metavar="N"),
]
Grace = Annotated[
    float | None,
    option(
        "--grace-period",
        about="The time at the start of an attempt that does not count.",
        metavar=SPAN,
        parser=span,
    ),
]


@verb(
    app,
    "bunqueue stall config emails",
    "bunqueue stall config emails --stall-interval 2m --max-stalls 5",
)
def config(
    session: Session,
    queue: QueueName,
    enabled: Enabled = None,
    stall_interval: Interval = None,
    max_stalls: MaxStalls = None,
    grace_period: Grace = None,
) -> None:
    """Print when jobs of a queue count as stalled. With options, change that first."""
    found = session.queue(queue)
    if any(each is not None for each in (enabled, stall_interval, max_stalls, grace_period)):
        found.set_stall_config(
            enabled=enabled, stall_interval=stall_interval, max_stalls=max_stalls, grace_period=grace_period
        )
    session.out.record(found.stall_config(), CONFIG)

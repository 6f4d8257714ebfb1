"""Facts that a shard is unsure of after a start, because it or another shard may have lost something."""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct, field

KIND = "recovery"  # records: checks that have to be completed before the next start may skip them
IDS, FLOWS, GAP = "ids", "flows", "gap"  # their keys
SEEK, UNCERTAIN = (KIND, IDS, "{}"), (KIND, FLOWS, "{}")  # the records themselves


class Gap(Struct):
    """A record: events after that time (epoch ms) may be lost, and some other shards do not know it yet."""

    since: int | None = None


class HalfFlows(Struct):
    """Flows that were removed because another shard lost its part."""

    EXAMPLES: ClassVar[int] = 5  # ids kept for the log

    flows: int = 0
    jobs: int = 0
    examples: list[str] = []  # ids of the first removed jobs


class Recovery(Struct):
    """``unannounced``: shards that have not announced all ids that point here; normally empty."""

    unannounced: set[int] = set()
    uncertain: bool = False  # shards may disagree about flows, and about which jobs wait for which
    flows: dict[str, list[str]] = {}  # the stored flows over several shards: ids of live jobs
    children: list[str] = []  # live jobs that their parents may not know of
    parts: set[str] = set()  # flows that were stored as prepared
    stored_until: int | None = None  # later events may be lost, epoch ms; None: none are
    reconciled: set[int] = set()  # shards that have handled this
    half_flows: HalfFlows = field(default_factory=HalfFlows)

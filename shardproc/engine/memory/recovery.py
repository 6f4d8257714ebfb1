"""What a shard does not know for sure after a start, as it or another one may have forgotten something."""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct, field

KIND = "recovery"  # records: what is to be settled before the next start may take it for granted
IDS, FLOWS, GAP = "ids", "flows", "gap"  # their keys
SEEK, DOUBTS = (KIND, IDS, "{}"), (KIND, FLOWS, "{}")  # the records themselves


class Gap(Struct):
    """A record: what happened after that time (epoch ms) may be lost, and not all others know it yet."""

    since: int | None = None


class HalfFlows(Struct):
    """Flows that were removed because another shard has lost its part."""

    EXAMPLES: ClassVar[int] = 5  # ids that are kept for the log

    flows: int = 0
    jobs: int = 0
    examples: list[str] = []  # ids of the first removed jobs


class Recovery(Struct):
    """``unheard``: shards that have not announced all ids that point here; empty while all is well."""

    unheard: set[int] = set()
    doubts: bool = False  # shards may disagree about flows, and about which jobs wait for which
    flows: dict[str, list[str]] = {}  # those over several shards that were stored: ids of live jobs
    children: list[str] = []  # live jobs whose parents may not have heard of them
    parts: set[str] = set()  # flows that were stored as prepared
    stored_until: int | None = None  # what happened later may be forgotten, epoch ms; None: nothing is
    reconciled: set[int] = set()  # shards that have acted on that
    half_flows: HalfFlows = field(default_factory=HalfFlows)

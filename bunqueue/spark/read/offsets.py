"""The progress of a stream: an event number for each shard.  Pure.

An offset is a plain dict, which goes into the checkpoint as JSON: ``{"00": 4711, "01": 98}``, with several
machines ``{"web-1/00": 4711}``.  A stream has read the events up to these numbers.
"""

from __future__ import annotations

from collections.abc import Mapping

from .event_rows import Bounds
from .folders import Shard

Offset = dict[str, int]


def key_of(shard: Shard, several: bool) -> str:
    """The name of a shard in an offset."""
    return f"{shard.host}/{shard.number:02d}" if several else f"{shard.number:02d}"


def reached(start: Mapping[str, int], found: Mapping[str, Bounds]) -> Offset:
    """The position that a stream has reached, not counting events that are gone."""
    return {key: max(start.get(key, 0), bounds.first - 1) for key, bounds in found.items()}


def limited(start: Mapping[str, int], latest: Mapping[str, int], most: int) -> Offset:
    """The end of a batch of about ``most`` events, shared fairly among the shards.  Never before
    ``start``."""
    behind = {key: last - start.get(key, 0) for key, last in latest.items() if last > start.get(key, 0)}
    end = {key: max(start.get(key, 0), last) for key, last in latest.items()}
    left = most
    for number, key in enumerate(sorted(behind, key=lambda key: behind[key])):
        share = min(behind[key], max(1, left // (len(behind) - number)))
        end[key] = start.get(key, 0) + share
        left -= share
    return end


def lost_events(start: Mapping[str, int], found: Mapping[str, Bounds]) -> list[str]:
    """The events that retention removed before the stream read them, in words.  A shard that is new to the
    stream has lost nothing."""
    return [
        f"events {read + 1} to {bounds.first - 1} of shard {key} are gone, as retention has passed them"
        for key, bounds in found.items()
        if (read := start.get(key)) is not None and bounds.last >= bounds.first > read + 1
    ]


def went_back(start: Mapping[str, int], found: Mapping[str, Bounds]) -> str | None:
    """The shard whose log ends before the stream's position, if there is one: other events will have these
    numbers."""
    for key, bounds in found.items():
        read = start.get(key, 0)
        if bounds.last < read:
            return f"shard {key} ends at event {bounds.last}, before {read}, which was read; was it restored?"
    return None


def resharded(start: Mapping[str, int], found: Mapping[str, object]) -> str | None:
    """How the number of a machine's shards has changed since the stream began, if it has.  The numbers of
    events then mean something else.  A machine that is new to the stream is allowed."""
    before, now = _counts(start), _counts(found)
    for host, count in now.items():
        if host in before and before[host] != count:
            where = f" of {host}" if host else ""
            return f"the data folder{where} has {count} shards, and had {before[host]} when the stream began"
    return None


def _counts(keys: Mapping[str, object]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for key in keys:
        host = key.rpartition("/")[0]
        counts[host] = counts.get(host, 0) + 1
    return counts

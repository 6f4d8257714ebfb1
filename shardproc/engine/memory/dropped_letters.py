"""Dead letters dropped without a command: the last ones of a shard, and those not reported in the log yet."""

from __future__ import annotations

from msgspec import json

from bunqueue.server.links.peers import DroppedLetter

from ..outbox import Archive

LETTER = "dropped-letter"  # the record of a job, by its id
MAX_KNOWN = 10_000  # records of jobs, at most 1.5 KiB each; an entry in memory has about 300 bytes

decode_letter = json.Decoder(DroppedLetter).decode


class DroppedLetters:
    """``known``: the last ones, oldest first: id -> when, and from which queue.  ``untold``: those not
    reported in the log yet: queue -> how many were too many, and how many too old."""

    __slots__ = ("known", "untold")

    def __init__(self) -> None:
        self.known: dict[str, tuple[int, str]] = {}
        self.untold: dict[str, list[int]] = {}

    def look_up(self, archive: Archive, job_id: str) -> DroppedLetter | None:
        """The stored details of a dropped dead letter."""
        stored = archive.record(LETTER, job_id) if job_id in self.known else None
        return None if stored is None else decode_letter(stored)

"""Dead letters that were dropped although nobody removed them: the last ones of a shard, and what is still to
be said of them in the log."""

from __future__ import annotations

from msgspec import json

from bunqueue.protocol.peers import DroppedLetter

from ..outbox import Archive

LETTER = "dropped-letter"  # the record of a job, by its id
MAX_KNOWN = 10_000  # records of jobs, 1.5 KiB each at most; an entry in memory has some 300 bytes

decode_letter = json.Decoder(DroppedLetter).decode


class DroppedLetters:
    """``known`` are the last ones, the oldest first: id -> when, and from which queue.  ``untold`` are those
    that the log has not told of yet: queue -> how many were too many, and how many too old."""

    __slots__ = ("known", "untold")

    def __init__(self) -> None:
        self.known: dict[str, tuple[int, str]] = {}
        self.untold: dict[str, list[int]] = {}

    def look_up(self, archive: Archive, job_id: str) -> DroppedLetter | None:
        """What is remembered of a job that is gone."""
        stored = archive.record(LETTER, job_id) if job_id in self.known else None
        return None if stored is None else decode_letter(stored)

"""A job that watches its own state: every change must be in the table of legal transitions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from bunqueue.model.job import STATE_NAMES, TRANSITIONS, Job
from shardproc.engine.handlers import push
from shardproc.storage import rows

Change = tuple[str, str]


def table() -> set[Change]:
    """The legal changes, by name."""
    return {
        (STATE_NAMES[before], STATE_NAMES[after]) for before, all_ in TRANSITIONS.items() for after in all_
    }


@contextmanager
def watched_jobs() -> Iterator[set[Change]]:
    """Jobs made meanwhile fail at an illegal change; the set fills with the changes that were seen.

    The first state that a job is given is where it comes from (a push, or the disk), not a change.
    """
    seen: set[Change] = set()
    begun: dict[int, Job] = {}  # by address; the jobs are kept so that no address is used twice

    class Watched(Job, eq=False):
        def __setattr__(self, name: str, value: Any) -> None:
            if name == "state":
                if id(self) in begun and self.state != value:
                    assert value in TRANSITIONS[self.state], f"{self.state} to {value} is not in the table"
                    seen.add((STATE_NAMES[self.state], STATE_NAMES[value]))
                begun[id(self)] = self
            super().__setattr__(name, value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(push, "Job", Watched)
        patch.setattr(rows, "Job", Watched)
        yield seen

"""A server whose processes are killed at a chosen step of what its shards do together.

Nothing in the server is prepared for this: its shards load `crash.crash_shard` at their start, which looks at
every message, commit and write whether the step has come.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import NamedTuple

from .server import ROOT, Server
from .waiting import eventually

HOOKS = Path(__file__).parent / "crash"


class Step(NamedTuple):
    """When to kill what."""

    message: str
    role: str  # of the shard that comes to the step: it "sends" or "receives" the message
    moment: str  # of its turn: "before commit", "after commit", "half sent" (up to the message) or "sent"
    victim: str = "shard"  # itself, or "router", or "server": all processes
    nth: int = 1  # message of this kind, from now on, of any one shard
    shard: int | None = None  # its number, if it matters

    def __str__(self) -> str:
        words = [self.victim, self.role, self.message, self.moment.replace(" ", "-")]
        return "-".join(words + [f"{self.nth}"] * (self.nth > 1))


class CrashingServer(Server):
    """Starts and stops as any other."""

    def __init__(self, data_dir: Path, *, shards: int, port: int) -> None:
        super().__init__(data_dir, shards=shards, port=port)
        self._plan = self._folder / "plan"
        self.environ = {"PYTHONPATH": f"{HOOKS}:{ROOT}", "CRASH_PLAN": str(self._plan)}
        self._steps: tuple[Step, ...] = ()
        self._hits_before = 0

    def arm(self, *steps: Step) -> None:
        """Kill at these steps, each after the one before it."""
        self._steps, self._hits_before = steps, self._hits()
        fresh = self._plan.with_suffix(".new")
        fresh.write_text(json.dumps([step._asdict() for step in steps]))
        fresh.rename(self._plan)

    def _hits(self) -> int:
        hits = self._plan.with_suffix(".hits")
        return len(hits.read_text()) if hits.exists() else 0

    async def crash(self) -> None:
        """Wait until all steps have come; what does not come up by itself is started again."""
        for number, step in enumerate(self._steps, self._hits_before + 1):
            await eventually(lambda number=number: self._hits() >= number, f"the step {step} is reached")
            if step.victim != "shard":
                await asyncio.to_thread(self._start_again)

    def _start_again(self) -> None:
        self.wait()
        self.until_gone()
        self.restart()

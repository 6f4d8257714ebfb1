"""Kills processes of a server at random while clients keep it busy."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from contextlib import suppress
from typing import ClassVar

from .ledger import Ledger
from .server import Server
from .waiting import PATIENCE_S, eventually
from .wire import Wire

REST_S = 7.0  # once in the middle: a shard looks for expired locks only when it has run for 5 s
KINDS = ("shard", "router", "all", "every shard", "router, then a shard that starts")
WEIGHTS = (12, 4, 3, 2, 2)


class Killer:
    """Kills, starts again what no router starts again, and remembers what it did."""

    kinds: ClassVar[tuple[str, ...]] = KINDS
    weights: ClassVar[tuple[int, ...]] = WEIGHTS

    def __init__(
        self,
        server: Server,
        ledger: Ledger,
        seed: str,
        *,
        load: tuple[int, int] = (200, 2500),
        rests: bool = True,
    ) -> None:
        self.server = server
        self.ledger = ledger
        self.load = load  # acknowledgements between two kills
        self.rests = rests
        self.rng = random.Random(f"{seed}/killer")
        self.kills: Counter[str] = Counter()
        self.diary: list[str] = []

    async def run(self, kills: int) -> None:
        """Kill that often.  Each kind comes at least once; most kills wait until the load runs again."""
        rng = self.rng
        kinds = list(self.kinds) + rng.choices(self.kinds, self.weights, k=max(0, kills - len(self.kinds)))
        rng.shuffle(kinds)
        for number, kind in enumerate(kinds):
            if self.rests and number == kills // 2:
                await asyncio.sleep(REST_S)  # a time without kills, in which all recovers
            if rng.random() < 0.8:
                await self.until_load_runs(rng.randrange(*self.load))
            else:
                await asyncio.sleep(rng.random() * 0.5)  # while something still recovers
            self.kills[kind] += 1
            self.diary.append(f"{time.time() * 1000:.0f} {kind}")
            await self._kill(kind)
        await eventually(self.all_back, "all shards are back", step_s=0.1)
        await self.until_load_runs(self.load[0])

    async def all_back(self) -> bool:
        async with await Wire.open(self.server.address) as wire:
            return bool((await wire.call("Stats"))["ok"])

    async def until_load_runs(self, more: int) -> None:
        """Wait until the clients have achieved ``more`` than now."""
        goal = self.ledger.progress + more
        await eventually(
            lambda: self.ledger.progress >= goal, f"{more} more acknowledgements", PATIENCE_S + more / 50
        )

    async def _kill(self, kind: str) -> None:
        server = self.server
        if kind == "shard":
            await asyncio.to_thread(self._kill_one_shard)
        elif kind == "every shard":
            await asyncio.to_thread(server.kill_shards)
        elif kind == "all":
            await asyncio.to_thread(server.kill_all)
            await asyncio.to_thread(server.restart)
        else:
            await asyncio.to_thread(server.kill_router)
            starting = asyncio.create_task(asyncio.to_thread(server.restart))
            if kind != "router":
                await asyncio.sleep(self.rng.random())  # a shard dies at any moment of the start
                await asyncio.to_thread(self._kill_one_shard)
            await starting

    def _kill_one_shard(self) -> None:
        with suppress(AssertionError):  # the router may be between two starts
            if alive := self.server.shard_processes():
                self.rng.choice(alive).kill()

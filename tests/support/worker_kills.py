"""SIGKILLs of workers and of a server's processes, while the workers write what they do into a file."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from bunqueue import BunqueueError, CommandFailed, JobFailed, ResultTimeout
from bunqueue.errors import ShardUnavailable

from .server import Server
from .waiting import eventually

KINDS = ("worker", "shard", "router", "all")
WEIGHTS = (6, 3, 2, 1)

T = TypeVar("T")


class Workers:
    """One process that works, whoever kills it."""

    def __init__(self, program: Path, url: str, log: Path, *more: str) -> None:
        self._command = [sys.executable, str(program), url, str(log), *more]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()


def size_of(log: Path) -> int:
    return log.stat().st_size


async def kill_at_random(
    server: Server, workers: Workers, log: Path, kills: int, rng: random.Random
) -> Counter[str]:
    """Each kind at least once. Most kills wait until the log grows again, others meet what still starts."""
    kinds = [*KINDS, *rng.choices(KINDS, WEIGHTS, k=max(0, kills - len(KINDS)))]
    rng.shuffle(kinds)
    for number, kind in enumerate(kinds, 1):
        size = size_of(log)
        if rng.random() < 0.8:
            await eventually(lambda size=size: size_of(log) > size, "work goes on", 120)  # type: ignore[misc]
        await asyncio.sleep(rng.uniform(0, 0.5))  # so that they meet every place
        if kind == "worker":
            workers.kill()
            workers.start()
        elif kind == "shard":
            await asyncio.to_thread(server.kill_shards, rng.randrange(server.shards))
        else:
            await asyncio.to_thread(server.kill_router if kind == "router" else server.kill_all)
            await asyncio.to_thread(server.restart)
        if number % 100 == 0:
            print(f"{number} kills", flush=True)
    return Counter(kinds)


async def persistently(call: Callable[[], Awaitable[T]]) -> T:
    """What is said has an id, so it may be said again when nobody knows whether it was heard."""
    while True:
        try:
            return await call()
        except ShardUnavailable:
            await asyncio.sleep(0.1)  # until it is back
        except CommandFailed as error:
            if error.server_code != "ID_CONTENDED":  # try again: a flow with that id is about to appear
                raise
            await asyncio.sleep(0.1)  # until it has
        except (JobFailed, ResultTimeout):
            raise
        except BunqueueError:
            await asyncio.sleep(0.1)  # the server is away

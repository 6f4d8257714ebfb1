"""The servers that `store_bench.py` measures, and what they use: CPU time, log, times of commits."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from bunqueue.client.blocking.admin import Admin
from bunqueue.protocol.commands.monitoring import COMMIT_MS

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from support.postgres import Postgres
from support.server import ROOT
from support.server import Server as Server

TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass
class Used:
    """Resources used so far; the difference of two values is what was used in between."""

    shards_s: float = 0.0  # CPU time
    router_s: float = 0.0
    postgres_s: float = 0.0
    log_bytes: float = 0.0
    commits: list[int] = field(default_factory=list)  # up to each of COMMIT_MS, and longer

    def since(self, before: Used) -> Used:
        commits = [now - then for now, then in zip(self.commits, before.commits, strict=True)]
        return Used(
            self.shards_s - before.shards_s,
            self.router_s - before.router_s,
            self.postgres_s - before.postgres_s,
            self.log_bytes - before.log_bytes,
            commits,
        )

    def commit_ms(self, share: float) -> float | None:
        """The time that this share of all commits did not exceed, to the accuracy of the buckets."""
        total = sum(self.commits)
        if not total:
            return None
        edges = [0.0, *map(float, COMMIT_MS), 2.0 * COMMIT_MS[-1]]
        below = 0
        for place, count in enumerate(accumulate(self.commits)):
            if count >= share * total:
                part = (share * total - below) / (count - below)
                return edges[place] + part * (edges[place + 1] - edges[place])
            below = count
        return None


class Measured:
    """A running server, with or without a store."""

    def __init__(self, name: str, server: Server, postgres: Postgres | None) -> None:
        self.name, self.server, self.postgres = name, server, postgres

    def used(self) -> Used:
        shards = self._shards()
        stores = [shard.store for shard in shards if shard.store is not None]
        return Used(
            shards_s=sum(cpu_s(child.pid) for child in self.server.shard_processes()),
            router_s=cpu_s(self.server.pid),
            postgres_s=0.0 if self.postgres is None else tree_s(self.postgres.pids()),
            log_bytes=sum(store.appended for store in stores),
            commits=[sum(counts) for counts in zip(*(store.commits for store in stores), strict=True)],
        )

    def _shards(self) -> Sequence[Any]:
        with Admin(port=self.server.port) as admin:
            return admin.list_shards()


def cpu_s(pid: int) -> float:
    """Seconds of CPU time of a process, and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(fields[place]) for place in (11, 12, 13, 14)) * TICK_S


def tree_s(roots: Sequence[int]) -> float:
    """The same for processes with their children."""
    total = 0.0
    for root in roots:
        total += cpu_s(root)
        children = Path(f"/proc/{root}/task/{root}/children").read_text().split()
        total += sum(cpu_s(int(child)) for child in children if Path(f"/proc/{child}").exists())
    return total


def bunqueue(*arguments: str, store: str) -> None:
    """Run a command, and raise if it fails."""
    command = [sys.executable, "-m", "bunqueue", *arguments]
    environ = {**os.environ, "BUNQUEUE_STORE": store}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(arguments)}: {done.stderr}")


@contextmanager
def running(name: str, shards: int, postgres: Postgres | None) -> Iterator[Measured]:
    """A new server on a new data folder, and a new database of that PostgreSQL."""
    with tempfile.TemporaryDirectory(prefix="bunqueue-bench-") as folder:
        flags: list[str] = []
        if postgres is not None:
            url = postgres.new_database()
            alone = [] if postgres.standbys else ["--storage-replicates"]
            bunqueue("store", "init", "--shards", str(shards), *alone, store=url)
            flags = ["--store", url]
        server = Server(Path(folder) / "data", "--log-level", "error", *flags, shards=shards)
        try:
            server.start()
            yield Measured(name, server, postgres)
        finally:
            server.dispose()


@contextmanager
def postgresql(standbys: int) -> Iterator[Postgres]:
    """PostgreSQL from the system's packages, with as many standbys, any one of which has to acknowledge."""
    with Postgres(standbys=standbys) as postgres:
        postgres.leader.ask("alter system set shared_buffers = '128MB'")
        postgres.leader.ask("alter system set max_wal_size = '4GB'")
        postgres.leader.ask("select pg_reload_conf()")
        yield postgres


SETTLE_S = 1.0


def settle(seconds: float = SETTLE_S) -> None:
    """Wait until the after-effects of the last run are over."""
    time.sleep(seconds)

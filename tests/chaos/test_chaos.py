"""Faults of all kinds, one after the other and two at once, while clients of all hosts go on.

``CHAOS_MINUTES`` says for how long, ``CHAOS_SEED`` repeats the choices of a run, and ``CHAOS_REPORT`` is a
file for the time line; see ``make chaos``.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import time
from pathlib import Path

from chaos import report
from chaos.load import Load
from chaos.victims import ALONE, ANYWHERE, IN_NETWORKS, ON_DISKS, QUEUES, Cluster, running

SECONDS = 60 * float(os.environ.get("CHAOS_MINUTES", "0.3"))
SEED = os.environ.get("CHAOS_SEED") or secrets.token_hex(4)
TWO_AT_ONCE = 0.25  # of all times


async def test_nothing_is_lost_and_nothing_happens_twice(tmp_path: Path) -> None:
    with running(tmp_path) as cluster:
        load = Load(cluster.addresses, QUEUES)
        begun = time.monotonic()
        watching = asyncio.create_task(cluster.watch())
        load.start()
        await torment(cluster, begun + SECONDS)
        await cluster.healed()
        final = await cluster.drained(load)
        watching.cancel()
        problems = load.history.problems(final, cluster.log())
        path = Path(os.environ.get("CHAOS_REPORT") or tmp_path / "chaos.html")
        ended = time.monotonic()
        report.write(path, begun, ended, cluster.faults, load.done, load.trouble, cluster.samples, problems)
        print(f"seed {SEED}, {len(cluster.faults)} faults, {len(load.done)} jobs, time line: {path}")
        for fault in cluster.faults:
            print(f"{fault.begun - begun:7.1f} to {fault.ended - begun:7.1f} s: {fault.what}")
        print(*problems, sep="\n")
        assert problems == []
        assert len(load.done) > 100


async def torment(cluster: Cluster, until: float) -> None:
    """One fault after the other, sometimes two; between them the cluster has time to heal."""
    choice = random.Random(SEED)
    deeds = ANYWHERE | (IN_NETWORKS if cluster.network is not None else {})
    deeds |= ON_DISKS if cluster.disk is not None else {}
    line: list[str] = []
    while time.monotonic() < until:
        if not line:  # each kind as often as any other
            line = sorted(deeds)
            choice.shuffle(line)
        now = [line.pop()]
        if line and choice.random() < TWO_AT_ONCE and not ALONE & {now[0], line[-1]}:
            now.append(line.pop())
        await asyncio.gather(*(deeds[name](cluster, choice) for name in now))
        if choice.random() < 0.7:
            await cluster.healed()

"""Faults of all kinds, one after the other and two at once, while clients of all hosts go on.

``CHAOS_MINUTES`` says for how long; ``CHAOS_SEED`` repeats the choices of a run, and ``CHAOS_REPORT`` is a
file for the time line; see ``make chaos``.  Without it the faults of ``SHORT`` happen.  ``make nightly`` does
each fault once, too, and lets it last longer.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import pytest
from chaos import report
from chaos.chaos_cluster import LONG_S, NAMES, QUEUES, Cluster, running
from chaos.injected_faults import Fault, of_hosts, of_store
from chaos.load import Load
from chaos.network import PEERS
from support.budget import budget

from router.cluster.wire import SILENT_S

MINUTES = float(os.environ.get("CHAOS_MINUTES", budget(0, 30)))
SEED = os.environ.get("CHAOS_SEED") or secrets.token_hex(4)
TWO_AT_ONCE = 0.25  # of all times
# The worst faults of hosts: those of a line at once, if possible here.  By night there are all kinds.
SHORT = (("kill", "set-clock"), ("freeze", "cut-peers"), ("fill-host", "cut-store"))
SHORT_S = 5.0  # for so long each lasts: more than a lease


class Run:
    """A load, and what comes of it: nothing is lost, and nothing happens twice.  The time line is a file."""

    def __init__(self, cluster: Cluster, path: Path) -> None:
        self.cluster, self.load, self._path = cluster, Load(cluster.addresses, QUEUES), path

    async def __aenter__(self) -> Self:
        self.begun = time.monotonic()
        self._watching = asyncio.create_task(self.cluster.watch())
        self.load.start()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if error is None:
                await self._check()
        except BaseException as found:
            error = found
            raise
        finally:
            self._watching.cancel()
            if error is not None and not isinstance(error, Broken):
                self._tell([f"the run did not come to its end: {error!r}"])

    @property
    def seen(self) -> list[report.Seen]:
        return [report.seen(fault, self.load.waits, self.load.trouble) for fault in self.cluster.faults]

    async def _check(self) -> None:
        cluster, load = self.cluster, self.load
        await cluster.healed()
        final = await cluster.drained(load)
        load.history.wrong_clocks, load.history.full_disks = cluster.wrong_clocks, cluster.full_disks
        problems = load.history.problems(final, cluster.log()) + cluster.ended + cluster.mistakes()
        self._tell(problems)
        if problems:
            raise Broken("\n".join(problems))
        assert len(load.done) > 100

    def _tell(self, problems: Sequence[str]) -> None:
        cluster, load, seen = self.cluster, self.load, self.seen
        ended = time.monotonic()
        report.write(self._path, self.begun, ended, seen, load.done, load.trouble, cluster.samples, problems)
        print(f"seed {SEED}, {len(seen)} faults, {len(load.done)} jobs, time line: {self._path}")
        for each in seen:
            fault = each.fault
            print(f"{fault.begun - self.begun:7.1f} to {fault.ended - self.begun:7.1f} s: {each}")
        print(*problems, sep="\n", flush=True)


class Broken(AssertionError):
    """Promises were."""


async def test_nothing_is_lost_and_nothing_happens_twice(tmp_path: Path) -> None:
    path = Path(os.environ.get("CHAOS_REPORT") or tmp_path / "chaos.html")
    with running(tmp_path, patroni=bool(MINUTES)) as cluster:
        cluster.longest_s = LONG_S
        async with Run(cluster, path) as run:
            if MINUTES:
                await torment(cluster, run.begun + 60 * MINUTES)
            else:
                cluster.always_s = SHORT_S
                await in_this_order(cluster, SHORT)


async def in_this_order(cluster: Cluster, lines: Sequence[Sequence[str]]) -> None:
    """Those of each line at once; what is not possible here is left out."""
    choice = random.Random(SEED)
    faults = of_hosts(cluster) | of_store(cluster)
    for line in lines:
        await asyncio.gather(*(faults[name](cluster, choice) for name in line if name in faults))
        await cluster.healed()


async def torment(cluster: Cluster, until: float) -> None:
    """One fault after the other, sometimes two; between them the cluster has time to heal."""
    choice = random.Random(SEED)
    to_store = of_store(cluster)
    faults: dict[str, Fault] = of_hosts(cluster) | to_store
    line: list[str] = []
    while time.monotonic() < until:
        if not line:  # each kind as often as any other
            line = sorted(faults)
            choice.shuffle(line)
        now = [line.pop()]
        if line and choice.random() < TWO_AT_ONCE and not {now[0], line[-1]} <= to_store.keys():
            now.append(line.pop())
        await asyncio.gather(*(faults[name](cluster, choice) for name in now))
        if choice.random() < 0.7 or to_store.keys() & {*now}:
            await cluster.healed()


@pytest.mark.nightly
async def test_each_fault_of_hosts(tmp_path: Path) -> None:
    with running(tmp_path) as cluster:
        cluster.always_s = 8.0  # longer than a lease
        async with Run(cluster, tmp_path / "chaos.html"):
            await each_once(cluster, of_hosts(cluster) | of_store(cluster))


async def each_once(cluster: Cluster, faults: dict[str, Fault]) -> None:
    """In the order of their names, the same each time."""
    for name in sorted(faults):
        await faults[name](cluster, random.Random(name))
        await cluster.healed()
        await asyncio.sleep(report.AFTER_S)  # so that what is seen of one fault is not that of the next


@pytest.mark.nightly
async def test_links_between_hosts_that_break_again_and_again(tmp_path: Path) -> None:
    """For about as long as a host waits for another, so that now one of the two connections of two hosts is
    lost, now the other, and now both, not at the same time."""
    choice = random.Random(SEED)
    with running(tmp_path) as cluster:
        if cluster.network is None:
            pytest.skip("no networks can be made here")
        async with Run(cluster, tmp_path / "chaos.html"):
            for number in range(10):
                cluster.network.cut(number % len(NAMES), PEERS)
                cut_s = choice.uniform(SILENT_S - 1, SILENT_S + 0.2)
                await asyncio.sleep(cut_s)  # until the plug is back
                cluster.network.mend(number % len(NAMES))
                await asyncio.sleep(2)  # they dial again, and some flows are done

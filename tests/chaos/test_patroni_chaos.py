"""Three hosts on three PostgreSQL under Patroni with three etcd: each fault of those, once."""

from __future__ import annotations

import asyncio
import random
import signal
from pathlib import Path

import pytest
from chaos.chaos_cluster import NAMES, Cluster, running
from chaos.injected_faults import FAILS_OVER_S, Machine, kill, of_store
from chaos.test_chaos import Run, each_once
from support.patroni import programs
from support.procfs import signal_all
from support.waiting import eventually

from bunqueue import Admin

FAILOVER_S = 25.0  # that of Patroni, whose lease is 20 s, and ours
UNNOTICED_S = 2.0
LOOKS_S = 60.0  # until a host that has no answer has given up, and found who leads


@pytest.mark.nightly  # some minutes: a PostgreSQL that fails over takes 20 s each time
async def test_each_fault_of_patroni(tmp_path: Path) -> None:
    programs()
    with running(tmp_path, patroni=True) as cluster:
        cluster.always_s = 30.0  # longer than the lease of PostgreSQL's leader
        faults = of_store(cluster)
        async with Run(cluster, tmp_path / "chaos.html") as run:
            await each_once(cluster, faults)
        seen = dict(zip(sorted(faults), run.seen, strict=True))
        assert seen["kill-leader"].slowest_s < FAILOVER_S
        assert seen["kill-etcd"].slowest_s < UNNOTICED_S


def knows_the_store(cluster: Cluster, number: int) -> bool:
    """Whether a host can read it."""
    host, port = cluster.addresses[number]
    with Admin(host=host, port=port) as admin:
        return not admin.cluster_status().error


@pytest.mark.nightly  # most of two minutes
async def test_a_host_is_replaced_while_an_old_leader_hangs(tmp_path: Path) -> None:
    """It keeps its connections, and never answers; the hosts look for another one, and see who is alive."""
    programs()
    with running(tmp_path, patroni=True) as cluster:
        async with Run(cluster, tmp_path / "chaos.html"):
            machine = await asyncio.to_thread(Machine.leading, cluster)
            pids = machine.pids
            signal_all(signal.SIGSTOP, pids)
            await eventually(lambda: asyncio.to_thread(machine.is_replaced), "another leads", FAILS_OVER_S)
            for number, name in enumerate(NAMES):
                await eventually(
                    lambda number=number: asyncio.to_thread(knows_the_store, cluster, number),
                    f"{name} can read the store",
                    LOOKS_S,
                )
            await kill(cluster, random.Random(1))
            await eventually(
                lambda: asyncio.to_thread(cluster.hosts.are_shared, *NAMES), "it has its share", LOOKS_S
            )
            signal_all(signal.SIGCONT, pids)

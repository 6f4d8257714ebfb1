"""What a cluster of larger machines would do, calculated from costs that were measured on a small one.

    python scripts/cluster_model.py [FIGURES.json] [--hosts 1 3 8 16] [--cores 16] [--routers 1] [--shards 64]
                                    [--under-way 40 1200 1200] [--latency-ms 2] [--commits 15000] [--wal 200]
                                    [--network 1000] [--postgres-cores 16]

The result is not a measurement: a rate is what the busiest part allows if nothing else is in the way.
FIGURES.json is written by `cluster_bench.py --only throughput --json`; without it, COSTS below are used.

What is assumed:

    a core         is as fast as in the measurement: a cost is CPU time for a job, whatever the load
    clients        are elsewhere, use all hosts equally, and have --under-way jobs at each shard at any time
    queues         are so many that all shards have the same load; a single queue gets what one shard can do
    a router       is one thread, as are each shard and the process that follows the shards of other hosts
    other hosts    own (hosts - 1) / hosts of a client's jobs: these go through the first routers of both
    a shard        has one append in flight.  It works on a batch, waits for the store, works on the next
    the store      takes --latency-ms for a commit, however many shards commit; --commits a second at most,
                   and --wal MB a second.  Its leader has --postgres-cores, and takes half of the CPU time
                   that PostgreSQL's three nodes took together
    copies         one of each shard
    the network    carries --network MB a second into each host, and as many out of it
    nothing else   takes time: no dashboard, events, snapshots, retries; jobs have 100 bytes of data
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

SCENARIOS = {
    "push": "added one by one",
    "push-batch": "added 400 at a time",
    "drain": "pulled and acknowledged, 400 at a time",
}
WAL_PER_JOB = 1.3  # bytes of PostgreSQL's log for a byte of a record
WAL_PER_COMMIT = 400  # bytes, for the rows of the log and of the shard, and their indexes
SLOWEST = 1e6  # µs in a second


@dataclass(frozen=True)
class Costs:
    """Costs of one job, in µs of CPU time and in bytes."""

    router: float  # at the host that the client is connected to
    hop: float  # extra if another host owns the shard, for both routers
    shard: float
    follower: float  # for one copy
    postgres: float  # of all nodes
    log: float  # bytes of a record
    wire: float  # bytes between a client and its host, or between two hosts, in the larger direction


@dataclass(frozen=True)
class Machines:
    """The machines and their limits."""

    hosts: int
    cores: int = 16
    routers: int = 1
    shards: int = 64
    latency_ms: float = 2.0
    commits: float = 15_000.0
    wal_mb: float = 200.0
    network_mb: float = 1_000.0
    postgres_cores: int = 16


# CPU times: one round of `cluster_bench.py --only throughput` with 60,000 jobs on two cores with little other
# work: routers with 1 and with 3 hosts, everything else with 3.  Bytes of log: docs/store.md; for jobs one by
# one, and for bytes on the wire: estimates.
COSTS = {
    "push": Costs(router=6.7, hop=21.2, shard=53.3, follower=6.7, postgres=23.3, log=150, wire=260),
    "push-batch": Costs(router=0.5, hop=0.75, shard=6.3, follower=3.2, postgres=2.0, log=56, wire=170),
    "drain": Costs(router=2.0, hop=4.2, shard=16.8, follower=4.7, postgres=4.5, log=14, wire=300),
}
UNDER_WAY = {"push": 40, "push-batch": 1_200, "drain": 1_200}  # as in that measurement


def bounds(costs: Costs, machines: Machines, under_way: float) -> dict[str, float]:
    """Jobs a second that each part of the cluster allows."""
    hosts = machines.hosts
    elsewhere = (hosts - 1) / hosts
    routers = costs.router + costs.hop * elsewhere
    copies = costs.follower if hosts > 1 else 0.0
    owned = -(-machines.shards // hosts)  # by the host that has most shards
    share = machines.shards / owned  # all hosts together do this many times what that host does
    batch = under_way * costs.shard + machines.latency_ms * 1000  # µs for `under_way` jobs
    found = {
        "shards": machines.shards * under_way / batch * SLOWEST,
        "routers": hosts * machines.routers / routers * SLOWEST,
        "cores of hosts": share * machines.cores / (routers + costs.shard + copies) * SLOWEST,
        "network of hosts": hosts * machines.network_mb * 1e6 / (costs.wire * (1 + elsewhere) + costs.log),
        "PostgreSQL, processors": machines.postgres_cores / (costs.postgres / 2) * SLOWEST,
        "PostgreSQL, commits": machines.commits * under_way,
        "PostgreSQL, WAL": machines.wal_mb * 1e6 / (costs.log * WAL_PER_JOB + WAL_PER_COMMIT / under_way),
    }
    if hosts > 1:
        found["followers"] = hosts / copies * SLOWEST
        found["first routers"] = hosts / (costs.hop * elsewhere) * SLOWEST
    return found


def busiest(found: Mapping[str, float]) -> tuple[str, float]:
    """The part with the lowest limit, and that limit."""
    return min(found.items(), key=lambda item: item[1])


def costs_of(figures: Mapping[str, Any], scenario: str, known: Costs) -> Costs:
    """Costs as measured by `cluster_bench.py` with one host and with three; bytes as in `known`."""
    one, three = (figures[f"{scenario}: {hosts}"] for hosts in ("1 host", "3 hosts"))
    hop = max(0.0, three["router_us"] - one["router_us"]) * 3 / 2  # two of three jobs make one
    return Costs(
        router=one["router_us"],
        hop=hop,
        shard=three["shards_us"],
        follower=three["followers_us"],
        postgres=three["postgres_us"],
        log=known.log,
        wire=known.wire,
    )


def table(costs: Mapping[str, Costs], machines: Sequence[Machines], under_way: Mapping[str, float]) -> Table:
    """Rates, the part that limits each, and the next limit."""
    made = Table(title="what the busiest part allows", title_justify="left")
    for name in ("", "hosts", "jobs/s", "bounded by", "next", "at jobs/s"):
        made.add_column(name, justify="right" if name in ("hosts", "jobs/s", "at jobs/s") else "left")
    for scenario, what in SCENARIOS.items():
        for some in machines:
            found = bounds(costs[scenario], some, under_way[scenario])
            (part, rate), (later, more) = sorted(found.items(), key=lambda item: item[1])[:2]
            made.add_row(what, str(some.hosts), f"{rate:,.0f}", part, later, f"{more:,.0f}")
    return made


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("figures", nargs="?", type=Path, help="of cluster_bench.py")
    parser.add_argument("--hosts", type=int, nargs="+", default=[1, 3, 8, 16])
    parser.add_argument("--cores", type=int, default=16, help="of a host (16)")
    parser.add_argument("--routers", type=int, default=1, help="of a host (1)")
    parser.add_argument("--shards", type=int, default=64, help="(64)")
    parser.add_argument("--under-way", type=float, nargs=3, default=list(UNDER_WAY.values()))
    parser.add_argument("--latency-ms", type=float, default=2.0, help="of a commit (2)")
    parser.add_argument("--commits", type=float, default=15_000.0, help="a second (15000)")
    parser.add_argument("--wal", type=float, default=200.0, help="MB a second (200)")
    parser.add_argument("--network", type=float, default=1_000.0, help="MB a second (1000)")
    parser.add_argument("--postgres-cores", type=int, default=16, help="(16)")
    arguments = parser.parse_args()
    costs = COSTS
    if arguments.figures is not None:
        figures = json.loads(arguments.figures.read_text())["throughput"]
        costs = {scenario: costs_of(figures, scenario, COSTS[scenario]) for scenario in SCENARIOS}
    machines = [
        Machines(
            hosts=hosts,
            cores=arguments.cores,
            routers=arguments.routers,
            shards=arguments.shards,
            latency_ms=arguments.latency_ms,
            commits=arguments.commits,
            wal_mb=arguments.wal,
            network_mb=arguments.network,
            postgres_cores=arguments.postgres_cores,
        )
        for hosts in arguments.hosts
    ]
    under_way = dict(zip(SCENARIOS, arguments.under_way, strict=True))
    console = Console(width=160)
    console.print((__doc__ or "").partition("What is assumed:")[2].rstrip(), highlight=False, markup=False)
    console.print("\ncosts of a job, µs of a processor; log and wire in bytes")
    for scenario, some in costs.items():
        console.print(f"    {SCENARIOS[scenario]}: {some}", highlight=False, markup=False)
    console.print()
    console.print(table(costs, machines, under_way))


if __name__ == "__main__":
    main()

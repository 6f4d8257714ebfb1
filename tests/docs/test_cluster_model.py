"""The model of larger clusters, beside numbers that were worked out by hand."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def model() -> object:
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        return importlib.import_module("cluster_model")
    finally:
        sys.path.remove(str(ROOT / "scripts"))


def test_each_part_allows_what_one_gets_by_hand(model) -> None:  # type: ignore[no-untyped-def]
    costs = model.Costs(router=2, hop=3, shard=10, follower=5, postgres=4, log=100, wire=200)
    machines = model.Machines(
        hosts=2, cores=4, routers=1, shards=4, latency_ms=2, commits=1000, wal_mb=10, network_mb=100,
        postgres_cores=2,
    )  # fmt: skip
    found = {name: round(rate) for name, rate in model.bounds(costs, machines, under_way=100).items()}
    assert found == {
        "shards": 133_333,  # 4 of them, 100 jobs in 1 ms of work and 2 ms for the commit
        "routers": 571_429,  # 2 of them, 2 µs and 3 µs more for every second job
        "cores of hosts": 432_432,  # 8 of them, 3.5 + 10 + 5 µs
        "followers": 400_000,  # 2 of them, 5 µs
        "first routers": 1_333_333,  # 2 of them, 3 µs for every second job
        "network of hosts": 500_000,  # 200 MB/s, 200 bytes, half of them twice, and 100 for the store
        "PostgreSQL, processors": 1_000_000,  # 2 of them, half of 4 µs
        "PostgreSQL, commits": 100_000,  # 1000 with 100 jobs each
        "PostgreSQL, WAL": 74_627,  # 10 MB/s, 130 bytes and a hundredth of 400
    }
    assert model.busiest(model.bounds(costs, machines, 100)) == ("PostgreSQL, WAL", pytest.approx(74_626.87))


def test_one_host_forwards_and_follows_nothing(model) -> None:  # type: ignore[no-untyped-def]
    costs = model.Costs(router=2, hop=3, shard=10, follower=5, postgres=4, log=100, wire=200)
    found = model.bounds(costs, model.Machines(hosts=1, cores=6), under_way=100)
    assert not {"followers", "first routers"} & found.keys()
    assert found["routers"] == 500_000
    assert found["cores of hosts"] == 500_000


def test_shards_that_cannot_be_shared_evenly(model) -> None:  # type: ignore[no-untyped-def]
    """Of 4 shards on 3 hosts one has 2: all do twice what that one does."""
    costs = model.Costs(router=2, hop=1e-9, shard=10, follower=1e-9, postgres=4, log=100, wire=200)
    found = model.bounds(costs, model.Machines(hosts=3, cores=6, shards=4), under_way=100)
    assert found["cores of hosts"] == pytest.approx(1_000_000)


def test_costs_are_taken_from_figures_of_the_benchmark(model, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    def row(router: float) -> dict[str, float]:
        return {"router_us": router, "shards_us": 9.0, "followers_us": 4.0, "postgres_us": 3.0}

    figures = {f"{each}: 1 host": row(2.0) for each in model.SCENARIOS}
    figures |= {f"{each}: 3 hosts": row(6.0) for each in model.SCENARIOS}
    costs = model.costs_of(figures, "push", model.COSTS["push"])
    assert (costs.router, costs.hop, costs.shard, costs.follower, costs.postgres) == (2, 6, 9, 4, 3)
    (tmp_path / "figures.json").write_text(json.dumps({"throughput": figures}))
    command = [sys.executable, "scripts/cluster_model.py", str(tmp_path / "figures.json"), "--hosts", "3"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "a core         is as fast as in the measurement" in done.stdout
    assert "bounded by" in done.stdout

"""Clusters: several hosts on this machine, each with its folder and ports, on one store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster.hosts import Hosts
from support.postgres import Postgres

from bunqueue.store.setup import init

SHARDS = 4


@pytest.fixture(scope="session")
def store_cluster() -> Iterator[Postgres]:
    """One PostgreSQL for all tests of a process; each has a database of its own."""
    with Postgres(standby=True) as running:
        yield running


def new_store(postgres: Postgres) -> str:
    """The URL of a new store for SHARDS shards."""
    url = postgres.new_database()
    init(url, SHARDS)
    return url


def new_hosts(postgres: Postgres, folder: Path) -> Hosts:
    """No hosts yet, on a new store: ``hosts.start("a")`` starts one."""
    return Hosts(new_store(postgres), folder, SHARDS)


@pytest.fixture
def store(store_cluster: Postgres) -> str:
    return new_store(store_cluster)


@pytest.fixture
def hosts(store: str, tmp_path: Path) -> Iterator[Hosts]:
    with Hosts(store, tmp_path, SHARDS) as made:
        yield made

"""PostgreSQL fails over by itself, with Patroni, while a server is under load: every job is accounted for.

How long nothing was acknowledged is printed (`pytest -s`); docs/store.md has figures.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from replication.conftest import SHARDS, StoredServer
from replication.test_store_kills import LOAD, check_log, under_load
from support import wire
from support.killer import Killer
from support.ledger import Ledger
from support.patroni import TTL_S, Member, PatroniCluster
from support.server import quiet_port
from support.waiting import eventually

from bunqueue.store.setup import init

# What Patroni and PostgreSQL need, and then the server: PostgreSQL is started again, or a standby is promoted
# when the leader's lease has run out.
RESTART_S, FAILOVER_S = 60.0, TTL_S + 60.0


@pytest.fixture(scope="module")
def patroni() -> Iterator[PatroniCluster]:
    with PatroniCluster() as running:
        yield running


async def _strike(
    patroni: PatroniCluster, killer: Killer, harm: Callable[[Member], None], within_s: float
) -> Member:
    """Do something to the leader, who that was.  Prints for how long nothing was acknowledged."""
    await killer.until_load_runs(200)
    leader = await asyncio.to_thread(patroni.leader)
    assert leader is not None
    await asyncio.to_thread(harm, leader)
    begun, before = time.monotonic(), killer.ledger.progress
    # Replies that were already on their way; what comes after these is a new one.
    await eventually(lambda: killer.ledger.progress > before + 20, "jobs are acknowledged again", within_s)
    print(f"{harm.__name__}: acknowledged again after {time.monotonic() - begun:.1f} s")
    await killer.until_load_runs(200)
    return leader


@pytest.mark.parametrize(
    ("harm", "within_s"),
    [
        pytest.param(Member.kill_postgresql, RESTART_S, id="server"),
        pytest.param(Member.kill, FAILOVER_S, id="host", marks=pytest.mark.nightly),  # a minute
    ],
)
async def test_nothing_is_lost_when_the_leader_dies(
    patroni: PatroniCluster,
    stored_server: StoredServer,
    tmp_path: Path,
    harm: Callable[[Member], None],
    within_s: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wire, "REPLY_S", within_s)  # a command may wait as long as nobody leads
    await asyncio.to_thread(patroni.until_whole)
    url = await asyncio.to_thread(patroni.new_database)
    await asyncio.to_thread(init, url, SHARDS)
    server = stored_server(url, "--log-level", "error", port=quiet_port())
    await asyncio.to_thread(server.start)
    killer = Killer(server, Ledger(), "patroni", load=LOAD, rests=False)
    struck: list[Member] = []

    async def strike() -> None:
        struck.append(await _strike(patroni, killer, harm, within_s))

    await under_load(server, killer, strike())
    assert await asyncio.to_thread(server.stop) == 0
    await asyncio.to_thread(check_log, f"{url}?target_session_attrs=read-write", tmp_path / "data")
    if harm is Member.kill:
        (dead,) = struck
        assert await asyncio.to_thread(patroni.leader) not in (None, dead)
        await asyncio.to_thread(dead.process.start)
        await asyncio.to_thread(patroni.until_whole)  # it comes back as a standby

"""Where each shard is in its log, on every surface: when all is well, in an outage, and without a standby."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx2 as httpx
import pytest
import yaml
from replication.conftest import SHARDS, StoredServer
from support.cli import Cli, Done
from support.postgres import Postgres
from support.server import ROOT, Server, quiet_port
from support.waiting import wait_until

from bunqueue import Queue
from bunqueue.cli.framework import exits
from bunqueue.store.setup import init

TOKEN = "t0ken"


@pytest.fixture
def server(database: str, stored_server: StoredServer) -> Server:
    init(database, SHARDS)
    made = stored_server(database, "--auth-token", TOKEN)
    made.http_port = quiet_port()
    made.start()
    with Queue("q", port=made.port, token=TOKEN) as queue:
        queue.add_bulk([("job", number) for number in range(10)])
    return made


@pytest.fixture
def cli(server: Server, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setenv("BUNQUEUE_TOKEN", TOKEN)
    return Cli(server)


def get(server: Server, path: str, *, token: str = "") -> httpx.Response:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return httpx.get(f"http://127.0.0.1:{server.http_port}{path}", headers=headers)


def samples(server: Server, name: str) -> dict[str, float]:
    """Those of a metric, by shard."""
    text = get(server, "/prometheus", token=TOKEN).text
    found = re.findall(rf'^bunqueue_{name}{{shard="(\d+)"}} (\S+)$', text, re.MULTILINE)
    return {shard: float(value) for shard, value in found}


def checks(done: Done) -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {}
    for row in done.json:
        found.setdefault(row["check"], []).append((row["status"], row["finding"]))
    return found


def test_while_all_is_well(server: Server, cli: Cli, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = cli.json("shards")
    assert [row["store"]["phase"] for row in rows] == ["owning"] * SHARDS
    assert all(row["store"]["position"] >= 2 and row["store"]["epoch"] >= 1 for row in rows)
    assert {(row["store"]["awaySince"], row["store"]["protected"]) for row in rows} == {(None, True)}
    assert max(row["store"]["roundTripMs"] for row in rows) > 0
    assert "owning" in cli("shards").out
    for name in ("position", "epoch", "round_trip_seconds", "appended_bytes_total"):
        assert all(samples(server, f"store_{name}").values()), name
    for name in ("away", "held_bytes", "unprotected"):
        assert samples(server, f"store_{name}") == {"0": 0.0, "1": 0.0}, name
    text = get(server, "/prometheus", token=TOKEN).text
    counts = re.findall(r"^bunqueue_store_commit_seconds_(?:bucket|count){(.*)} (\S+)$", text, re.MULTILINE)
    by_label = {labels: float(value) for labels, value in counts}
    assert by_label['le="+Inf",shard="0"'] == by_label['shard="0"'] > 1
    (line,) = cli("top", "--json", "--count", "1", "--interval", "100ms").out.splitlines()
    assert '"store":{"unavailable":false' in line
    ((status, said),) = checks(cli("doctor", "--json"))["store"]
    assert status in ("ok", "warning"), "commits may be slow on a busy machine"
    assert "a commit takes" in said
    assert "store's database" not in checks(cli("doctor", "--json"))
    monkeypatch.setenv("BUNQUEUE_STORE", database)
    assert any(
        "synchronous standbys" in said for _, said in checks(cli("doctor", "--json"))["store's database"]
    )
    assert get(server, "/ready").json() == {"ok": True, "ready": True}


def test_while_the_store_is_away(server: Server, cli: Cli, cluster: Postgres) -> None:
    """Everybody who may read sees since when and why; a stranger sees that something is wrong."""
    assert cluster.standby is not None
    cluster.standby.pause()
    try:
        wait_until(lambda: set(samples(server, "store_away").values()) == {1.0}, "both shards notice")
        rows = cli.json("shards", status=exits.FAILED)
        assert all(row["store"]["awaySince"] > 10**12 for row in rows)
        assert all("The store is unavailable" in row["error"] for row in rows)
        found = checks(cli("doctor", "--json", status=exits.FAILED))
        assert found["store"][0][0] == "problem"
        assert "shard-0, shard-1" in found["store"][0][1]
        cli("health", status=exits.FAILED)
        for path in ("/ready", "/health"):
            answer = get(server, path)
            assert answer.status_code == 503
            assert answer.json()["error"] == (
                "not every shard answers and can store everything; a token shows why"
            )
            assert "The store is unavailable" in get(server, path, token=TOKEN).json()["error"]
    finally:
        cluster.standby.resume()
    wait_until(lambda: get(server, "/ready").status_code == 200, "it goes on by itself")
    assert {row["store"]["awaySince"] for row in cli.json("shards")} == {None}


@pytest.fixture
def alone(cluster: Postgres) -> Iterator[None]:
    """PostgreSQL stops waiting for its standby, as Patroni has it do without synchronous_mode_strict."""

    def wait_for(names: str) -> None:
        cluster.leader.ask(f"alter system set synchronous_standby_names = '{names}'")
        cluster.leader.ask("select pg_reload_conf()")

    wait_for("")
    yield
    wait_for("ANY 1 (standby)")


def test_a_store_that_has_lost_its_standby(server: Server, cli: Cli, alone: None) -> None:
    """Everything works, and everybody is told."""
    wait_until(lambda: set(samples(server, "store_unprotected").values()) == {1.0}, "both shards notice")
    assert "what is acknowledged is on one machine only" in server.log()
    status, said = checks(cli("doctor", "--json"))["store"][0]
    assert status == "warning"
    assert "PostgreSQL waits for no standby" in said
    with Queue("q", port=server.port, token=TOKEN) as queue:
        queue.add("job", 1)
    warnings = httpx.get(
        f"http://127.0.0.1:{server.http_port}/storage", headers={"Authorization": f"Bearer {TOKEN}"}
    ).json()["data"]["warnings"]
    assert any("no synchronous standby" in warning for warning in warnings)


def test_alerts_name_metrics_that_there_are(server: Server) -> None:
    rules: dict[str, Any] = yaml.safe_load((ROOT / "config" / "alerts.yml").read_text())
    text = get(server, "/prometheus", token=TOKEN).text
    known = set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE))
    # Of servers with backups, standbys and certificates; tests/server/test_alerts.py tries each rule.
    ends = "certificate_expires_timestamp_seconds"
    known |= {f"bunqueue_{what}_lag_seconds" for what in ("backup", "standby")}
    known |= {f"bunqueue_tls_{ends}", f"bunqueue_client_{ends}"}
    alerts = [rule for group in rules["groups"] for rule in group["rules"]]
    assert len(alerts) >= 8
    for rule in alerts:
        names = re.findall(r"bunqueue_\w+", rule["expr"])
        assert names, rule
        assert {re.sub("_(count|sum|bucket)$", "", name) for name in names} <= known, rule
        assert set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])) <= {
            "shard",
            "state",
            "queue",
            "instance",
        }


def test_the_page_names_metrics_that_there_are(server: Server) -> None:
    page = (ROOT / "docs" / "store.md").read_text()
    text = get(server, "/prometheus", token=TOKEN).text
    for name in set(re.findall(r"`(bunqueue_store_\w+)`", page)):
        assert re.search(rf"^{name}(_bucket)?{{", text, re.MULTILINE), name

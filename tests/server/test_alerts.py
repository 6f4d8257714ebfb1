"""Each alert about jobs fires on a server in that state, and on no other: with the metrics of real servers,
and the rules as Prometheus reads them (promtool, from the package prometheus)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.certificates import Authority
from support.cli import Cli
from support.server import ROOT, Server, StartServer
from support.waiting import wait_until
from support.wall_clock import HOUR, WallClock

from bunqueue import Admin, NewJob, Queue, TlsOptions
from bunqueue.model.errors_alike import kind_of
from bunqueue.server.identities import edit
from bunqueue.server.identities.identity_file import IdentityRow

PROMTOOL = os.environ.get("PROMTOOL") or shutil.which("promtool")
RULES = ROOT / "config" / "alerts.yml"
MINUTES = 10  # of a state before it is looked at

Samples = dict[str, float]

pytestmark = pytest.mark.skipif(
    PROMTOOL is None and not os.environ.get("CI"), reason="promtool is in the package prometheus"
)


def scrape(server: Server, **options: Any) -> Samples:
    with Admin(port=server.port, **options) as admin:
        text = admin.prometheus()
    found = re.findall(r"^(bunqueue_\w+)(\{.*\})? (\S+)$", text, re.MULTILINE)
    return {f"{name}{_at(labels)}": float(value) for name, labels, value in found}


def _at(labels: str) -> str:
    return f'{{instance="a",{labels[1:-1]}}}' if labels else '{instance="a"}'


def fired(before: Samples, after: Samples, folder: Path, *, steps: int = MINUTES) -> set[tuple[str, str]]:
    """The alerts, with their queues, after ten minutes from one state to another; counters grow evenly."""
    series, now = [], time.time()
    for name, last in after.items():
        if "_timestamp_seconds" in name:  # time() begins at 0 here
            last -= now
        first = before.get(name, 0.0 if "_total{" in name else last)
        step = (last - first) / steps
        values = f"{first}+{step}x{steps}" if "_total{" in name else f"{last}x{steps}"
        series.append({"series": name, "values": values.replace("+-", "-")})
    alerts = [
        rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
    ]
    asked = [{"eval_time": f"{steps}m", "alertname": name, "exp_alerts": []} for name in alerts]
    test = {"rule_files": [str(RULES)], "evaluation_interval": "1m"}
    test["tests"] = [{"interval": "1m", "input_series": series, "alert_rule_test": asked}]  # type: ignore[assignment]
    path = folder / "test.yml"
    path.write_text(yaml.safe_dump(test))
    assert PROMTOOL is not None
    done = subprocess.run(
        [PROMTOOL, "test", "rules", str(path)], capture_output=True, text=True, timeout=600, check=False
    )
    said = done.stdout + done.stderr
    assert "parse" not in said.lower(), said
    found = set()
    for block in re.split(r"alertname: ", said)[1:]:
        name = re.match(r"\w+", block)
        assert name is not None
        for got in re.findall(r"got:\[(.*?)\n\s*\]", block, re.DOTALL) or [block.partition("got:")[2]]:
            for labels in re.findall(r"Labels:\{(.*?)\}", got):
                queue = re.search(r'queue="([^"]*)"', labels)
                found.add((name[0], queue[1] if queue else ""))
    return found


def fail(server: Server, queue: str, count: int, error: str = "boom {}") -> None:
    with Queue(queue, port=server.port) as found:
        jobs = found.add_bulk([NewJob("job", number, max_attempts=1) for number in range(count)])
        for number, job in enumerate(jobs):
            assert found.pull() is not None
            job.fail(error.format(number))


def complete(server: Server, queue: str, count: int) -> None:
    with Queue(queue, port=server.port) as found:
        for job in found.add_bulk([("job", number) for number in range(count)]):
            assert found.pull() is not None
            job.complete()


def test_rules_are_valid() -> None:
    assert PROMTOOL is not None
    for name in ("alerts.yml", "cluster_alerts.yml"):
        subprocess.run(
            [PROMTOOL, "check", "rules", str(ROOT / "config" / name)], check=True, capture_output=True
        )


def test_each_state_has_its_alert(server: Server, tmp_path: Path) -> None:
    def after(act: Callable[[], Any]) -> set[tuple[str, str]]:
        before = scrape(server)
        act()
        return fired(before, scrape(server), tmp_path)

    assert after(lambda: complete(server, "fine", 30)) == set()
    assert after(lambda: fail(server, "few", 3)) == set()
    assert after(lambda: fail(server, "fails", 30)) == {("BunqueueJobsFail", "fails")}
    assert after(lambda: (complete(server, "mixed", 90), fail(server, "mixed", 30))) == set()
    assert after(lambda: fail(server, "grows", 160)) == {
        ("BunqueueJobsFail", "grows"),
        ("BunqueueDeadLettersGrow", "grows"),
    }
    with Queue("fails", port=server.port) as queue:
        queue.set_error_group(kind_of(None, "boom 1"), muted=True)
        assert after(lambda: fail(server, "fails", 40)) == set()
    with Queue("idle", port=server.port) as queue:
        assert after(lambda: queue.add("job", 1)) == {("BunqueueNobodyWorks", "idle")}
        queue.pause()
        assert after(lambda: None) == set()
        queue.resume()
        assert queue.pull() is not None
        assert after(lambda: queue.add("job", 2)) == set()  # somebody has one
        old = scrape(server)
        late = {name: 4000.0 for name in old if "oldest_waiting" in name and 'queue="idle"' in name}
        assert fired(old, {**old, **late}, tmp_path) == {("BunqueueJobsWait", "idle")}


def test_changes_that_are_not_backed_up(tmp_path: Path) -> None:
    behind, late = 'bunqueue_backup_lag_seconds{instance="a"}', {"BunqueueBackupFails"}
    assert fired({behind: 5.0}, {behind: 5.0}, tmp_path) == set()
    assert {alert for alert, _ in fired({behind: 90.0}, {behind: 90.0}, tmp_path)} == late


def test_a_missed_schedule(make_server: StartServer, tmp_path: Path) -> None:
    server, clock = make_server(), WallClock(tmp_path)
    server.environ = clock.environ
    server.start()
    with Queue("crons", port=server.port) as queue:
        queue.upsert_cron("hourly", {}, every=HOUR)
        queue.pause()
    assert fired({}, scrape(server), tmp_path) == set()
    server.kill_all()
    clock.set(3 * HOUR)  # two of its times pass
    server.start()
    now = scrape(server)
    assert fired(now, now, tmp_path) == {("BunqueueScheduleMissed", "")}


@pytest.mark.parametrize(
    ("days", "state", "alerts"),
    [
        (10, "ending", {"BunqueueIdentitiesEnd", "BunqueueCertificateEnds", "BunqueueClientCertificateEnds"}),
        (30, "valid", set()),
    ],
)
def test_what_ends_within_two_weeks(
    make_server: StartServer, tmp_path: Path, days: int, state: str, alerts: set[str]
) -> None:
    """The server's certificate, that of a client, and an identity: metrics, alerts, and doctor."""
    end = datetime.now(UTC).replace(microsecond=0) + timedelta(days=days)
    authority, path = Authority(tmp_path / "certificates"), str(tmp_path / "identities.toml")
    own, batch = authority.issue(ends=end), authority.issue("batch.example", file="batch", ends=end)
    edit.change(path, "batch", lambda _: IdentityRow("admin", certificate="batch.example"))
    edit.change(path, "loader", lambda _: IdentityRow("producer", end, tokens=[edit.make_token().row]))
    server = make_server(
        *own.flags, "--tls-client-ca", authority.ca_file, "--identities", path, shards=1, http_port=0
    )
    server.start()
    tls = TlsOptions(ca_file=authority.ca_file, cert_file=batch.cert, key_file=batch.key)

    def ends(whose: str) -> str:
        return f"bunqueue_{whose}_certificate_expires_timestamp_seconds{_at('')}"

    wait_until(lambda: ends("client") in scrape(server, tls=tls), "the client's certificate is known")
    found = scrape(server, tls=tls)
    assert found[ends("client")] == found[ends("tls")] == end.timestamp()
    assert found[f'bunqueue_identities{{instance="a",state="{state}"}}'] == 1 + (state == "valid")
    assert {alert for alert, _ in fired(found, found, tmp_path)} == alerts
    flags = ("--tls-ca", authority.ca_file, "--tls-cert", batch.cert, "--tls-key", batch.key)
    said = {each["check"]: each for each in Cli(server).json("doctor", *flags, status=None)}
    for check in ("identities", "TLS certificate", "client certificates"):
        assert said[check]["status"] == ("warning" if alerts else "ok"), said[check]

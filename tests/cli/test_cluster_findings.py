"""What `bunqueue cluster check` and `bunqueue doctor` say of a cluster, and what they advise."""

from __future__ import annotations

from typing import Any

import pytest

from bunqueue.cli.commands.cluster_findings import PROBLEM, WARNING, cluster_findings
from bunqueue.protocol.commands.cluster import ClusterView, CopyView, HostView, PlaceView

VERSION = "1.0"


def host(name: str, **changes: Any) -> HostView:
    fields: dict[str, Any] = {
        "name": name,
        "id": f"{name}-id",
        "link": f"{name}:6791",
        "clients": f"{name}:6789",
        "version": VERSION,
        "alive": True,
        "reached": True,
        "draining": False,
        "owns": 1,
        "follows": 1,
    }
    return HostView(**fields | changes)


def place(shard: int, *behind: int, owner: str = "a") -> PlaceView:
    copies = [CopyView("b", 10_000 - each, each) for each in behind]
    return PlaceView(shard, owner, "a", "", 1, 10_000, 0, copies)


def view(*hosts: HostView, shards: list[PlaceView] | None = None, error: str | None = None) -> ClusterView:
    places = [place(0, 0), place(1, 0)] if shards is None else shards
    return ClusterView("jobs", "a", list(hosts), places, error)


BOTH = (host("a"), host("b"))


def test_all_is_well() -> None:
    assert cluster_findings(view(*BOTH)) == []
    assert cluster_findings(view(*BOTH, shards=[place(0, 999), place(1, 5_000, 3)])) == [], (
        "one copy is enough"
    )
    found = view(*BOTH, shards=[place(0, 1_500)])
    found.lag_limit = 2_000  # what the server says
    assert cluster_findings(found) == []


@pytest.mark.parametrize(
    ("found", "level", "says", "fix"),
    [
        (view(*BOTH, error="refused"), PROBLEM, "cannot be read: refused", "bunqueue store check"),
        (
            view(host("a"), host("b"), host("c", alive=False)),
            PROBLEM,
            "the host c is dead: its beats have stopped",
            "bunqueue cluster forget c",
        ),
        (
            view(host("a"), host("b", reached=False)),
            PROBLEM,
            "a does not reach b at b:6791",
            "--cluster-address",
        ),
        (view(host("a"), host("b", draining=True)), WARNING, "b is draining", "drain --undo b"),
        (
            view(host("a"), host("b", version="1.1"), host("c")),
            WARNING,
            "different versions: 1.0 on a, c; 1.1 on b",
            "go on with the upgrade",
        ),
        (view(host("a")), WARNING, "only one host lives", "start another one"),
        (
            view(*BOTH, shards=[place(number, 0, owner="") for number in range(10)]),
            PROBLEM,
            "10 shards (0, 1, 2, 3, 4, 5, 6, 7 and 2 more) without an owner",
            "bunqueue cluster status",
        ),
        (view(*BOTH, shards=[place(0), place(1, 0)]), WARNING, "1 shard (0) without a copy", "start one"),
        (
            view(*BOTH, shards=[place(0, 0), place(1, 1_000, 70_000)]),
            WARNING,
            "1 shard (1) with copies that are more than 1,000 records behind",
            "load and logs",
        ),
    ],
)
def test_each_finding_says_what_to_do(found: ClusterView, level: str, says: str, fix: str) -> None:
    (finding,) = cluster_findings(found)
    assert finding.level == level
    assert says in finding.finding
    assert fix in finding.fix


def test_a_host_that_is_dead_is_no_host_of_another_version() -> None:
    found = cluster_findings(view(*BOTH, host("c", alive=False, version="0.9")))
    assert [each.level for each in found] == [PROBLEM]

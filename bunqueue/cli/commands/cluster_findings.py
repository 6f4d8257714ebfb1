"""What needs attention in a cluster, and how to fix it: for ``bunqueue cluster check`` and ``doctor``.

Rules without I/O, applied to one reply of ClusterStatus.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from bunqueue.text import plural

MAX_SHOWN = 8  # shards that one line names

PROBLEM, WARNING = "problem", "warning"


class ClusterFinding(NamedTuple):
    """``level`` is PROBLEM or WARNING."""

    level: str
    finding: str
    fix: str


def cluster_findings(found: Any) -> list[ClusterFinding]:
    """The findings in a ClusterView; an empty list when all is well."""
    return [*_store(found), *_hosts(found), *_versions(found), *_shards(found)]


def _store(found: Any) -> Iterator[ClusterFinding]:
    if found.error:
        yield ClusterFinding(PROBLEM, f"the store cannot be read: {found.error}", "bunqueue store check")


def _hosts(found: Any) -> Iterator[ClusterFinding]:
    for host in found.hosts:
        if not host.alive:
            fix = f"start its server, or bunqueue cluster forget {host.name}"
            yield ClusterFinding(PROBLEM, f"the host {host.name} is dead: its beats have stopped", fix)
        elif not host.reached:
            text = f"{found.host} does not reach {host.name} at {host.link}"
            yield ClusterFinding(PROBLEM, text, "look at the network and at --cluster-address")
        elif host.draining:
            fix = f"replace it, or bunqueue cluster drain --undo {host.name}"
            yield ClusterFinding(WARNING, f"the host {host.name} is draining", fix)
    if sum(host.alive for host in found.hosts) == 1:
        yield ClusterFinding(WARNING, "only one host lives: nobody could take over", "start another one")


def _versions(found: Any) -> Iterator[ClusterFinding]:
    running: dict[str, list[str]] = {}
    for host in found.hosts:
        if host.alive:
            running.setdefault(host.version, []).append(host.name)
    if len(running) > 1:
        each = "; ".join(f"{version} on {', '.join(names)}" for version, names in sorted(running.items()))
        yield ClusterFinding(WARNING, f"hosts run different versions: {each}", "go on with the upgrade")


def _shards(found: Any) -> Iterator[ClusterFinding]:
    alone = [place.shard for place in found.shards if not place.owner]
    if alone:
        fix = "if it lasts longer than some seconds: bunqueue cluster status, and the logs of hosts that live"
        yield ClusterFinding(PROBLEM, f"{_some(alone)} without an owner: commands for it wait", fix)
    if len(found.hosts) < 2:
        return
    owned = [place for place in found.shards if place.owner]
    bare = [place.shard for place in owned if not place.copies]
    limit = found.lag_limit
    behind = [
        place.shard for place in owned if place.copies and min(copy.behind for copy in place.copies) >= limit
    ]
    if bare:
        fix = "wait until hosts have made them; if there are fewer hosts than copies, start one"
        yield ClusterFinding(WARNING, f"{_some(bare)} without a copy: a take-over would take longer", fix)
    if behind:
        text = f"{_some(behind)} with copies that are more than {limit:,} records behind"
        fix = "bunqueue cluster status --shards: if they do not catch up, look at their hosts' load and logs"
        yield ClusterFinding(WARNING, f"{text}: a take-over would take longer", fix)


def _some(shards: list[int]) -> str:
    """Text such as "2 shards (0, 5)"."""
    shown = ", ".join(str(shard) for shard in shards[:MAX_SHOWN])
    more = f" and {len(shards) - MAX_SHOWN} more" if len(shards) > MAX_SHOWN else ""
    return f"{plural(len(shards), 'shard')} ({shown}{more})"

"""``bunqueue cluster``: the hosts that share a store's shards. Any of them can answer."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from ..framework import exits
from ..framework.session import Session
from ..framework.shared import noun, verb
from ..framework.values import Yes, argument, option
from ..output.output import Column, Kind, plain
from ..output.progress import advancing, confirm
from .cluster_findings import PROBLEM, cluster_findings

app = noun("The hosts of a cluster: show them, check them, move shards between them.")

POLL_S = 0.5  # between two polls of the progress
HOSTS = (
    Column("name"),
    Column("state", Kind.STATE),
    Column("owns", Kind.NUMBER),
    Column("follows", Kind.NUMBER),
    Column("beatAge", Kind.SPAN, "last beat"),
    Column("load"),
    Column("clients"),
    Column("link"),
    Column("version"),
)
SHARDS = (
    Column("shard", Kind.NUMBER),
    Column("owner"),
    Column("state", Kind.STATE),
    Column("copies"),
    Column("position", Kind.NUMBER),
    Column("epoch", Kind.NUMBER),
)
FINDINGS = (Column("level", Kind.STATE), Column("finding", Kind.PROSE), Column("fix", Kind.PROSE))

Host = Annotated[str, argument("HOST", "The name of a host, as bunqueue cluster status shows it.")]
Shard = Annotated[int, argument("SHARD", "The number of a shard, from 0 on.")]
Undo = Annotated[bool, option("--undo", about="Let the host own shards again.")]
Shards = Annotated[bool, option("--shards", about="Show each shard instead of the hosts.")]


@verb(app, "bunqueue cluster status", "bunqueue cluster status --shards")
def status(session: Session, shards: Shards = False) -> None:
    """Show the hosts: whether they live, how many shards each owns and follows, and how busy each is.

    A host sends a heartbeat each second. The load is the average per core of its machine over one minute:
    above 1, some processes have to wait.

    With --shards: where each shard is, where it moves to, and how current its copies are.
    """
    found = session.admin.cluster_status()
    if session.out.as_json:
        session.out.record(found, ())
    elif shards:
        session.out.rows([_shard(place) for place in found.shards], SHARDS, none="there are no shards")
    else:
        session.out.rows([_host(host) for host in found.hosts], HOSTS, none="there are no hosts")
    if found.error:
        session.out.note(f"what is shown is old, as the store cannot be read: {found.error}")


def _host(host: Any) -> dict[str, Any]:
    state = "draining" if host.draining else "alive" if host.alive else "dead"
    if host.alive and not host.reached:
        state = "not reached"
    load = "" if host.load is None else f"{host.load:.2f}"
    return {**plain(host), "state": state, "load": load}


def _shard(place: Any) -> dict[str, Any]:
    copies = ", ".join(f"{each.host} ({each.behind} behind)" for each in place.copies)
    state = "served"
    if not place.owner:
        state = "no owner"
    elif place.owner != place.home:
        state = f"moves to {place.home}"
    elif place.wanted == place.owner:
        state = "served, was moved here"
    return {**plain(place), "state": state, "copies": copies}


@verb(app, "bunqueue cluster check")
def check(session: Session) -> None:
    """Check that all hosts live and reach each other, and that each shard has an owner and a copy.

    Exit status: 1 when something needs attention. For the database itself: bunqueue store check.
    """
    findings = cluster_findings(session.admin.cluster_status())
    session.out.rows(
        [found._asdict() for found in findings],
        FINDINGS,
        none="all is well: hosts live, shards have owners and copies",
    )
    if any(found.level == PROBLEM for found in findings):
        raise typer.Exit(exits.FAILED)


@verb(app, "bunqueue cluster drain one", "bunqueue cluster drain --undo one")
def drain(session: Session, name: Host, undo: Undo = False) -> None:
    """Have all shards of a host move to others, before it is replaced. Waits until they have."""
    found = session.admin.drain_host(name, draining=not undo)
    if undo:
        session.out.done(f"the host {name} may own shards again", {"host": name, "draining": False})
        return
    total = _owned(found, name)
    with advancing("shards that have moved", total) as advance:
        while left := _owned(found, name):
            advance(total - left)
            time.sleep(POLL_S)
            found = session.admin.cluster_status()
    session.out.done(f"the host {name} owns no shard any more", {"host": name, "draining": True})


def _owned(found: Any, host: str) -> int:
    """The number of shards that a host owns."""
    return sum(each.owns for each in found.hosts if host in (each.name, each.id))


@verb(app, "bunqueue cluster move 3 two")
def move(session: Session, shard: Shard, name: Host) -> None:
    """Have a shard move to a host, and stay there until `bunqueue cluster rebalance`."""
    session.admin.move_shard(shard, name)
    session.out.done(f"shard {shard} moves to {name}", {"shard": shard, "host": name})


@verb(app, "bunqueue cluster rebalance")
def rebalance(session: Session) -> None:
    """Forget where shards were moved to: all hosts get their share."""
    session.admin.rebalance()
    session.out.done("the hosts get their shares", {"rebalanced": True})


@verb(app, "bunqueue cluster forget two --yes")
def forget(session: Session, name: Host, yes: Yes = False) -> None:
    """Remove a host that is dead, and will not come back under its name."""
    confirm(f"Remove the host {name}?", yes)
    session.admin.forget_host(name)
    session.out.done(f"the host {name} is removed", {"host": name, "removed": True})

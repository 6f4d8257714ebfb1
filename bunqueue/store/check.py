"""Checks whether a PostgreSQL server keeps acknowledged commits when its machine dies, and is set up for a
store.

A store promises what its database promises: a commit is answered when a synchronous standby has it.
"""

from __future__ import annotations

import statistics
import time
from enum import StrEnum
from typing import Any, NamedTuple

from .database import StoreNotReady, connected, read

OLDEST = 130000  # of PostgreSQL's versions
SLOW_MS = 20.0  # a commit that takes longer limits the throughput of a shard
COMMITS = 20  # trial commits


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class Finding(NamedTuple):
    """The result of one check; ``fix`` says how the problem is fixed, "" if there is nothing to fix."""

    level: Level
    text: str
    fix: str = ""


def check(url: str, *, replicates: bool = False) -> list[Finding]:
    """Check everything that the store's promise depends on.  StoreUnavailable if the server does not answer.

    ``replicates``: the database's storage keeps copies, so it needs no standby."""
    with connected(url) as connection:
        found = [_version(connection), *_written(connection)]
        found += _tables(connection)
        declared = _is_declared_replicated(connection)
        found += [_replicated()] if replicates or declared else standbys(connection)
        found.append(_connections(connection))
        if not problems(found):  # with problems it might wait for ever
            found.append(_commits(connection))
        return found


def problems(found: list[Finding]) -> list[Finding]:
    """The findings that rule out using the store."""
    return [one for one in found if one.level is Level.PROBLEM]


def _setting(connection: Any, name: str) -> str:
    return str(connection.execute("select current_setting(%s)", (name,)).fetchone()[0])


def _version(connection: Any) -> Finding:
    version = connection.info.server_version
    text = f"PostgreSQL {_setting(connection, 'server_version')}"
    if version < OLDEST:
        return Finding(Level.PROBLEM, f"{text} is too old", f"upgrade it to {OLDEST // 10_000} or newer")
    return Finding(Level.OK, text)


def _written(connection: Any) -> list[Finding]:
    """Check whether commits are written to disk."""
    found = []
    for name in ("fsync", "full_page_writes"):
        if _setting(connection, name) != "on":
            text = f"{name} is off: a crash of the machine may damage the database"
            found.append(Finding(Level.PROBLEM, text, f"alter system set {name} = on, then reload"))
    return found or [Finding(Level.OK, "commits are written to the disk (fsync, full_page_writes)")]


def _tables(connection: Any) -> list[Finding]:
    try:
        store = read(connection)
    except StoreNotReady as error:
        return [Finding(Level.WARNING, str(error), "bunqueue store init --store URL --shards N")]
    found = [Finding(Level.OK, f"store {store.id} for {store.shards} shards")]
    query = "select has_table_privilege('bunqueue.log', 'insert'), has_schema_privilege('bunqueue', 'create')"
    may_insert, may_create = connection.execute(query).fetchone()
    if not may_insert:
        fix = "grant all on all tables in schema bunqueue to the role of the URL"
        found.append(Finding(Level.PROBLEM, "the role may not write the log", fix))
    if not may_create:
        text = "the role may not make partitions, so the log is never trimmed"
        found.append(Finding(Level.WARNING, text, "let the role own the schema bunqueue and its tables"))
    return found


def _is_declared_replicated(connection: Any) -> bool:
    """Whether the store was made with --storage-replicates."""
    try:
        return read(connection).replicates
    except StoreNotReady:
        return False


def _replicated() -> Finding:
    return Finding(Level.OK, "its storage replicates, as was said: no synchronous standby is needed")


def standbys(connection: Any) -> list[Finding]:
    """Check whether commits are also on another machine."""
    names = _setting(connection, "synchronous_standby_names").strip()
    if not names:
        text = "no synchronous standby: what is acknowledged is lost with this one machine"
        fix = (
            "set synchronous_standby_names, such as 'ANY 1 (*)' (with Patroni: synchronous_mode: quorum and "
            "synchronous_mode_strict: true); if the storage itself keeps copies, as that of a managed "
            "Multi-AZ database does, give --storage-replicates"
        )
        return [Finding(Level.PROBLEM, text, fix)]
    found = standbys_of(connection)
    if found and all(standby.sync is None for standby in found):
        text = "the role may not see the standbys, so it is not known whether one is synchronous"
        return [Finding(Level.WARNING, text, "grant pg_monitor to the role of the URL, and check again")]
    good = sorted(standby.name for standby in found if standby.is_synchronous)
    if not good:
        text = f"synchronous_standby_names is {names!r}, and no such standby is connected: commits wait"
        return [Finding(Level.PROBLEM, text, "start the standbys, and look at their logs")]
    findings = [Finding(Level.OK, f"synchronous standbys: {', '.join(good)} ({names})")]
    others = [
        standby.name for standby in found if not standby.is_synchronous and standby.state == "streaming"
    ]
    if len(good) == 1 and not others:
        text = "only one synchronous standby: while it is down, nothing can be acknowledged"
        findings.append(Finding(Level.WARNING, text, "add a second one"))
    elif len(good) == 1:
        text = f"only one synchronous standby: while it is down, commits wait for {_one_of(others)} to be one"
        fix = "Patroni does that by itself; with synchronous_mode: quorum, of Patroni 4, none has to wait"
        findings.append(Finding(Level.WARNING, text, fix))
    return findings


def _one_of(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"one of {', '.join(sorted(names))}"


class Standby(NamedTuple):
    """A server that receives the commits; ``sync``: None if the role may not see it."""

    name: str
    state: str | None
    sync: str | None

    @property
    def is_synchronous(self) -> bool:
        """Whether commits wait for it, alone or for some of several."""
        return self.sync in ("sync", "quorum") and self.state == "streaming"


def standbys_of(connection: Any) -> list[Standby]:
    """The connected standbys."""
    query = "select application_name, state, sync_state from pg_stat_replication"
    return [Standby(*row) for row in connection.execute(query)]


def _connections(connection: Any) -> Finding:
    most = int(_setting(connection, "max_connections"))
    (used,) = connection.execute("select count(*) from pg_stat_activity").fetchone()
    text = f"{used} of {most} connections are in use"
    try:
        shards = read(connection).shards
    except StoreNotReady:
        return Finding(Level.OK, text)
    needed = 2 * shards + 4
    if most - used < needed:
        fix = f"raise max_connections: {shards} shards take up to {needed}"
        return Finding(Level.WARNING, text, fix)
    return Finding(Level.OK, text)


def _commits(connection: Any) -> Finding:
    """Measure how long a commit takes that waits for its standby."""
    times = []
    for _ in range(COMMITS):
        begun = time.perf_counter()
        connection.execute("select pg_logical_emit_message(true, 'bunqueue', 'check')")
        times.append((time.perf_counter() - begun) * 1000)
    median = statistics.median(times)
    text = f"a commit takes {median:.1f} ms (median of {COMMITS})"
    if median > SLOW_MS:
        return Finding(Level.WARNING, text, "put the standbys nearer, or on faster disks")
    return Finding(Level.OK, text)

"""``bunqueue store init``, ``check`` and ``status``: the tables of a store, and their database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from ...framework import exits
from ...framework.offline import offline_verb
from ...framework.values import option
from ...output.output import Column, Kind, Output
from .options import Config, Snapshots, StoreFailed, Url, app, explained, resolved

if TYPE_CHECKING:
    from bunqueue.store.check import Finding

FINDINGS = (
    Column("status", Kind.STATE),
    Column("finding", Kind.PROSE),
    Column("fix", Kind.PROSE, "what to do"),
)
SHARDS = (
    Column("shard", Kind.NUMBER),
    Column("epoch", Kind.NUMBER),
    Column("owner", Kind.ID),
    Column("position", Kind.NUMBER),
    Column("snapshot", Kind.NUMBER, "snapshot at"),
    Column("snapshotAt", Kind.TIME, "made"),
    Column("snapshotBytes", Kind.SIZE, "snapshot"),
    Column("since", Kind.SIZE, "log since"),
    Column("log", Kind.SIZE, "log kept"),
    Column("snapshotPlace", Kind.TEXT, "place"),
)

Replicates = Annotated[
    bool,
    option(
        "--storage-replicates",
        about="The storage of the database keeps copies on other machines, as that of a managed Multi-AZ "
        "database does, so it needs no synchronous standby.",
    ),
]
Shards = Annotated[
    str | None,
    option(
        "--shards",
        metavar="SHARDS",
        about="A power of two from 1 to 64. It cannot be changed afterwards: for several hosts take 64.",
    ),
]


@offline_verb(app, "bunqueue store init --store postgresql://queue@db1,db2/queue --shards 8")
def init(
    out: Output,
    store: Url = None,
    shards: Shards = None,
    storage_replicates: Replicates = False,
    store_snapshots: Snapshots = None,
    config: Config = None,
) -> None:
    """Make the tables of a store, after a check.

    It refuses a PostgreSQL that would lose acknowledged data together with its machine. In that case it
    changes nothing. The role needs the right to create a schema in the database; it owns the tables.
    """
    found = resolved(store=store, shards=shards, store_snapshots=store_snapshots, config=config)
    settings = found.settings
    if found.sources["shards"] == "default":
        from bunqueue.server.settings import SettingsError

        raise SettingsError("--shards: give the number of shards; it cannot be changed afterwards")
    from bunqueue.store.check import Level, check, problems
    from bunqueue.store.places import probe
    from bunqueue.store.setup import init as make

    with explained():
        if wrong := problems(check(settings.store, replicates=storage_replicates)):
            for finding in wrong:
                out.note(f"{Level.PROBLEM}: {finding.text}; {finding.fix}")
            raise StoreFailed("the database is not fit for a store: see above; nothing was changed")
        probe(settings.store_snapshots, settings.store)
        made = make(settings.store, settings.shards, replicates=storage_replicates)
    number = settings.shards
    text = f"store {made} for {number} shards; start servers with --store and --shards {number}"
    out.done(text, {"id": made, "shards": number}, "id")


@offline_verb(
    app,
    "bunqueue store check --store postgresql://queue@db1,db2/queue",
    "bunqueue store check --config bunqueue.toml --json | jq '.[] | select(.status != \"ok\")'",
)
def check(
    out: Output,
    store: Url = None,
    storage_replicates: Replicates = False,
    store_snapshots: Snapshots = None,
    config: Config = None,
) -> None:
    """Look at all that a store's promise depends on: standbys, settings, rights, the time of a commit.

    It changes nothing. Exit status: 1 when the database must not be used for a store in this state, 0 when
    there are at most warnings, 4 when it does not answer.
    """
    settings = resolved(store=store, store_snapshots=store_snapshots, config=config).settings
    from bunqueue.store.check import check as check_store
    from bunqueue.store.check import problems

    with explained():
        found = check_store(settings.store, replicates=storage_replicates)
    found.append(place_finding(settings.store_snapshots, settings.store))
    rows = [{"status": str(each.level), "finding": each.text, "fix": each.fix or None} for each in found]
    out.rows(rows, FINDINGS, none="")
    if problems(found):
        raise typer.Exit(exits.FAILED)


def place_finding(where: str, url: str) -> Finding:
    """Whether snapshots can be kept in the place that the settings name."""
    from bunqueue.store.check import Finding, Level
    from bunqueue.store.places import PlaceError, probe

    try:
        probe(where, url)
    except PlaceError as error:
        fix = "see to it, or set store_snapshots to another place; meanwhile the log grows"
        return Finding(Level.PROBLEM, str(error), fix)
    return Finding(Level.OK, f"snapshots are kept in {where or 'the store'}")


@offline_verb(app, "bunqueue store status", "bunqueue store status --json | jq .shards[].position")
def status(out: Output, store: Url = None, config: Config = None) -> None:
    """Print the shards: epoch, owner, position, newest snapshot, and bytes of the log.

    With --json, also the details of the store itself.
    """
    settings = resolved(store=store, config=config).settings
    from bunqueue.store.database import why_unusable
    from bunqueue.store.status import status as ask

    with explained():
        found = ask(settings.store)
    if out.as_json:
        out.record(found, (), whole=found)
        return
    out.rows([msgspec.to_builtins(shard) for shard in found.shards], SHARDS, none="no shards")
    if found.store.use:
        out.note(why_unusable(found.store.use))

"""``bunqueue audit``: who changed what, from the trail in the data folder."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from bunqueue.server.audit.entries import Entry
from bunqueue.server.audit.trail import Follower, Wanted, latest, problems_in
from bunqueue.server.settings import SettingsError
from bunqueue.server.settings.settings import resolve_settings

from ..framework.offline import offline_verb
from ..framework.reading import PlainGroup
from ..framework.values import WHEN, begun, option, span_or_moment
from ..output.output import Column, Kind, Output, field, plain

FOLLOW_S = 0.5
MAX_ENTRIES = 1_000_000
COLUMNS = (
    Column("time"),
    Column("who"),
    Column("address"),
    Column("what"),
    Column("on", Kind.PROSE),
    Column("count"),
    Column("outcome", Kind.STATE),
    Column("request"),
)

app = typer.Typer(cls=PlainGroup, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.callback()
def _audit() -> None:
    """Who changed what: list or follow the trail, verify it."""


DataDir = Annotated[
    str | None, option("--data-dir", metavar="DIR", about="The data folder. Default: as for start.")
]
Config = Annotated[
    str | None, option("--config", metavar="FILE", about="The server's config file, which names the folder.")
]
Who = Annotated[str, option("--who", metavar="NAME", about="Only of this identity or address.")]
What = Annotated[
    list[str] | None,
    option("--what", metavar="WORD", about="Only with this command, queue, id or other value; repeat it."),
]
Since = Annotated[str | None, option("--since", metavar=WHEN, about="Not older than that.")]
Limit = Annotated[int, option("--limit", metavar="N", about="The newest N entries. Default: 100.")]
Follow = Annotated[bool, option("--follow", about="Go on with new entries, until interrupted.")]


@offline_verb(
    app,
    "bunqueue audit list --since 1d --who billing-worker",
    "bunqueue audit list --follow --what Obliterate --json",
    name="list",
)
def list_entries(
    output: Output,
    who: Who = "",
    what: What = None,
    since: Since = None,
    limit: Limit = 100,
    follow: Follow = False,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """List what was changed and refused: when, by whom, from where, on what, with which outcome."""
    folder = _folder(data_dir, config)
    start = 0.0 if since is None else begun(span_or_moment(since))
    if not 0 < limit <= MAX_ENTRIES:
        raise SettingsError(f"--limit: {limit} is not allowed; give a number from 1 to {MAX_ENTRIES}")
    wanted = Wanted(who, tuple(what or ()), start)
    follower = Follower(folder)
    found = latest(folder, wanted, limit)
    if not follow:
        output.rows([_row(entry) for entry in found], COLUMNS, none="No entries.")
        return
    while True:
        for entry in found:
            row = _row(entry)
            output.line(row, "\t".join(field(row.get(column.name)) for column in COLUMNS))
        time.sleep(FOLLOW_S)
        found = [entry for entry in follower.new() if wanted.fits(entry)]


@offline_verb(app, "bunqueue audit verify --data-dir ./data")
def verify(output: Output, data_dir: DataDir = None, config: Config = None) -> None:
    """Check that no entry of the trail was changed, and none taken out of its middle."""
    files, problems = problems_in(_folder(data_dir, config))
    if problems:
        raise SettingsError("; ".join(problems))
    output.done(f"{files} files, each entry follows from the one before it.", {"files": files}, "files")


def _folder(data_dir: str | None, config: str | None) -> str:
    settings = resolve_settings({"data_dir": data_dir, "config": config}, os.environ).settings
    if settings.in_memory:
        raise SettingsError("data_dir: a server in memory keeps no trail; give the folder with --data-dir")
    return settings.data_dir


def _row(entry: Entry) -> dict[str, Any]:
    """An entry as it is shown."""
    found: dict[str, Any] = plain(entry)
    on = " ".join(f"{name}={value}" for name, value in entry.on.items())
    return {**found, "time": _time(entry.at), "on": on}


def _time(at: int) -> str:
    try:
        return datetime.fromtimestamp(at / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (ValueError, OverflowError, OSError):  # the line was changed
        return str(at)

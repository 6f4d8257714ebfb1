"""``bunqueue restore``: makes a data folder from a backup."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bunqueue.model.names import namespace_problem
from bunqueue.server.settings import SettingsError
from bunqueue.text import plural, size_of, span_of

from ...framework.offline import offline_verb
from ...framework.values import argument, option, whole
from ...output.output import Output
from ...output.progress import advancing
from .program import KeyCommand, KeyFile, explained, target_at

if TYPE_CHECKING:
    from bunqueue.backup.restore import Restored, Source, Wanted

app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)

SHOWN = 10  # queues, or schedules, that the text names


def moment(text: object) -> datetime:
    """A moment in ISO 8601 with its time zone, as in the ids of backups. Raises BadParameter."""
    found = text
    if isinstance(text, str):
        with suppress(ValueError):
            found = datetime.fromisoformat(text)
    if not isinstance(found, datetime) or found.tzinfo is None:
        raise typer.BadParameter(
            f"{text!r} is no moment with its time zone; give 2026-01-31T12:00Z, or the id of a backup."
        )
    return found


Where = Annotated[
    str,
    argument(
        "SOURCE", "Where the backups are (as for bunqueue backup), a data folder, or a store's snapshots."
    ),
]
NewFolder = Annotated[
    str, option("--data-dir", metavar="DIR", about="The data folder to make: a new or an empty one.")
]
At = Annotated[
    datetime | None,
    option(
        "--at",
        metavar="MOMENT",
        about="What was there then: a moment with its time zone, or the id of a backup. Default: the newest.",
        parser=moment,
    ),
]
Shards = Annotated[
    int | None,
    option(
        "--shards",
        metavar="SHARDS",
        about="Another number of shards: a power of two from 1 to 64.",
        parser=whole,
    ),
]
Queues = Annotated[
    list[str] | None,
    option(
        "--queues", metavar="PATTERN", about="Keep only queues like this one, as 'mail.*'; may be repeated."
    ),
]
Namespace = Annotated[
    str,
    option(
        "--namespace",
        metavar="NAME",
        about="Keep only what is in this namespace; --queues is about names in it.",
    ),
]
RunMissed = Annotated[
    bool,
    option("--run-missed", about="Let schedules make up for the times since then, as each is set up to."),
]
DryRun = Annotated[bool, option("--dry-run", about="Say what would be done, and change nothing.")]


@offline_verb(
    app,
    "bunqueue restore s3://bucket/jobs --data-dir ./data --dry-run",
    "bunqueue restore s3://bucket/jobs --data-dir ./data --at 2026-11-28T10:00:00+01:00",
    "bunqueue restore ./snapshot --data-dir ./data --queues 'mail.*' --shards 8",
)
def restore(
    out: Output,
    source: Where,
    data_dir: NewFolder,
    at: At = None,
    shards: Shards = None,
    queues: Queues = None,
    namespace: Namespace = "",
    run_missed: RunMissed = False,
    dry_run: DryRun = False,
    key_file: KeyFile = None,
    key_command: KeyCommand = None,
) -> None:
    """Make a data folder from a backup, and prove that it is good.

    The files are read whole, their jobs counted, and an engine is started on them. Jobs that were running at
    the moment of the backup run again. Jobs that had ended stay ended. Schedules go on with their next times.
    Start the server on the folder afterwards.
    """
    if shards is not None and (not 1 <= shards <= 64 or shards & (shards - 1)):
        raise SettingsError(f"--shards: {shards} is not allowed; give a power of two from 1 to 64")
    if namespace and (problem := namespace_problem(namespace)):
        raise SettingsError(f"--namespace: {problem}")
    from bunqueue.backup.restore import Wanted, check_empty, source_of
    from bunqueue.backup.restore import restore as make
    from bunqueue.backup.sealing import key_of

    folder = Path(data_dir)
    wanted = Wanted(shards, queues or [], run_missed, namespace)
    with explained():
        check_empty(folder)
        when = None if at is None else int(at.timestamp() * 1000)
        found = source_of(target_at(source), key_of(key_file or "", key_command or ""), when)
        if dry_run:
            out.done(_plan(found, folder, wanted), _facts(found, folder), "source")
            return
        with advancing("reading", None) as advance:
            made = make(found, folder, wanted, advance)
    text = "\n".join(_said(found, folder, wanted, made))
    if out.as_json or not out.is_terminal:
        out.done(text, _facts(found, folder) | _outcome(made), "dataDir")
    else:
        out.text(text)


def _facts(source: Source, folder: Path) -> dict[str, Any]:
    return {
        "source": source.about,
        "moment": source.moment,
        "bytes": source.bytes,
        "dataDir": str(folder),
        "seconds": source.seconds(),
    }


def _outcome(made: Restored) -> dict[str, Any]:
    return {
        "shards": made.shards,
        "jobs": made.jobs,
        "runAgain": made.running,
        "schedules": made.schedules,
        "dropped": made.dropped,
    }


def _plan(source: Source, folder: Path, wanted: Wanted) -> str:
    shards = f", with {plural(wanted.shards, 'shard')}" if wanted.shards else ""
    queues = f", only queues like {' or '.join(map(repr, wanted.queues))}" if wanted.queues else ""
    where = f", only the namespace {wanted.namespace}" if wanted.namespace else ""
    seconds = source.seconds()
    how_long = "" if seconds is None else f"; that takes about {span_of(seconds * 1000)}"
    what = f"{source.about}{_when(source)}{shards}{where}{queues}"
    return f"{folder} would be made from {what}: {size_of(source.bytes)}{how_long}"


def _when(source: Source) -> str:
    """The moment, as ``--at`` takes it."""
    if source.moment is None:
        return ""
    at = datetime.fromtimestamp(source.moment / 1000).astimezone()
    return f", as it was at {at.isoformat(timespec='milliseconds')}"


def _said(source: Source, folder: Path, wanted: Wanted, made: Restored) -> list[str]:
    lines = [f"{folder} has {plural(made.jobs, 'unfinished job')}, from {source.about}{_when(source)}."]
    if made.dropped:
        lines.append(f"Left out: {_some(made.dropped)}.")
    if made.running:
        queues = _some([f"{queue} ({count:,})" for queue, count in sorted(made.running.items())])
        lines.append(f"Jobs that were running then run again once their locks have run out: {queues}.")
    lines.append("Jobs that have ended since then run again, as that is not known here.")
    if made.schedules:
        what = "make up for their runs" if wanted.runs_missed else "go on with their next times"
        lines.append(f"Schedules that were due since then {what}: {_some(made.schedules)}.")
    lines.append(f"Start the server: bunqueue start --data-dir {folder} --shards {made.shards}")
    return lines


def _some(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more

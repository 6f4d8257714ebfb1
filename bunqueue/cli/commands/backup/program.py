"""``bunqueue backup create``, ``list``, ``verify`` and ``prune``."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bunqueue.errors import BunqueueError
from bunqueue.server.settings import SettingsError
from bunqueue.server.settings.option_kinds import MEMORY
from bunqueue.server.settings.settings import resolve_settings
from bunqueue.text import plural, size_of, span_of

from ...framework import exits
from ...framework.offline import offline_verb
from ...framework.reading import PlainGroup
from ...framework.values import argument, option, whole
from ...output.output import Column, Kind, Output
from ...output.progress import advancing

if TYPE_CHECKING:
    from bunqueue.backup.repository import Backup, Repository
    from bunqueue.backup.targets import Target

app = typer.Typer(
    cls=PlainGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Backups: make, list, verify and prune them.",
)


@app.callback()
def _backup() -> None:
    pass


BACKUPS = (
    Column("id", Kind.ID),
    Column("moment", Kind.TIME),
    Column("until", Kind.TIME, "goes on until"),
    Column("shards", Kind.NUMBER),
    Column("jobs", Kind.NUMBER),
    Column("bytes", Kind.SIZE, "size"),
    Column("newBytes", Kind.SIZE, "stored"),
    Column("took", Kind.SPAN),
    Column("problem", Kind.PROSE),
)
HEAL = (
    "other backups may be whole (bunqueue backup list); remove what is damaged, and the next backup stores "
    "it again"
)
PASSED = "made by a server from which another had taken over: it does not count"
FINDINGS = (
    Column("status", Kind.STATE),
    Column("check"),
    Column("problem", Kind.PROSE),
)

Place = Annotated[
    str, argument("TARGET", "Where the backups are: a folder, or s3://bucket/prefix, gs://..., az://...")
]
Number = Annotated[
    str | None, argument("BACKUP", "The id of a backup, or as much of it as is unique. Default: the newest.")
]
KeyFile = Annotated[
    str | None,
    option("--key-file", metavar="FILE", about="A file with the key of the backups: 32 bytes as Base64."),
]
KeyCommand = Annotated[
    str | None,
    option("--key-command", metavar="COMMAND", about="A command that prints that key."),
]
DataDir = Annotated[
    str | None, option("--data-dir", metavar="DIR", about="The data folder. Default: as for start.")
]
Config = Annotated[
    str | None,
    option("--config", metavar="FILE", about="The server's config file, which names the data folder."),
]


class BackupFailed(BunqueueError):
    """A backup cannot be made, read or restored."""

    code = "backup"


class BackupKeyRefused(BackupFailed):
    """The key of the backups is missing, superfluous or wrong."""

    code = "backup_key"


class BackupDamaged(BackupFailed):
    """Something at the target is not what was stored."""

    code = "backup_damaged"


@contextmanager
def explained() -> Iterator[None]:
    """Turn the errors of backups and of data folders into those of a verb."""
    from bunqueue.backup.create import BackupError
    from bunqueue.backup.sealing import Damaged, KeyRefused
    from bunqueue.backup.targets import TargetError
    from bunqueue.server.folder.data_folder import DataFolderError
    from bunqueue.server.folder.unreadable import NotReadable

    try:
        yield
    except KeyRefused as error:
        raise BackupKeyRefused(str(error)) from error
    except Damaged as error:
        raise BackupDamaged(f"{error}; {HEAL}") from error
    except (BackupError, TargetError, DataFolderError, NotReadable) as error:
        raise BackupFailed(str(error)) from error
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise BackupFailed(f"{where}{error.strerror or error}") from error


def target_at(place: str) -> Target:
    """The target of that name. Raises SettingsError and, within `explained`, TargetError."""
    from bunqueue.backup.targets import BUCKETS, target_of

    if place.startswith("sftp://"):
        raise SettingsError(
            f"{place!r}: SFTP has no conditional writes, so two servers could spoil each other's backups; "
            "use s3://... (MinIO on that machine, say) or a folder that is mounted with NFS"
        )
    if "://" in place and not place.startswith(BUCKETS):
        raise SettingsError(f"{place!r} is no place for backups; give a folder, or {', '.join(BUCKETS)}...")
    return target_of(place if place.startswith(BUCKETS) else os.path.abspath(place))


def repository_at(place: str, key_file: str | None, key_command: str | None) -> Repository:
    """The backups at a target, as `target_at`."""
    from bunqueue.backup.repository import Repository
    from bunqueue.backup.sealing import key_of

    return Repository(target_at(place), key_of(key_file or "", key_command or ""))


def chosen(repository: Repository, number: str | None) -> Backup:
    """The backup of that id, or the newest."""
    from bunqueue.backup.primary import newest

    repository.open()
    if not number and (last := next(newest(repository), None)) is not None:
        return last
    found = [each for each in repository.ids() if each.startswith(number or "")]
    if not found:
        what = f"a backup {number}" if number else "backups"
        raise BackupFailed(
            f"{repository.target.where} has no {what}; bunqueue backup list says what there is"
        )
    if number and len(found) > 1:
        raise BackupFailed(f"{number} may be {', '.join(found[:3])}; give more of it")
    return repository.backup(found[-1])


@offline_verb(
    app,
    "bunqueue backup create s3://bucket/jobs --data-dir ./data",
    "bunqueue backup create /mnt/backups --key-file backup.key --rate 20",
)
def create(
    out: Output,
    target: Place,
    data_dir: DataDir = None,
    config: Config = None,
    key_file: KeyFile = None,
    key_command: KeyCommand = None,
    rate: Annotated[
        int, option("--rate", metavar="MB", about="The most MB to store in a second.", parser=whole)
    ] = 0,
) -> None:
    """Back up a data folder, while its server works.

    All shards are stored as at one moment. Only pages that have changed since the last backup are stored.
    If it is interrupted, run it again: it continues. An access key comes from the usual variables
    (AWS_ACCESS_KEY_ID ...) or from the machine's role.
    """
    if rate < 0:
        raise SettingsError("--rate: give a number of MB above 0; 0 means no limit")
    settings = resolve_settings({"data_dir": data_dir, "config": config}, os.environ).settings
    if settings.data_dir == MEMORY:
        raise SettingsError(f"data_dir is {MEMORY}, which keeps nothing; give the folder with --data-dir")
    from bunqueue.backup import create as making

    with explained(), advancing("pages", None) as advance:
        made = making.create(
            Path(settings.data_dir),
            repository_at(target, key_file, key_command),
            rate=rate * 1e6,
            report=lambda progress: advance(progress.done, progress.total),
        )
    jobs = sum(each.jobs for each in made.counts)
    text = (
        f"backup {made.id}: {plural(jobs)} of {plural(made.shards, 'shard')}, {size_of(made.bytes)}, "
        f"of which {size_of(made.new_bytes)} were stored in {span_of(made.took_ms)}"
    )
    if problem := making.clock_problem(made.moment, time.time() * 1000):
        out.note(f"bunqueue: {problem}")
    out.done(text, _row(made), "id")


def _row(backup: Backup) -> dict[str, Any]:
    import msgspec

    jobs = sum(each.jobs for each in backup.counts)
    return {**msgspec.to_builtins(backup), "jobs": jobs, "took": backup.took_ms, "problem": None}


@offline_verb(
    app, "bunqueue backup list s3://bucket/jobs", "bunqueue backup list /mnt/backups --json | jq '.[-1].id'"
)
def list(out: Output, target: Place, key_file: KeyFile = None, key_command: KeyCommand = None) -> None:
    """List the backups at a target, oldest first.

    A backup that a server has made (--backup) goes on: each second until then can be restored.
    """
    from bunqueue.backup.primary import passed
    from bunqueue.backup.shipped import until

    with explained():
        repository = repository_at(target, key_file, key_command)
        repository.open()
        without = passed(repository)
        found = [
            {"id": each.id, "problem": each.problem}
            if each.backup is None
            else _row(each.backup)
            | {"until": until(repository, each.backup)}
            | ({"problem": PASSED} if each.id in without else {})
            for each in repository.backups()
        ]
    out.rows(found, BACKUPS, none="no backups")


@offline_verb(
    app,
    "bunqueue backup verify s3://bucket/jobs --key-file backup.key",
    "bunqueue backup verify /mnt/backups 20261128T10 --scratch /var/tmp",
)
def verify(
    out: Output,
    target: Place,
    backup: Number = None,
    key_file: KeyFile = None,
    key_command: KeyCommand = None,
    scratch: Annotated[
        str | None,
        option(
            "--scratch", metavar="DIR", about="Where to restore it for the check. Default: as for mktemp."
        ),
    ] = None,
) -> None:
    """Prove that a backup can be restored.

    It is restored into a scratch folder; the files are read whole, their jobs counted and compared with what
    the backup says, and an engine is started on them. Exit status: 1 when something is wrong.
    """
    from bunqueue.backup.verify import verify as check

    with explained(), advancing("packs", None) as advance:
        repository = repository_at(target, key_file, key_command)
        found = [*check(repository, chosen(repository, backup), Path(scratch) if scratch else None, advance)]
    rows = [
        {"status": "problem" if each.problem else "ok", "check": each.check, "problem": each.problem}
        for each in found
    ]
    out.rows(rows, FINDINGS, none="")
    if any(each.problem for each in found):
        raise typer.Exit(exits.FAILED)


@offline_verb(app, "bunqueue backup prune s3://bucket/jobs --daily 7 --weekly 4 --monthly 12")
def prune(
    out: Output,
    target: Place,
    last: Annotated[
        int, option("--last", metavar="N", about="Keep so many of the newest; at least 1.", parser=whole)
    ] = 1,
    daily: Annotated[
        int, option("--daily", metavar="N", about="Keep the last backup of so many days.", parser=whole)
    ] = 7,
    weekly: Annotated[
        int, option("--weekly", metavar="N", about="Keep the last backup of so many weeks.", parser=whole)
    ] = 4,
    monthly: Annotated[
        int, option("--monthly", metavar="N", about="Keep the last backup of so many months.", parser=whole)
    ] = 12,
    dry_run: Annotated[bool, option("--dry-run", about="Show what would go, and change nothing.")] = False,
    key_file: KeyFile = None,
    key_command: KeyCommand = None,
) -> None:
    """Remove old backups, and what no other backup needs.

    Days, weeks and months are those of UTC that have a backup. The newest backup always stays.
    """
    from bunqueue.backup.prune import Keep
    from bunqueue.backup.prune import prune as remove

    for name, value in {"last": last, "daily": daily, "weekly": weekly, "monthly": monthly}.items():
        if value < (name == "last"):
            raise SettingsError(f"--{name}: {value} is not allowed; give at least {int(name == 'last')}")
    with explained(), advancing("objects", None) as advance:
        keep = Keep(last, daily, weekly, monthly)
        done = remove(repository_at(target, key_file, key_command), keep, dry_run=dry_run, report=advance)
    verb = "would be removed" if dry_run else "removed"
    text = f"{plural(len(done.removed), 'backup')} {verb}, {len(done.kept)} kept; {size_of(done.bytes)} freed"
    out.done(text, done._asdict(), "removed")

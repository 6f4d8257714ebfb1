"""``bunqueue store snapshot``, ``verify``, ``adopt`` and ``leave``: a store and a data folder.

All but the first run as processes of the server's packages, which get the settings through a pipe.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NoReturn

from bunqueue.server.host.replacing import become, settings_pipe
from bunqueue.server.settings import SettingsError
from bunqueue.server.settings.settings import Settings

from ...framework.offline import offline_verb
from ...framework.values import Yes, option
from ...output.output import Column, Kind, Output
from ...output.progress import confirm, waiting
from ..server import check_packages
from .options import Config, DataDir, Snapshots, StoreFailed, Url, app, explained, with_folder

SNAPSHOTS = (
    Column("shard", Kind.NUMBER),
    Column("position", Kind.NUMBER),
    Column("bytes", Kind.SIZE),
    Column("made", Kind.FLAG),
    Column("place", Kind.TEXT),
)
OneShard = Annotated[int | None, option("--shard", metavar="SHARD", about="Only this one, from 0.")]
WithoutStore = Annotated[
    bool,
    option(
        "--without-store",
        about="The store is lost for good: keep what the folder's files hold, and ask nobody.",
    ),
]


@offline_verb(app, "bunqueue store snapshot --data-dir ./data")
def snapshot(
    out: Output,
    store: Url = None,
    data_dir: DataDir = None,
    store_snapshots: Snapshots = None,
    config: Config = None,
    shard: OneShard = None,
) -> None:
    """Make a snapshot of each shard now, and drop the part of the log that nobody needs any more.

    Servers do this automatically. A server may be running on the data folder.
    """
    settings = with_folder(store=store, data_dir=data_dir, store_snapshots=store_snapshots, config=config)
    from bunqueue.store.partitions import maintain

    with explained():
        rows = [_made(settings, number) for number in _shards_of(settings, shard)]
        maintain(settings.store)
    out.rows(rows, SNAPSHOTS, none="the folder has no shards")


def _shards_of(settings: Settings, shard: int | None) -> list[int]:
    """The requested shards of the folder. Raises StoreFailed unless the folder belongs to the store."""
    from bunqueue.server.folder.data_folder import read_manifest
    from bunqueue.store.database import connected, read

    folder = Path(settings.data_dir)
    manifest = read_manifest(folder)
    with connected(settings.store) as connection:
        store = read(connection)
    if manifest.store != store.id:
        raise StoreFailed(f"the data folder {folder} does not belong to the store {store.id}; give another")
    if shard is not None and not 0 <= shard < manifest.shards:
        raise StoreFailed(
            f"the store has {store.shards} shards, from 0 to {store.shards - 1}; there is no {shard}"
        )
    return [*range(manifest.shards)] if shard is None else [shard]


def _made(settings: Settings, shard: int) -> dict[str, object]:
    from bunqueue.server.folder.data_folder import shard_file
    from bunqueue.server.folder.unreadable import NoRoom, UnreadableShard
    from bunqueue.store.snapshots import listed, make

    file = shard_file(Path(settings.data_dir), shard)
    try:
        with waiting(f"shard {shard}"):
            if file.exists():
                made = make(settings.store, shard, file, settings.store_snapshots)
            else:
                made = None  # the snapshot of another host
            found = made or listed(settings.store, shard)
    except (NoRoom, UnreadableShard, OSError) as error:
        raise StoreFailed(f"shard {shard}: {error}") from error
    row: dict[str, object] = {
        "shard": shard,
        "position": 0,
        "bytes": None,
        "made": made is not None,
        "place": None,
    }
    if found is not None:
        row |= {"position": found.seq, "bytes": found.bytes, "place": found.place}
    return row


@offline_verb(app, "bunqueue store verify --data-dir ./data", "bunqueue store verify --shard 3 --json")
def verify(
    out: Output,
    store: Url = None,
    data_dir: DataDir = None,
    config: Config = None,
    shard: OneShard = None,
) -> None:
    """Build each shard from its snapshot and its log, and compare every table with the folder's file.

    A server may be running. It needs as much free space as the largest shard takes, twice. Without a data
    folder of this store it reads all of the log, and compares nothing.

    Exit status: 1 when something is wrong.
    """
    settings = with_folder(store=store, data_dir=data_dir, config=config)
    _become(out, "verify", settings, *([] if shard is None else ["--shard", str(shard)]))


@offline_verb(app, "bunqueue store adopt --data-dir ./data --store postgresql://queue@db1,db2/queue")
def adopt(
    out: Output,
    store: Url = None,
    data_dir: DataDir = None,
    store_snapshots: Snapshots = None,
    config: Config = None,
) -> None:
    """Move the jobs of a data folder into a new store. No job is lost, and workers keep theirs.

    Stop the server first, and make the store with bunqueue store init and as many shards as the folder has.
    If it is interrupted, run it again; until it has ended, a server can still use the folder as before,
    unless it refuses to start. It needs as much free space as the largest shard takes.
    """
    settings = with_folder(store=store, data_dir=data_dir, store_snapshots=store_snapshots, config=config)
    _become(out, "adopt", settings)


@offline_verb(
    app,
    "bunqueue store leave --data-dir ./data",
    "bunqueue store leave --data-dir ./data --without-store",
)
def leave(
    out: Output,
    store: Url = None,
    data_dir: DataDir = None,
    config: Config = None,
    without_store: WithoutStore = False,
    yes: Yes = False,
) -> None:
    """Move the jobs of a store into a data folder, to be served without the store.

    Stop all servers of the store first. The folder is that of one of them, or a new one. If it is
    interrupted, run it again. No server can work on the store afterwards.
    """
    if without_store:
        settings = _folder_alone(data_dir, config)
        confirm(
            f"Keep what the files of {settings.data_dir} hold? What else was acknowledged is lost, and the "
            "store must never be used again.",
            yes,
        )
        _become(out, "leave", settings, "--without-store")
    _become(out, "leave", with_folder(store=store, data_dir=data_dir, config=config))


def _folder_alone(data_dir: str | None, config: str | None) -> Settings:
    import os

    from bunqueue.server.settings.option_kinds import MEMORY
    from bunqueue.server.settings.settings import resolve_settings

    settings = resolve_settings({"data_dir": data_dir, "config": config}, os.environ).settings
    if settings.data_dir == MEMORY:
        raise SettingsError(f"data_dir is {MEMORY}, which keeps nothing; give the folder with --data-dir")
    return settings


def _become(out: Output, verb: str, settings: Settings, *more: str) -> NoReturn:
    """Continue as a process of the server's packages: only they open the files."""
    check_packages()
    try:
        reader = settings_pipe(settings)
        become(
            "shardproc.store_commands",
            verb,
            "--settings-fd",
            str(reader),
            *["--json"] * out.as_json,
            *more,
        )
    except OSError as error:
        raise SettingsError(f"bunqueue store {verb} cannot be started: {error}") from error

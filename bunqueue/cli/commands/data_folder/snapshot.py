"""``bunqueue snapshot``: copies a data folder, even while its server runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from bunqueue.server.settings import SettingsError
from bunqueue.server.settings.option_kinds import MEMORY
from bunqueue.server.settings.settings import resolve_settings

from ...framework.reading import PlainCommand

app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command(cls=PlainCommand)
def snapshot(
    out: Annotated[str, typer.Option(metavar="DIR", help="The folder for the copy, a new or an empty one.")],
    data_dir: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="The data folder. Default: as for start.", show_default=False),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="The server's config file, which names the data folder.", show_default=False
        ),
    ] = None,
) -> None:
    """Copy a data folder, as a backup or for inspection. A server may be running on it.

    The copy is itself a data folder, with each shard as it was at one moment. It does not block the server.
    It needs as much free space as the shards take. If it fails, nothing is left of it.

    Example: bunqueue snapshot --data-dir ./data --out ./backup
    """
    settings = resolve_settings({"data_dir": data_dir, "config": config}, os.environ).settings
    if settings.data_dir == MEMORY:
        raise SettingsError(f"data_dir is {MEMORY}, which keeps nothing; give the folder with --data-dir")
    from bunqueue.server.folder.data_folder import DataFolderError
    from bunqueue.server.folder.snapshots import take
    from bunqueue.server.folder.unreadable import NotReadable

    try:
        copied = take(Path(settings.data_dir), Path(out))
    except (NotReadable, DataFolderError) as error:
        text = str(error).replace(", or leave it out with the option unreadable=skip", "")  # Spark's option
        raise SettingsError(text) from error
    size = sum(file.stat().st_size for file in copied)
    print(f"{out} has {len(copied)} shards now, {size / 1e6:,.1f} MB")

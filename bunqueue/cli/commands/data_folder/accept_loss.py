"""``bunqueue accept-loss``: lets a shard whose file is lost start empty, on explicit request."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from bunqueue.server.settings import SettingsError
from bunqueue.server.settings.option_kinds import MEMORY
from bunqueue.server.settings.settings import resolve_settings

from ...framework.reading import PlainCommand
from ...framework.values import Yes, option, whole
from ...output.progress import confirm

app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command(cls=PlainCommand)
def accept_loss(
    shard: Annotated[
        int, option("--shard", metavar="SHARD", about="The number of the shard, from 0.", parser=whole)
    ],
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
    yes: Yes = False,
) -> None:
    """Give up the file of a shard that is missing, damaged or from another data folder.

    Stop the server first. The shard will start empty: all jobs in its file are lost. Look for a backup
    before you do this. An existing file is not deleted; it is moved to the folder `lost`.

    Example: bunqueue accept-loss --data-dir ./data --shard 1
    """
    settings = resolve_settings({"data_dir": data_dir, "config": config}, os.environ).settings
    if settings.data_dir == MEMORY:
        raise SettingsError(f"data_dir is {MEMORY}, which keeps nothing; give the folder with --data-dir")
    from bunqueue.server.folder.data_folder import DataFolderError, own_data_folder, read_identified
    from bunqueue.server.folder.losses import give_up, loss_of

    folder = Path(settings.data_dir)
    try:
        manifest = read_identified(folder)  # check before a folder could be created
        with own_data_folder(folder):
            what = loss_of(folder, manifest, shard)
            print(f"{what}.")
            confirm(f"Let shard {shard} begin empty?", yes)
            moved = give_up(folder, manifest, shard, what)
    except (DataFolderError, OSError) as error:
        raise SettingsError(str(error)) from error
    where = f"; the file is now {moved}" if moved else ""
    print(f"shard {shard} begins empty at the next start{where}")

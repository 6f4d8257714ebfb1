"""``bunqueue adopt``: turns the file of embedded queues into a server's data folder."""

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
def adopt(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The data_path of embedded queues.")],
    data_dir: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="A new data folder. Default: as for start.", show_default=False),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="The server's config file, which names the data folder.", show_default=False
        ),
    ] = None,
) -> None:
    """Move the file of embedded queues into a new data folder, as its only shard.

    Stop the process that uses it first. All jobs stay as they are. For more shards, run bunqueue reshard.

    Example: bunqueue adopt jobs.db --data-dir ./data
    """
    settings = resolve_settings({"data_dir": data_dir, "config": config}, os.environ).settings
    if settings.data_dir == MEMORY:
        raise SettingsError(f"data_dir is {MEMORY}, which keeps nothing; give the folder with --data-dir")
    from bunqueue.embedded.adopting import adopt as move
    from bunqueue.errors import BunqueueError
    from bunqueue.server.folder.data_folder import DataFolderError

    try:
        move(Path(file), Path(settings.data_dir))
    except (BunqueueError, DataFolderError) as error:
        raise SettingsError(str(error)) from error
    folder = settings.data_dir
    command = f"bunqueue start --data-dir {folder} --shards 1"
    print(f"{file} is the only shard of {folder} now; start the server: {command}")

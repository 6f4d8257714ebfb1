"""``bunqueue reshard``: changes the number of shards of a data folder that no server uses.

Imports nothing from the server. Like ``start``, this process replaces itself with one of the server's
package.
"""

from __future__ import annotations

import os
from typing import Annotated

import typer

from bunqueue.server.host.replacing import become
from bunqueue.server.settings import SettingsError
from bunqueue.server.settings.option_kinds import MEMORY
from bunqueue.server.settings.settings import resolve_settings

from ...framework.reading import PlainCommand
from ..server import check_packages

app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command(cls=PlainCommand)
def reshard(
    shards: Annotated[
        str, typer.Option(metavar="SHARDS", help="The new number of shards: a power of two from 1 to 64.")
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
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would go where, and change nothing.")
    ] = False,
) -> None:
    """Change the number of shards of a data folder.

    Stop the server first, and start it with the new number afterwards. The old files stay until the new
    ones are complete, so it needs about as much free space as the folder takes. If it is interrupted, run it
    again.

    Example: bunqueue reshard --data-dir ./data --shards 8 --dry-run
    """
    flags = {"shards": shards, "data_dir": data_dir, "config": config}
    settings = resolve_settings(flags, os.environ).settings
    if settings.data_dir == MEMORY:
        raise SettingsError(f"data_dir is {MEMORY}, which keeps nothing; give the folder with --data-dir")
    check_packages()
    arguments = [settings.data_dir, str(settings.shards), *["--dry-run"] * dry_run]
    try:
        become("shardproc.resharding", *arguments)
    except OSError as error:
        raise SettingsError(f"resharding cannot be started: {error}") from error

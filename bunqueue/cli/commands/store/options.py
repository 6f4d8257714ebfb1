"""The group of verbs, the options that they share, and how errors of a store end a verb."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from bunqueue.errors import BunqueueError, ConnectTimeout
from bunqueue.server.folder.data_folder import DataFolderError
from bunqueue.server.settings import SettingsError
from bunqueue.server.settings.settings import Resolved, Settings, resolve_settings
from bunqueue.store.database import StoreError, StoreUnavailable

from ...framework.reading import PlainGroup
from ...framework.values import option

app = typer.Typer(
    cls=PlainGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="A store in PostgreSQL: make, check and verify it; move jobs in and out.",
)


@app.callback()
def _store() -> None:
    pass


Url = Annotated[
    str | None,
    option(
        "--store",
        metavar="URL",
        about="The store: postgresql://USER@HOST/DATABASE. Other users can see a flag in the list of "
        "processes: give a password by BUNQUEUE_STORE, a config file, or libpq's ~/.pgpass.",
    ),
]
Config = Annotated[
    str | None, option("--config", metavar="FILE", about="The server's config file, which names the store.")
]
DataDir = Annotated[
    str | None, option("--data-dir", metavar="DIR", about="The data folder. Default: as for start.")
]
Snapshots = Annotated[
    str | None,
    option(
        "--store-snapshots",
        metavar="PLACE",
        about="Where snapshots are kept: an absolute path, or s3://bucket/prefix. Default: the store.",
    ),
]


class StoreFailed(BunqueueError):
    """The store, or the data folder, cannot be used for this."""

    code = "store"


class StoreConnectTimeout(ConnectTimeout):
    """The store does not answer."""

    code = "store_unavailable"


@contextmanager
def explained() -> Iterator[None]:
    """Turn the errors of a store and of a data folder into those of a verb."""
    try:
        yield
    except StoreUnavailable as error:
        raise StoreConnectTimeout(f"{error}; bunqueue store check says more once it answers") from error
    except (StoreError, DataFolderError) as error:
        raise StoreFailed(str(error)) from error


def resolved(**flags: object) -> Resolved:
    """The server's settings, with a store.  Raises SettingsError without one."""
    found = resolve_settings(flags, os.environ)
    if not found.settings.store:
        raise SettingsError(
            "store: give --store, the variable BUNQUEUE_STORE, or a config file that names it"
        )
    return found


def with_folder(**flags: object) -> Settings:
    """The settings, with a store.  With a store the data folder is on disk."""
    return resolved(**flags).settings

"""Errors that keep a data folder from being resharded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import DecodeError

from shardproc.storage.database import DatabaseBusy, disk_problem
from shardproc.storage.schema import WrongSchema
from shardproc.storage.transfer import TransferError, is_damage

UNCHANGED = "nothing was changed"


class ReshardError(Exception):
    """The old files stay unchanged; the text is one line that says what to do."""


@contextmanager
def explained(file: Path) -> Iterator[None]:
    """Raise ReshardError for any error in the file of a shard, or of the disk while it is read."""
    try:
        yield
    except DatabaseBusy as error:
        raise ReshardError(f"{error}; {UNCHANGED}") from error
    except WrongSchema as error:
        raise ReshardError(f"{file}: {error}; {UNCHANGED}") from error
    except DecodeError as error:
        raise damaged(file, str(error)) from error
    except TransferError as error:
        if is_damage(error):
            raise damaged(file, str(error)) from error
        fix = "free space on" if disk_problem(error) == "full" else "see to"
        raise ReshardError(f"{error}: {fix} the disk of {file.parent}, try again; {UNCHANGED}") from error


def damaged(file: Path, how: str) -> ReshardError:
    return ReshardError(f"{file} is damaged ({how}): restore it from a backup of the folder; {UNCHANGED}")

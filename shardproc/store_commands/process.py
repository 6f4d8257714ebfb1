"""The process that works for `bunqueue store`.

``python -m shardproc.store_commands VERB --settings-fd N [--json] [--without-store] [--shard N]``: the
command line has checked the arguments, and passes the settings through a pipe, as they contain a password.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from bunqueue.cli.framework import exits
from bunqueue.cli.output.output import Output, encoded
from bunqueue.cli.output.terminal import plain_streams
from bunqueue.server.folder.data_folder import DataFolderError, FilesMismatch
from bunqueue.server.folder.unreadable import NoRoom, UnreadableShard
from bunqueue.server.settings.settings import Settings
from bunqueue.store.database import StoreError, StoreUnavailable
from bunqueue.text import plural
from shardproc.replication.errors import LogDamaged
from shardproc.replication.record import RecordDamaged, RecordTooNew
from shardproc.storage.database import DatabaseBusy
from shardproc.storage.schema import WrongSchema

from .adopt import adopt
from .leave import leave, leave_without
from .progress import Progress
from .verify import COLUMNS, verify

# The texts of REFUSED say what to do; in _STATUSES the first match gives status and code.
REFUSED = (StoreError, DataFolderError, LogDamaged, RecordDamaged, RecordTooNew, DatabaseBusy, WrongSchema)
BROKEN = (OSError, sqlite3.Error, UnreadableShard, NoRoom)
_STATUSES: tuple[tuple[type[Exception], int, str], ...] = (
    (StoreUnavailable, exits.NO_CONNECTION, "store_unavailable"),
    (FilesMismatch, exits.WRONG_FILES, "data_mismatch"),
    (StoreError, exits.FAILED, "store"),
    (Exception, exits.FAILED, "data_folder"),
)


def main(arguments: Sequence[str]) -> int:
    """Run it; returns the exit status."""
    with plain_streams():
        return _main(arguments)


def _main(arguments: Sequence[str]) -> int:
    asked = _parsed(arguments)
    os.umask(0o077)
    with open(asked.settings_fd, "rb") as pipe:
        settings = Settings.from_json(pipe.read())
    out = Output(as_json=asked.json)
    try:
        return _VERBS[asked.verb](settings, asked, out, Progress())
    except (*REFUSED, *BROKEN) as error:
        status, code = next((status, code) for kind, status, code in _STATUSES if isinstance(error, kind))
        return _refuse(str(error), code, status, as_json=asked.json)
    except KeyboardInterrupt:
        text = f"interrupted; run bunqueue store {asked.verb} again to finish it"
        return _refuse(text, "interrupted", exits.INTERRUPTED, as_json=asked.json)


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=list(_VERBS))
    parser.add_argument("--settings-fd", type=int, required=True)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--without-store", action="store_true")
    parser.add_argument("--shard", type=int)
    return parser.parse_args(arguments)


def _adopt(settings: Settings, asked: argparse.Namespace, out: Output, progress: Progress) -> int:
    folder = Path(settings.data_dir)
    done = adopt(settings.store, folder, settings.store_snapshots, progress)
    text = (
        f"the jobs of {folder} are in the store, {plural(done.jobs)} in {plural(done.shards, 'shard')}; "
        f"start the server with --store and --shards {done.shards}"
    )
    out.done(text, msgspec.to_builtins(done), "jobs")
    return exits.DONE


def _leave(settings: Settings, asked: argparse.Namespace, out: Output, progress: Progress) -> int:
    folder = Path(settings.data_dir)
    if asked.without_store:
        done = leave_without(folder)
    else:
        done = leave(settings.store, folder, progress)
    text = (
        f"the jobs are in {folder} alone, {plural(done.jobs)} in {plural(done.shards, 'shard')}; start the "
        f"server without --store, and with --shards {done.shards}"
    )
    out.done(text, msgspec.to_builtins(done), "jobs")
    return exits.DONE


def _verify(settings: Settings, asked: argparse.Namespace, out: Output, progress: Progress) -> int:
    found = list(verify(settings.store, Path(settings.data_dir), asked.shard, progress))
    out.rows(found, COLUMNS, none="")
    return exits.FAILED if any(each.problems for each in found) else exits.DONE


_VERBS: dict[str, Callable[[Settings, argparse.Namespace, Output, Progress], int]] = {
    "adopt": _adopt,
    "leave": _leave,
    "verify": _verify,
}


def _refuse(text: str, code: str, status: int, *, as_json: bool) -> int:
    sys.stdout.flush()
    line = " ".join(text.split())
    report = {"ok": False, "error": line, "code": code}
    print(encoded(report) if as_json else f"bunqueue: {line}", file=sys.stderr)
    return status

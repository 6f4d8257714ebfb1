"""Messages about a disk that fills, and about a write-ahead log (WAL) that a reader keeps long."""

from __future__ import annotations

import os
import time
from typing import NamedTuple

from msgspec import Raw

from bunqueue.logs import get_logger
from bunqueue.protocol.codec import request_id
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import ErrorReply, Reply
from bunqueue.protocol.commands.base import RequestId

from .engine.memory.vitals import MB, Disk, StorageFault
from .engine.state import Maintenance
from .storage.lock_holder import holder
from .storage.store import Store

WARN_EVERY_S = 600.0  # interval of repeated log lines, while it lasts
WAL_PART = 4  # warn at this fraction of the limit

_CODES = {
    "full": Code.STORAGE_FULL,
    "broken": Code.STORAGE_FAILED,
    "locked": Code.STORAGE_LOCKED,
    "damaged": Code.STORAGE_DAMAGED,
}
_log = get_logger("shard")


def error_of(fault: StorageFault, req_id: RequestId) -> ErrorReply:
    return ErrorReply(error=fault.error, req_id=req_id, code=fault.code)


def request_of(reply: Reply | Raw) -> RequestId:
    return request_id(reply) if isinstance(reply, Raw) else reply.req_id


class Found(NamedTuple):
    """What is wrong: ``problem`` as from `disk_problem`, even before anything has failed; ``fix`` is that of
    damage."""

    problem: str
    error: str  # of SQLite; "" before a failure
    disk: Disk
    folder: str
    path: str
    fix: str


def fault_of(found: Found, since: int) -> StorageFault:
    """The same as text, with its code."""
    code, disk = _CODES[found.problem], found.disk
    error = found.error or f"{_mb(disk.free)} left, and {_mb(disk.refused_below)} are kept for work in hand"
    if found.problem == "damaged":
        text = f"Storage is damaged ({error}): {found.fix}"
    elif found.problem == "locked":
        text = locked(found.path)
    elif found.problem != "full":
        text = f"Storage fails ({error}): see to the disk of {found.folder}, then this is accepted again"
    elif not found.error and disk.enough:
        text, code = _too_long(disk, found.path), Code.WAL_LIMIT
    else:
        text = f"Storage is full ({error}): free space on {found.folder}, then this is accepted again"
    return StorageFault(text, since, code is Code.STORAGE_FULL, code)


def unreadable(error: str, path: str) -> str:
    """The text for data that could not be read, with no sign of damage."""
    folder = os.path.dirname(path) or "."
    return f"Storage fails ({error}): ask again; if that lasts, see to the disk of {folder}"


def locked(path: str) -> str:
    """The text when another program holds the write lock of a shard's file: names the program, and says what
    to do."""
    return (
        f"Storage is locked: {path} is locked for writing by {holder(path)}: end its transaction, then this "
        "is accepted again; to read the jobs elsewhere, use a bunqueue snapshot"
    )


def _too_long(disk: Disk, path: str) -> str:
    why = f"it cannot be copied into the database ({disk.checkpoint_error}), see to the disk"
    fix = why if disk.checkpoint_error else _readers(path)
    return (
        f"The write-ahead log of {os.path.basename(path)} is too long ({_mb(disk.wal)}, wal_limit "
        f"{_mb(disk.wal_limit)}): {fix}; then this is accepted again"
    )


def press(maintenance: Maintenance, store: Store, folder: str, pressed: bool) -> None:
    """Start or stop removing finished jobs and old events to make room."""
    if pressed and not maintenance.pressed:
        maintenance.next_at, maintenance.dlq_at = 0, 0
        what = "finished jobs and old events are removed before their time: the disk is full"
        _log.warning(what, folder=folder)
    maintenance.pressed = store.pressed = pressed


def _readers(path: str) -> str:
    return f"end what keeps {path} open for reading (fuser {path}), and read a bunqueue snapshot instead"


def _mb(size: int) -> str:
    return f"{size / MB:,.1f} MB"


class Warnings:
    """Logs problems that lie ahead, now and then."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._logged: dict[str, float] = {}  # kind -> when, monotonic
        self.texts: tuple[str, ...] = ()

    def update(self, disk: Disk) -> None:
        """Warn according to the state of the disk."""
        found = {}
        if disk.free < disk.warned_below:
            found["the disk is getting full"] = self._low(disk)
        if disk.checkpoint_error:
            found["the WAL cannot be copied into the database"] = self._uncopied(disk)
        elif disk.wal > disk.wal_limit // WAL_PART:
            found["a reader keeps the WAL from being reset"] = self._long(disk)
        for what, text in found.items():
            self._log(what, text)
        self.texts = tuple(found.values())

    def _low(self, disk: Disk) -> str:
        return (
            f"{_mb(disk.free)} left on {os.path.dirname(self._path)}, and pushes are refused below "
            f"{_mb(disk.refused_below)}: free space there, or have jobs worked off"
        )

    def _uncopied(self, disk: Disk) -> str:
        return (
            f"the write-ahead log cannot be copied into {self._path} ({disk.checkpoint_error}): see to the "
            f"disk; nothing is lost, but the log has {_mb(disk.wal)} and grows, and pushes are refused "
            f"beyond {_mb(disk.wal_limit)}"
        )

    def _long(self, disk: Disk) -> str:
        return (
            f"the write-ahead log has {_mb(disk.wal)}, and pushes are refused beyond {_mb(disk.wal_limit)}: "
            f"{_readers(self._path)}"
        )

    def _log(self, what: str, text: str) -> None:
        now = time.monotonic()
        if now - self._logged.get(what, -WARN_EVERY_S) >= WARN_EVERY_S:
            self._logged[what] = now
            _log.warning(what, warning=text)

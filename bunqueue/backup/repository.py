"""The backups of one server at a target.

    repository     which server it is for, and the fingerprint of its key
    primary        which copy of its data folder is the primary: see `primary`
    lock           who is changing it
    packs/ID       pages, SIZE at most
    pages/ID       where the pages of a backup are; those of an interrupted one are in pages/unfinished
    backups/ID     what a backup is; written last, so whatever has one is whole
    trail/CONTENT  files of the trail of who changed what
    shipped/ID/    what has changed since that backup: see `shipped`

Packs are never changed. What nothing refers to is removed by the next `prune`.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import msgspec

from .pages import BackupPages
from .sealing import Damaged, KeyRefused, Sealer, fingerprint
from .targets import Missing, Target, TargetError, read_whole

FORMAT = 1
PACK_PAGES = 512  # 4 MiB of pages: few requests, and little in memory
REPOSITORY, LOCK = "repository", "lock"
BACKUPS, PAGES, PACKS, SHIPPED, TRAIL = "backups/", "pages/", "packs/", "shipped/", "trail/"
UNFINISHED = "unfinished"
BEAT_S = 10.0  # between two signs of life of the process that holds the lock
STALE_S = 60.0  # without a sign of life: its process, or its machine, is gone


class Kept(msgspec.Struct):
    """The content of ``repository``: for which server the backups are, and with which key."""

    format: int
    server: str
    key: str


class Counts(msgspec.Struct, rename="camel"):
    """What a shard's file held."""

    shard: int
    jobs: int
    completed: int
    dead: int
    active: int
    queues: int


class Backup(msgspec.Struct, rename="camel", kw_only=True):
    """What a backup is."""

    format: int = FORMAT
    id: str
    server: str  # the id of its data folder
    generation: int  # of the data folder: increased by each reshard
    shards: int
    schema: int
    version: str  # of bunqueue
    moment: int  # epoch ms
    took_ms: int
    term: int = 0  # of the primary that has made it; see `primary`
    counts: list[Counts]
    bytes: int  # of all files
    new_bytes: int  # that this backup has stored
    packs: int
    checksum: str  # of the stored pages/ID
    trail: dict[str, str] = {}  # where each file of it is
    goes_on: bool = False  # what changed afterwards is shipped as well: see `shipped`


class Found(NamedTuple):
    """A backup, or why it cannot be read."""

    id: str
    backup: Backup | None
    problem: str = ""


def id_of(moment_ms: int) -> str:
    """The id of a backup of that moment. Ids sort by time."""
    return datetime.fromtimestamp(moment_ms / 1000, UTC).strftime("%Y%m%dT%H%M%S.%f")[:-3] + "Z"


def checksum_of(sealed: bytes) -> str:
    return blake2b(sealed, digest_size=16).hexdigest()


def moment_of(number: str) -> datetime:
    """The moment of the backup of that id."""
    return datetime.strptime(number, "%Y%m%dT%H%M%S.%fZ").replace(tzinfo=UTC)


def ms_of(number: str) -> int:
    """The same in epoch ms."""
    return round(moment_of(number).timestamp() * 1000)


class Repository:
    """The backups at a target. Reads need no lock."""

    def __init__(self, target: Target, key: bytes | None = None) -> None:
        self.target = target
        self.sealer = Sealer(key)
        self._fingerprint = fingerprint(key)
        self._server = ""  # whose backups they are, once that is known

    def open(self) -> Kept:
        """Check that the key fits. Missing if there are no backups; KeyRefused."""
        try:
            kept = msgspec.json.decode(read_whole(self.target, REPOSITORY), type=Kept)
        except Missing as error:
            raise Missing(f"{self.target.where} has no backups: check the place") from error
        except msgspec.DecodeError as error:
            raise Damaged(f"{self.target.where}: {REPOSITORY} is damaged: {error}") from error
        if kept.format > FORMAT:
            raise TargetError(f"{self.target.where} was written by a newer version of bunqueue: upgrade it")
        if kept.key != self._fingerprint:
            how = "not encrypted: leave out the key"
            if kept.key:
                how = "encrypted with another key" if self._fingerprint else "encrypted"
                how += ": give the file of their key with --key-file, or to a server with --backup-key"
            raise KeyRefused(f"the backups in {self.target.where} are {how}")
        self._server = kept.server
        return kept

    def open_for(self, server: str) -> None:
        """Prepare it for backups of that server. TargetError if it has those of another one."""
        kept = Kept(FORMAT, server, self._fingerprint)
        if self.target.create(REPOSITORY, msgspec.json.encode(kept)):
            self._server = server
        elif (found := self.open()).server != server:
            where = self.target.where
            raise TargetError(
                f"{where} has the backups of another server ({found.server}, and this one is {server}): give "
                f"each server a place of its own, or make a folder of what is there: bunqueue restore {where}"
            )

    # -- backups ----------------------------------------------------------------------------------

    def ids(self) -> list[str]:
        """The ids of all backups, oldest first."""
        return sorted(name.removeprefix(BACKUPS) for name, _ in self.target.names(BACKUPS))

    def backups(self) -> Iterator[Found]:
        """All backups, oldest first."""
        for each in self.ids():
            try:
                yield Found(each, self.backup(each))
            except Damaged as error:
                yield Found(each, None, str(error))

    def backup(self, number: str) -> Backup:
        """The backup of that id. Damaged."""
        name = f"{BACKUPS}{number}"
        try:
            found = msgspec.json.decode(self.read(name), type=Backup)
        except msgspec.DecodeError as error:
            raise Damaged(f"{name} is damaged: {error}") from error
        if self._server not in ("", found.server):
            raise Damaged(f"{name} is a backup of another server ({found.server}, not {self._server})")
        return found

    def read(self, name: str) -> bytes:
        """What an object holds that should be there. Damaged."""
        try:
            return self.sealer.open(name, read_whole(self.target, name))
        except Missing as error:
            raise Damaged(str(error)) from error

    def pages(self, number: str, checksum: str = "") -> BackupPages:
        """Where the pages of a backup are. Damaged; or Missing, if it is not known to have a checksum."""
        name = f"{PAGES}{number}"
        try:
            sealed = read_whole(self.target, name)
        except Missing as error:
            if checksum:
                raise Damaged(str(error)) from error
            raise
        if checksum and checksum_of(sealed) != checksum:
            raise Damaged(f"{self.target.where}: {name} is not what the backup has stored")
        try:
            return BackupPages.decoded(self.sealer.open(name, sealed))
        except (msgspec.DecodeError, ValueError) as error:
            raise Damaged(f"{name} is damaged: {error}") from error

    def put_pages(self, number: str, pages: BackupPages) -> tuple[str, int]:
        """Store where pages are; returns the checksum and the size of the object."""
        name = f"{PAGES}{number}"
        sealed = self.sealer.seal(name, pages.encoded())
        return checksum_of(sealed), self.target.write(name, sealed)

    def put_backup(self, backup: Backup) -> None:
        """Make a backup exist, when all that it refers to is stored."""
        name = f"{BACKUPS}{backup.id}"
        self.target.write(name, self.sealer.seal(name, msgspec.json.encode(backup)))

    # -- the lock ---------------------------------------------------------------------------------

    @contextmanager
    def locked(self) -> Iterator[Lock]:
        """Keep others from changing it. TargetError if somebody does."""
        lock = Lock(self.target)
        lock.take()
        try:
            yield lock
        finally:
            lock.release()


class Holder(msgspec.Struct):
    """The process that holds the lock."""

    host: str
    pid: int
    started: str  # tells the process from a later one with its number
    secret: str
    beat: int = 0

    @property
    def is_dead(self) -> bool:
        """Whether its process is known to have ended: only on its own host."""
        return self.host == _host() and _started(self.pid) != self.started


def _host() -> str:
    boot = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
    return f"{socket.gethostname()} {boot}".strip()


def _started(pid: int) -> str:
    """When a process has started, in the kernel's words; "" without such a process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


class Lock:
    """Held by one process at a time. It gives signs of life, so that the lock of one that was killed can be
    taken over: clocks of different machines are not compared."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._mine = Holder(_host(), os.getpid(), _started(os.getpid()), secrets.token_hex(8))
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="bunqueue-backup-lock", daemon=True)

    def take(self) -> None:
        if not self._target.create(LOCK, msgspec.json.encode(self._mine)):
            self._wait_for_end()
            self._target.write(LOCK, msgspec.json.encode(self._mine))
        self._thread.start()

    def _wait_for_end(self) -> None:
        """Return once whoever has the lock is known to be gone. TargetError if it lives."""
        began, first = time.monotonic(), None
        while True:
            try:
                body = read_whole(self._target, LOCK)
                holder = msgspec.json.decode(body, type=Holder)
            except Missing:
                return
            except msgspec.DecodeError as error:
                raise TargetError(f"{self._target.where}: {LOCK} is damaged: remove it") from error
            first = first or body
            if holder.is_dead or (body == first and time.monotonic() - began > STALE_S):
                return
            if body != first or holder.host == self._mine.host:
                raise TargetError(
                    f"{self._target.where} is being changed by process {holder.pid} on {holder.host}: wait "
                    "until that has ended"
                )
            time.sleep(1.0)

    def check(self) -> None:
        """Raise TargetError if another process has taken over, as this one seemed to be dead."""
        found = msgspec.json.decode(read_whole(self._target, LOCK), type=Holder)
        if found.secret != self._mine.secret:
            raise TargetError(f"{self._target.where}: process {found.pid} on {found.host} has taken over")

    def _beat(self) -> None:
        while not self._stopped.wait(BEAT_S):
            with suppress(TargetError, msgspec.DecodeError):
                self.check()
                self._mine.beat += 1
                self._target.write(LOCK, msgspec.json.encode(self._mine))

    def release(self) -> None:
        self._stopped.set()
        self._thread.join()
        with suppress(TargetError, msgspec.DecodeError):
            self.check()
            self._target.remove(LOCK)

"""Keeps a folder up to date with what a primary ships: the folder of a standby.

What is new is fetched into the folder `INCOMING`, and counts once `standby.json` says so. It is written into
the files only by `apply`, when nobody reads them; doing that twice does no harm. When the primary begins
another backup, the pages in which the files differ from it are fetched in the same way. So a standby that
is killed at any moment continues where it was.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path

import msgspec

from bunqueue.server.folder.data_folder import (
    FORMAT,
    NAME,
    STANDBY,
    Manifest,
    private,
    read_whole,
    refuse,
    save_manifest,
    shard_file,
    sync,
    write_whole,
)

from .create import BackupError
from .fetch import check_room, fetch_files
from .primary import NOBODY, Claim, Primary, read_primary
from .repository import PACKS, Backup, Repository, id_of, ms_of
from .sealing import Damaged
from .shipped import ChangedFile, Changes, changed_file, decoded, opened, read, segments_of, write
from .targets import TargetError

INCOMING = "incoming"
PIECE = 64 << 20  # bytes of pages in one incoming file


class Followed(msgspec.Struct):
    """The content of ``standby.json``."""

    format: int
    source: str
    server: str
    generation: int
    shards: int
    copy: str  # see `Manifest`
    base: str = ""  # the backup that the files continue; "": they are not whole
    term: int = 0  # of the primary that made it
    segment: str = ""  # the name of the last segment that is here
    moment: int = 0  # of what is here, epoch ms
    incoming: int = 0  # the number of the last incoming file


class Resharded(BackupError):
    """The primary has another number of shards now: begin anew."""


def followed(folder: Path) -> Followed | None:
    """What a standby has in its folder; None if there is nothing yet. DataFolderError."""
    try:
        return read_whole(folder / STANDBY, Followed)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, OSError) as error:
        refuse(folder, f"has a {STANDBY} that cannot be read ({error}): choose another --data-dir")


def check_folder(folder: Path, source: str) -> None:
    """DataFolderError unless a folder is new, empty, or follows this source."""
    found = followed(folder) if folder.is_dir() else None
    if found is not None:
        if found.source != source:
            refuse(folder, f"follows {found.source}, not {source}: choose another --data-dir")
        return
    if (folder / NAME).exists() or any(folder.glob("shard-*")):
        refuse(folder, "has jobs of its own: a standby needs a new folder; choose another --data-dir")


class Follower:
    """Follows one source. Nothing here may be called while somebody reads the files, but `step`."""

    def __init__(self, folder: Path, connect: Callable[[], Repository], source: str) -> None:
        """``connect`` is called when the source is needed, and again while that raises TargetError: the
        service that has its key may be away."""
        self._folder, self._connect, self._source = folder, connect, source
        self.state = followed(folder)
        self.primary = NOBODY
        self.until = 0  # all that the primary had committed before is here; epoch ms
        self.shown = 0  # the moment of the files, epoch ms
        self._claim: Claim | None = None
        self._advanced_at = self._beaten_at = time.monotonic()
        if self.state is not None:
            self.shown = self.until = self.state.moment
            for number, path in self._incoming():
                if number > self.state.incoming:  # it was not known to be whole
                    path.unlink()

    @cached_property
    def _repository(self) -> Repository:
        return self._connect()

    # -- what is known ----------------------------------------------------------------------------

    @property
    def has_new(self) -> bool:
        """Whether there is something to apply."""
        return any(True for _ in self._incoming())

    @property
    def is_whole(self) -> bool:
        return self.state is not None and bool(self.state.base)

    @property
    def is_claimed(self) -> bool:
        """Whether this standby has become the primary, and has only to finish it."""
        return self.state is not None and self.primary.copy == self.state.copy

    @property
    def behind_s(self) -> float:
        """For how long nothing new has come from the primary, although it may have something."""
        if self.primary.stopped and self.until >= self.primary.until:
            return 0.0
        return time.monotonic() - self._advanced_at

    @property
    def silent_s(self) -> float:
        """For how long the primary has given no sign of life."""
        return time.monotonic() - self._beaten_at

    # -- following --------------------------------------------------------------------------------

    def step(self) -> None:
        """Look at the target, and fetch what is new. TargetError, NoRoom, OSError and Resharded: nothing is
        lost, call it again later."""
        primary, _ = read_primary(self._repository)
        if not primary.base:
            where = self._repository.target.where
            raise TargetError(f"nobody ships to {where} yet: start the primary with --backup {where}")
        if primary.beat != self.primary.beat:
            self._beaten_at = time.monotonic()
        self.primary = primary
        if self.state is None or not self.state.base:
            self._begin(primary)
        else:
            self._fetch(self.state, primary)
            if primary.base != self.state.base and not self.has_new:
                self._change_base(self.state, self._checked(primary.base, self.state))
        state = self.state
        assert state is not None
        until = max(state.moment, primary.until if primary.base == state.base else 0)
        if until > self.until:
            self.until, self._advanced_at = until, time.monotonic()

    def _begin(self, primary: Primary) -> None:
        """Fetch a backup whole."""
        kept = self._repository.open()
        backup = self._repository.backup(primary.base)
        copy = secrets.token_hex(8) if self.state is None else self.state.copy
        state = Followed(1, self._source, kept.server, backup.generation, backup.shards, copy)
        check_folder(self._folder, self._source)
        self._save(state)  # first: the files that are here now are not whole
        self._clear()
        check_room(backup.bytes, self._folder)
        fetch_files(self._repository, backup, self._folder)
        self._save(msgspec.structs.replace(state, base=backup.id, term=backup.term, moment=backup.moment))
        self.shown = backup.moment

    def _checked(self, number: str, state: Followed) -> Backup:
        """A backup of the server that is followed. Resharded if it has another number of shards."""
        if self._repository.open().server != state.server:
            where = self._repository.target.where
            raise TargetError(f"{where} has the backups of another server now: choose another --data-dir")
        backup = self._repository.backup(number)
        if (backup.shards, backup.generation) != (state.shards, state.generation):
            self._save(msgspec.structs.replace(state, base="", segment="", moment=0, incoming=0))
            raise Resharded(f"the primary has {backup.shards} shards now: what it has is fetched anew")
        return backup

    def _fetch(self, state: Followed, primary: Primary) -> None:
        """Fetch what has changed since."""
        last = primary.last_of(state.term)
        for segment in segments_of(
            self._repository, state.base, None if last is None else id_of(last), state.segment
        ):
            changes = read(self._repository, segment, state.shards)
            self._keep([changes], segment=segment.name, moment=ms_of(segment.moment))

    def _change_base(self, state: Followed, backup: Backup) -> None:
        """Continue from another backup: fetch the pages in which the files differ from it."""
        what = {"base": backup.id, "term": backup.term, "segment": "", "moment": backup.moment}
        self._keep(self._differences(backup), **what)

    def _differences(self, backup: Backup) -> Iterator[Changes]:
        pages = self._repository.pages(backup.id, backup.checksum)
        if len(pages.files) != backup.shards:
            raise Damaged(f"backup {backup.id} has {len(pages.files)} files, and {backup.shards} shards")
        page_sum = self._repository.sealer.page_sum
        wanted: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        for shard, file in enumerate(pages.files):
            size = file.page_size
            with open(shard_file(self._folder, shard), "rb") as here:
                for number, place in file.stored():
                    if page_sum(os.pread(here.fileno(), size, (number - 1) * size)) != file.sum_of(number):
                        wanted[place.pack].append((shard, number, place.place))
        sizes = [(len(file), file.page_size) for file in pages.files]
        taken: list[list[tuple[int, bytes]]] = [[] for _ in sizes]
        held = 0
        for pack, places in wanted.items():
            name = f"{PACKS}{pages.packs[pack][0]}"
            body = self._repository.read(name)
            for shard, number, at in places:
                size = sizes[shard][1]
                page = body[at * size : (at + 1) * size]
                if page_sum(page) != pages.files[shard].sum_of(number):
                    raise Damaged(f"{name} has another page {number} of shard {shard} than the backup")
                taken[shard].append((number, page))
                held += size
            if held > PIECE:
                yield _changes(backup.moment, sizes, taken)
                taken, held = [[] for _ in sizes], 0
        yield _changes(backup.moment, sizes, taken)

    def _keep(self, several: Iterator[Changes] | Sequence[Changes], **what: object) -> None:
        """Store changes as incoming files; they count once the state says so."""
        state = self.state
        assert state is not None
        folder = self._folder / INCOMING
        folder.mkdir(mode=0o700, exist_ok=True)
        number = state.incoming
        for changes in several:
            number += 1
            with open(folder / f"{number:010}", "wb", opener=private) as file:
                file.write(msgspec.msgpack.encode(changes))
                file.flush()
        for path in (path for at, path in self._incoming() if at > state.incoming):
            sync(path)
        sync(folder)
        self._save(msgspec.structs.replace(state, incoming=number, **what))

    def _incoming(self) -> list[tuple[int, Path]]:
        """The incoming files, in order, with their numbers."""
        with suppress(FileNotFoundError):
            return sorted((int(path.name), path) for path in (self._folder / INCOMING).iterdir())
        return []

    def _save(self, state: Followed) -> None:
        write_whole(self._folder / STANDBY, state)
        self.state = state

    def _clear(self) -> None:
        """Remove the files."""
        shutil.rmtree(self._folder / INCOMING, ignore_errors=True)
        for path in self._folder.glob("shard-*"):
            path.unlink()

    # -- when nobody reads the files --------------------------------------------------------------

    def apply(self) -> None:
        """Write what has been fetched into the files. OSError: they are not whole until it has succeeded."""
        state = self.state
        assert state is not None
        for shard in range(state.shards):  # of a process that has read them, and was killed
            for suffix in ("-wal", "-shm"):
                Path(f"{shard_file(self._folder, shard)}{suffix}").unlink(missing_ok=True)
        incoming = self._incoming()
        with opened(self._folder, state.shards) as files:
            for _, path in incoming:
                write(decoded(path.read_bytes(), str(path), state.shards), files)
        for _, path in incoming:
            path.unlink()
        self.shown = state.moment

    # -- promotion --------------------------------------------------------------------------------

    def claim(self) -> None:
        """Become the primary, and fetch what the one before has stored last. Afterwards there is no way
        back but another promotion. Superseded and TargetError."""
        if not self.is_whole:
            raise BackupError(f"{self._folder} is not whole yet: promote it when it has caught up")
        assert self.state is not None
        claim = Claim(self._repository, self.state.copy)
        claim.take()
        self._claim = claim
        self.step()

    def finish(self, *, force: bool = False) -> None:
        """Make the folder that of a primary, with all that is stored; ``force``: with what is here, if the
        target does not answer. TargetError, OSError: call it again."""
        if (self._folder / NAME).exists():  # the process that was killed had finished it
            return settle(self._folder)
        self.apply()
        try:
            self._catch_up()
        except TargetError:
            if not force:
                raise
        state = self.state
        assert state is not None
        shards = list(range(state.shards))
        manifest = Manifest(FORMAT, state.shards, state.server, state.generation, shards)
        save_manifest(self._folder, msgspec.structs.replace(manifest, copy=state.copy, followed=state.source))
        return settle(self._folder)

    def _catch_up(self) -> None:
        """Have all that the primary before has stored."""
        if self._claim is None:
            self.claim()
        claim = self._claim
        assert claim is not None
        self.step()
        while self.has_new:
            self.apply()
            self.step()
        claim.close(self.until)


def settle(folder: Path) -> None:
    """Remove what a standby has that was promoted."""
    shutil.rmtree(folder / INCOMING, ignore_errors=True)
    (folder / STANDBY).unlink(missing_ok=True)


def _changes(
    moment: int, sizes: Sequence[tuple[int, int]], taken: Sequence[Sequence[tuple[int, bytes]]]
) -> Changes:
    files: list[ChangedFile] = []
    for (pages, size), numbers in zip(sizes, taken, strict=True):
        files.append(changed_file(pages, size, numbers))
    return Changes(moment, files)

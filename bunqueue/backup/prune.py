"""Removes old backups: which ones is a rule, and what nothing refers to any more goes with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from .primary import passed
from .repository import BACKUPS, PACKS, PAGES, SHIPPED, TRAIL, UNFINISHED, Lock, Repository, moment_of
from .targets import Missing

CHECK_EACH = 256  # removed objects: a process that was taken for dead must not remove much


class Keep(NamedTuple):
    """How many backups to keep: the newest, and the last one of so many days, weeks and months, in UTC."""

    last: int = 1
    daily: int = 7
    weekly: int = 4
    monthly: int = 12


class Pruned(NamedTuple):
    """The backups that were removed and kept, and the bytes of objects that were removed."""

    removed: list[str]
    kept: list[str]
    bytes: int


def kept_of(ids: Iterable[str], keep: Keep) -> list[str]:
    """Which of the backups to keep, oldest first. The newest is always one of them."""
    newest = sorted(ids, reverse=True)
    found = set(newest[: max(1, keep.last)])
    for count, period in (
        (keep.daily, "%Y-%m-%d"),
        (keep.weekly, "%G-%V"),
        (keep.monthly, "%Y-%m"),
    ):
        seen: dict[str, str] = {}
        for each in newest:
            seen.setdefault(moment_of(each).strftime(period), each)
        found.update(list(seen.values())[:count])
    return sorted(found)


def prune(
    repository: Repository,
    keep: Keep,
    *,
    dry_run: bool = False,
    report: Callable[[int, int], None] = lambda *_: None,
) -> Pruned:
    """Remove all backups but those to keep, and what nothing refers to. ``report`` gets how many objects of
    how many are removed. TargetError; then too little is removed, and the next run removes the rest."""
    repository.open()
    with repository.locked() as lock:
        ids, without = repository.ids(), passed(repository)
        whole = {name.removeprefix(PAGES) for name, _ in repository.target.names(PAGES)}
        counting = [each for each in ids if each in whole and each not in without]
        kept = sorted({*kept_of(counting, keep), *_continued(repository, counting)})
        removed = [each for each in ids if each not in kept]
        needed = _needed(repository, kept)  # before anything is removed: what cannot be read stops it
        names = [f"{BACKUPS}{each}" for each in removed]
        objects = (
            each for prefix in (PAGES, PACKS, TRAIL, SHIPPED) for each in repository.target.names(prefix)
        )
        unused = [(name, size) for name, size in objects if name not in needed and _base_of(name) not in kept]
        if not dry_run:
            _remove(repository, lock, [*names, *(name for name, _ in unused)], report)
    return Pruned(removed, kept, sum(size for _, size in unused))


def _continued(repository: Repository, ids: Sequence[str]) -> list[str]:
    """The newest backup to which a server still adds changes."""
    for number in reversed(ids):
        if repository.backup(number).goes_on:
            return [number]
    return []


def _base_of(name: str) -> str:
    """The backup that shipped changes belong to; "" for another object."""
    return name.split("/")[1] if name.startswith(SHIPPED) else ""


def _needed(repository: Repository, kept: Sequence[str]) -> set[str]:
    """The names of all objects that backups, or an interrupted one, refer to."""
    needed = set()
    for number in (*kept, UNFINISHED):
        try:
            pages = repository.pages(number)
        except Missing:
            if number != UNFINISHED:
                raise
            continue
        needed.add(f"{PAGES}{number}")
        if number != UNFINISHED:
            needed.update(f"{TRAIL}{place}" for place in repository.backup(number).trail.values())
        needed.update(f"{PACKS}{name}" for name, _ in pages.packs)
    return needed


def _remove(
    repository: Repository, lock: Lock, names: Sequence[str], report: Callable[[int, int], None]
) -> None:
    """Backups come first: each is gone before what it needs."""
    for count, name in enumerate(names):
        if count % CHECK_EACH == 0:
            lock.check()
        repository.target.remove(name)
        report(count + 1, len(names))

"""How much memory this process may use: what its control group allows, or else what the machine has."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath

MIB = 1024 * 1024
LEAST = 256 * MIB  # with less, a server of one shard has hardly room for jobs
FOR_SHARDS = (
    3,
    4,
)  # of the whole; the rest is for the router, the gateway, and what grows before it is measured
LEAST_SHARE = 160 * MIB  # without jobs a shard has 30, and in use 64 for the pages of its file

# Where version 2 and version 1 of the control groups are found, and the file that says the limit.
_V2 = ("", "unified"), "memory.max"
_V1 = ("memory",), "memory.limit_in_bytes"
_KILLS_V2 = ("", "unified"), "memory.events"
_KILLS_V1 = ("memory",), "memory.oom_control"


def share_of(limit: int, shards: int) -> int:
    """The bytes from which on one of so many shards takes no more jobs; 0: no limit."""
    part, whole = FOR_SHARDS
    return max(LEAST_SHARE, limit * part // whole // shards) if limit else 0


def memory_here(environ: Mapping[str, str] | None = None) -> int:
    """Bytes that this process and its children may use together, at least LEAST."""
    return max(LEAST, min(group_limits(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))))


def group_limits(groups: Path, mounted: Path) -> Iterator[int]:
    """The limits of the control groups that ``groups`` names, of those around them, and of the machine."""
    yield _physical()
    with suppress(OSError):
        for line in groups.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers or "memory" in controllers.split(","):
                places, name = _V1 if controllers else _V2
                for place in places:
                    yield from _upwards(mounted / place, PurePosixPath(path), name)


def oom_kills(groups: Path = Path("/proc/self/cgroup"), mounted: Path = Path("/sys/fs/cgroup")) -> int:
    """How many processes of this one's control group the kernel has killed for want of memory; 0 if it does
    not say."""
    with suppress(OSError):
        for line in groups.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers or "memory" in controllers.split(","):
                places, name = _KILLS_V1 if controllers else _KILLS_V2
                for place in places:
                    for kills in _counts(mounted / place, PurePosixPath(path), name):
                        return kills
    return 0


def _counts(top: Path, path: PurePosixPath, name: str) -> Iterator[int]:
    """What a group's file, and those of the groups that it lies in, say of ``oom_kill``."""
    for group in (path, *path.parents):
        with suppress(OSError, ValueError):
            lines = (top / group.relative_to("/") / name).read_text().splitlines()
            yield from (int(line.split()[1]) for line in lines if line.startswith("oom_kill "))


def _upwards(top: Path, path: PurePosixPath, name: str) -> Iterator[int]:
    """The limit of a group, and of each that it lies in: all of them hold."""
    # Within a container the path may be the host's, and not be there: its own group is the top then.
    for group in (path, *path.parents):
        with suppress(OSError, ValueError):  # not there; or "max"
            yield int((top / group.relative_to("/") / name).read_text())


def _physical() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

"""How much memory this process may use: the limit of its control group, or else the machine's memory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import product
from pathlib import Path, PurePosixPath

MIB = 1024 * 1024
LEAST = 256 * MIB  # with less, even a server with one shard has hardly any room for jobs
FOR_SHARDS = (
    3,
    4,
)  # of the whole; the rest is for the router, the gateway, and growth between two measurements
LEAST_SHARE = 160 * MIB  # a shard without jobs uses 30, plus 64 for the pages of its file once in use

_Files = tuple[tuple[str, ...], str]
# Where the control groups of version 2 and version 1 are mounted, and the file with the limit.
_V2 = ("", "unified"), "memory.max"
_V1 = ("memory",), "memory.limit_in_bytes"
_KILLS_V2 = ("", "unified"), "memory.events"
_KILLS_V1 = ("memory",), "memory.oom_control"


def share_of(limit: int, shards: int) -> int:
    """The memory limit in bytes for each of ``shards`` shards: beyond it, a shard takes no more jobs.  0: no
    limit."""
    part, whole = FOR_SHARDS
    return max(LEAST_SHARE, limit * part // whole // shards) if limit else 0


def memory_here(environ: Mapping[str, str] | None = None) -> int:
    """How many bytes this process and its children may use together, at least LEAST."""
    return max(LEAST, min(group_limits(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))))


def group_limits(groups: Path, mounted: Path) -> Iterator[int]:
    """The limits of the control groups named in ``groups``, of their parents, and of the machine."""
    yield _physical()
    for text in _files(groups, mounted, _V1, _V2):
        with suppress(ValueError):  # "max"
            yield int(text)


def oom_kills(groups: Path = Path("/proc/self/cgroup"), mounted: Path = Path("/sys/fs/cgroup")) -> int:
    """How many processes in this process's control group the kernel has killed for lack of memory; 0 if
    unknown."""
    for text in _files(groups, mounted, _KILLS_V1, _KILLS_V2):
        for line in text.splitlines():
            with suppress(ValueError, IndexError):
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    return 0


def _files(groups: Path, mounted: Path, first: _Files, second: _Files) -> Iterator[str]:
    """The contents of a memory file, for each control group named in ``groups`` and for its parents.
    ``first`` and ``second`` say where the file is in two versions of control groups."""
    try:
        lines = groups.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        places, name = first if controllers else second
        group = PurePosixPath(path)
        # In a container, the path may be the host's and not exist here; then the container's own group is
        # the top.
        for place, each in product(places, (group, *group.parents)):
            with suppress(OSError, ValueError):
                yield (mounted / place / each.relative_to("/") / name).read_text()


def _physical() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

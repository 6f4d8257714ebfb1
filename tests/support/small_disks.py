"""File systems of a few megabytes, as an operator may have them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, kind: str, size_mb: int) -> Iterator[Path]:
    """A new tmpfs, or ext4 on a loop device, below ``folder``; skips the test without the right to that."""
    disk = folder / "disk"
    disk.mkdir()
    if kind == "tmpfs":
        _run("mount", "-t", "tmpfs", "-o", f"size={size_mb}m", "tmpfs", str(disk))
    else:
        image = folder / "image"
        with image.open("wb") as file:
            file.truncate(size_mb << 20)
        _run("mkfs.ext4", "-q", "-F", str(image))
        _run("mount", "-o", "loop", str(image), str(disk))
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def _run(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(f"no right to {command[0]} a file system")

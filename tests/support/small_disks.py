"""File systems of a few megabytes, as an operator may have them, and one that is full when a test says so."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
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


class FullDisk:
    """A tmpfs that has room for much, and no room at all while it is `filled`.  Needs the right to mount."""

    def __init__(self, size_mb: int = 1024) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="bunqueue-disk-"))
        self._size = f"{size_mb}m"

    def __enter__(self) -> FullDisk:
        try:
            self._mount("-t", "tmpfs", "-o", f"size={self._size},mode=755", "tmpfs")
        except BaseException:
            self.folder.rmdir()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", "-l", str(self.folder)], check=True)
        self.folder.rmdir()

    @contextmanager
    def filled(self) -> Iterator[None]:
        """It has just the size of what is in it."""
        try:
            while not self._fill():
                pass
            yield
        finally:
            self._mount("-o", f"remount,size={self._size}")

    def _fill(self) -> bool:
        """False if more was written meanwhile than there is room for."""
        here = os.statvfs(self.folder)
        used = (here.f_blocks - here.f_bfree) * here.f_frsize
        try:
            self._mount("-o", f"remount,size={used}")
        except subprocess.CalledProcessError:
            return False
        return True

    def _mount(self, *how: str) -> None:
        subprocess.run(["mount", *how, str(self.folder)], check=True, capture_output=True)


@cache
def may_mount() -> bool:
    """Whether this machine lets us make a `FullDisk`."""
    with suppress(OSError, subprocess.CalledProcessError), FullDisk():
        return True
    return False


def _run(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(f"no right to {command[0]} a file system")

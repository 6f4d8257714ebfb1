"""Locks that survive the removal of a lock file: on a shard's file itself, and on a data folder.

A file's lock is on a byte far beyond its end and beyond those that SQLite locks, so neither SQLite nor a
reader notices it.  It belongs to the open descriptor: closing other descriptors of the file does not release
it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct

_BYTE = 1 << 62
_HELD = frozenset({errno.EAGAIN, errno.EACCES})


def _flock(kind: int) -> bytes:
    """A C ``struct flock`` for `_BYTE`."""
    return struct.pack("@hhqqi0q", kind, os.SEEK_SET, _BYTE, 1, 0)


def lock_file(descriptor: int) -> bool:
    """Lock a file that is open for writing, until the descriptor is closed; False if it is already locked.

    Also True on a system without these locks: there, the lock beside the file is the only one.
    """
    if not hasattr(fcntl, "F_OFD_SETLK"):
        return True
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _flock(fcntl.F_WRLCK))
    except OSError as error:
        return error.errno not in _HELD
    return True


def is_locked(descriptor: int) -> bool:
    """Whether another descriptor holds `lock_file`."""
    if not hasattr(fcntl, "F_OFD_GETLK"):
        return False
    try:
        found = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _flock(fcntl.F_RDLCK))
    except OSError:
        return False
    kind: int = struct.unpack("@hhqqi0q", found)[0]
    return kind != fcntl.F_UNLCK


def lock_folder(descriptor: int) -> bool:
    """Lock a folder until the descriptor is closed; False if it is already locked.  Also True on network file
    systems that cannot lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in _HELD
    return True

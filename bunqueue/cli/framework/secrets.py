"""Keeps secrets on the command line out of the list of processes, which all users of a machine can read."""

from __future__ import annotations

import re
from contextlib import suppress

SECRET_FLAGS = frozenset({b"--token", b"-t", b"--auth-token", b"--read-only-token", b"--secret"})
_BEFORE_HOST = re.compile(rb"(?<=://)[^/?#]*(?=@)")  # the token or password of a URL
_IN_QUERY = re.compile(rb"(?<=[?&])((?:ssl)?password|token)=[^&]+")


def hide_secrets() -> None:
    """Write over them in this process's own memory, where the system reads the arguments of a process.

    Linux only; elsewhere, or if the system forbids it, they stay.
    """
    with suppress(OSError, ValueError, IndexError):
        with open("/proc/self/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
        start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end of proc_pid_stat(5)
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            memory.seek(start)
            given = memory.read(end - start)
            hidden = without_secrets(given)
            if hidden != given:
                memory.seek(start)
                memory.write(hidden)


def without_secrets(arguments: bytes) -> bytes:
    """Arguments, each ended by a zero byte, with stars for what is secret; as long as before."""
    shown, is_secret = [], False
    for each in arguments.split(b"\0"):
        flag, equals, value = each.partition(b"=")
        if is_secret:
            each = _stars(each)
        elif equals and flag in SECRET_FLAGS:
            each = flag + b"=" + _stars(value)
        elif each[:2] == b"-t" and len(each) > 2:
            each = b"-t" + _stars(each[2:])
        is_secret = not is_secret and each in SECRET_FLAGS
        each = _BEFORE_HOST.sub(lambda found: _stars(found[0]), each)
        each = _IN_QUERY.sub(lambda found: found[1] + b"=" + _stars(found[0][len(found[1]) + 1 :]), each)
        shown.append(each)
    return b"\0".join(shown)


def _stars(text: bytes) -> bytes:
    return b"*" * len(text)

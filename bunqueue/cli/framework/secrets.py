"""Keep secrets on the command line out of the list of processes, which all users of a machine can read."""

from __future__ import annotations

import re

from bunqueue.server.host.process_arguments import rewrite_arguments

SECRET_FLAGS = frozenset({b"--token", b"-t", b"--auth-token", b"--read-only-token", b"--secret"})
_BEFORE_HOST = re.compile(rb"(?<=://)[^/?#]*(?=@)")  # the token or password of a URL
_IN_QUERY = re.compile(rb"(?<=[?&])((?:ssl)?password|token)=[^&]+")


def hide_secrets() -> None:
    """Replace the secrets with stars, where the system allows it."""
    rewrite_arguments(without_secrets)


def without_secrets(arguments: bytes) -> bytes:
    """The arguments, each ended by a zero byte, with stars in place of secrets. The length stays the same."""
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

"""The token of a server from a file, so it appears neither on the command line nor in the environment."""

from __future__ import annotations

import sys

from bunqueue.server.settings import SettingsError

MAX_LINE = 4096
"""Bytes of a line with a token."""


def token_in(file: str) -> str:
    """The token in the first line of a file, or of standard input for "-". Raises SettingsError."""
    try:
        if file == "-":
            line = sys.stdin.buffer.readline(MAX_LINE)  # the rest is for the command itself
        else:
            with open(file, "rb") as opened:
                line = opened.readline(MAX_LINE)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise SettingsError(f"--token-file: {file!r} cannot be read: {why}") from None
    token = line.strip()
    if not token or not token.isascii() or len(line) == MAX_LINE:
        raise SettingsError(f"--token-file: the first line of {file!r} is no token")
    return token.decode()

"""Replaces a process by the server, or by another run of it, with settings that no list of processes has."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from bunqueue.server.settings import SettingsError
from bunqueue.server.settings.settings import Settings

MAX_SETTINGS_BYTES = 65536
"""The size of a pipe's buffer; a larger write would block forever."""


def settings_pipe(settings: Settings) -> int:
    """A descriptor from which the process that replaces this one can read the settings.  Raises
    ``SettingsError`` and OSError."""
    data = settings.to_json()
    if len(data) >= MAX_SETTINGS_BYTES:
        raise SettingsError(
            f"the settings take {len(data)} bytes; the most is {MAX_SETTINGS_BYTES}; use fewer tokens"
        )
    reader, writer = os.pipe()
    os.set_blocking(
        writer, False
    )  # short of pipe memory, the system gives smaller pipes: fail instead of hanging
    written = os.write(writer, data)
    os.close(writer)
    if written < len(data):
        raise SettingsError("this system's pipes are too small for the settings; use fewer tokens")
    os.set_inheritable(reader, True)
    return reader


def become(package: str, *arguments: str) -> NoReturn:
    """Replace this process with one that runs a package of the server. Raises OSError."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-P", "-m", package, *arguments])

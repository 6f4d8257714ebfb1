"""What of the server others can read: users of the machine its files, and the network its clients' tokens."""

from __future__ import annotations

import os
import shlex

from bunqueue.server.settings.settings import Settings

CONFIG, KEY, FOLDER, NETWORK = "config file", "TLS key", "data folder", "network"
KINDS = (CONFIG, KEY, FOLDER, NETWORK)


def exposed(settings: Settings, secrets_in: str) -> dict[str, str]:
    """The kinds of files that other users can read, each with a line that says how to protect them.

    ``secrets_in`` is the config file, if it has a secret in it; "" if not.
    """
    found = {
        CONFIG: file_problem(secrets_in),
        KEY: file_problem(settings.tls_key),
        FOLDER: None if settings.in_memory else folder_problem(settings.data_dir),
    }
    return {kind: problem for kind, problem in found.items() if problem is not None}


def network_problem(address: str) -> dict[str, str]:
    """What to say of a server whose clients send tokens to an address without TLS, in the form of
    `exposed`."""
    return {NETWORK: f"tokens and payloads travel unencrypted to {address} (--plaintext): use TLS"}


def file_problem(path: str) -> str | None:
    """What is wrong with the mode of a file that holds a secret; None if nothing, or if there is no file.

    If the file belongs to another user, its group may read it, because that is how the server reads it: for
    example root:bunqueue with mode 0640.
    """
    try:
        status = os.stat(path)
    except OSError:
        return None
    whose, readers = ("go", 0o044) if status.st_uid == os.geteuid() else ("o", 0o004)
    return _problem(path, status.st_mode, whose, readers)


def folder_problem(path: str) -> str | None:
    """What is wrong with the mode of a data folder; None if nothing, or if there is no folder."""
    try:
        return _problem(path, os.stat(path).st_mode, "o", 0o005)
    except OSError:
        return None


def _problem(path: str, mode: int, whose: str, readers: int) -> str | None:
    if not mode & readers:
        return None
    shown = shlex.quote(path)
    return f"other users can read {shown} (mode {mode & 0o777:04o}): chmod {whose}-rwx {shown}"

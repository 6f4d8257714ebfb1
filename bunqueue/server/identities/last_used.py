"""When each identity was last used, from where and with what: a small file for each in the data folder.

Every process that clients reach writes there, at most once a minute for an identity, so no server has to be
asked, and nothing is written for those who did not authenticate.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import NamedTuple

from bunqueue.server.settings.settings import Settings

from .directory import FULL, Grant

FOLDER = "identities"
LATELY_S = 7 * 86_400.0  # a certificate that nobody has shown for longer worries nobody
AGAIN_S = 60.0  # between two notes about the same identity and address


class Used(NamedTuple):
    """The last use of an identity. Times are in seconds since the epoch."""

    at: float
    address: str
    credential: str
    ends: float = inf
    """When the certificate expires that was used."""


class LastUsed:
    """Notes uses."""

    def __init__(self, settings: Settings) -> None:
        self._folder = None if settings.in_memory else Path(settings.data_dir, FOLDER)
        self._noted: dict[str, Used] = {}

    def note(
        self, grant: Grant, address: str, now_s: float, certificate: Mapping[str, object] | None = None
    ) -> None:
        """Somebody has authenticated from an address, perhaps with a certificate as `ssl` shows it."""
        name = grant.identity.name
        before = self._noted.get(name)
        if self._folder is None or grant is FULL or grant.groups:
            return
        if before is not None and before[1:3] == (address, grant.credential) and now_s < before.at + AGAIN_S:
            return
        self._noted[name] = Used(now_s, address, grant.credential)
        with suppress(OSError):  # a full disk must keep nobody out
            self._folder.mkdir(exist_ok=True)
            ends = f"\t{certificate['notAfter']}" if certificate else ""
            (self._folder / name).write_text(f"{address}\t{grant.credential}{ends}\n", encoding="utf-8")


def last_uses(data_dir: str) -> dict[str, Used]:
    """The last uses that the servers of a data folder have noted, by identity."""
    found: dict[str, Used] = {}
    with suppress(OSError):
        for file in Path(data_dir, FOLDER).iterdir():
            with suppress(OSError, ValueError):
                address, credential, *more = file.read_text(encoding="utf-8").strip().split("\t")
                ends = float(ssl.cert_time_to_seconds(more[0])) if more else inf
                found[file.name] = Used(file.stat().st_mtime, address, credential, ends)
    return found


def first_end(data_dir: str, now_s: float) -> float:
    """When the first certificate expires that an identity has lately shown; 0 if none has."""
    lately = [used for used in last_uses(data_dir).values() if now_s < used.at + LATELY_S]
    return min((used.ends for used in lately if used.ends < inf), default=0.0)

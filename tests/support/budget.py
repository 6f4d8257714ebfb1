"""How much is tried: little at each change, much by night.

``make test`` tries the same few examples, seeds and kills each time, so that a change is blamed for what it
broke.  ``make nightly`` sets NIGHTLY, and many new ones are tried.  CONTRIBUTING says what runs when.
"""

from __future__ import annotations

import os
import secrets
from typing import TypeVar

NIGHTLY = "NIGHTLY" in os.environ
T = TypeVar("T")


def budget(each_change: T, nightly: T) -> T:
    """The one that is due now."""
    return nightly if NIGHTLY else each_change


def a_seed(of_each_change: str = "1") -> str:
    """Of random kills: KILL_SEED if it is given, by night a new one."""
    return os.environ.get("KILL_SEED") or budget(of_each_change, secrets.token_hex(4))

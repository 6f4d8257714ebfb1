"""Webhooks that somebody waits to see tried, and which gateway delivers.  Plain data without rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Raw, Struct, UnsetType

from ..ready import deadlines

if TYPE_CHECKING:
    from ..state import Client


class ParkedTrial(Struct, eq=False):
    """A parked TestWebhook."""

    client: Client
    req_id: Raw | UnsetType
    webhook_id: str
    timeout: float  # ms
    reported: bool = False  # to the gateway
    done: bool = False


class Trials:
    """All of them, and when the gateway last asked for those that were not reported to it (epoch ms)."""

    __slots__ = ("asked_at", "deliverer", "deliverer_until", "ends", "parked")

    def __init__(self) -> None:
        self.parked: dict[str, ParkedTrial] = {}  # by number
        self.ends: deadlines.Deadlines[ParkedTrial] = deadlines.parked()
        self.asked_at = 0
        self.deliverer = ""  # of several gateways the one that delivers; "": none yet
        self.deliverer_until = 0  # epoch ms: from then on another one may

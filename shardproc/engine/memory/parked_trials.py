"""Clients that wait for the test of a webhook, and the gateway that delivers.  Plain data without rules."""

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
    """All parked trials, and the time of the gateway's last poll for new ones (epoch ms)."""

    __slots__ = ("asked_at", "deliverer", "deliverer_until", "ends", "parked")

    def __init__(self) -> None:
        self.parked: dict[str, ParkedTrial] = {}  # by number
        self.ends: deadlines.Deadlines[ParkedTrial] = deadlines.parked()
        self.asked_at = 0
        self.deliverer = ""  # the gateway that delivers, if there are several; "": none yet
        self.deliverer_until = 0  # epoch ms: afterwards another gateway may deliver

"""Wrong tokens: how many came, from where.  Whoever guesses is slowed down, logged and counted."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address

FREE = 20  # wrong tokens of an address in a minute; who mistypes one, or restarts an old worker, needs fewer
PERIOD_S = 60.0
DELAY_S = 1.0  # that an address beyond waits for each answer
MAX_ADDRESSES = 10_000  # that are remembered; then all are forgotten


def origin(address: str) -> str:
    """Whom to hold to account for an address: of IPv6, the network that one customer gets."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(found, IPv6Address):
        return address
    return str(found.ipv4_mapped or IPv6Address(int(found) >> 64 << 64))


class Guesses:
    """Of one process.  The time comes from the caller, in seconds."""

    def __init__(self) -> None:
        self.total = 0
        self._untold = 0
        self._last = ""
        self._counts: dict[str, int] = {}
        self._until = 0.0

    def wrong(self, address: str, now_s: float) -> bool:
        """Count a wrong token; whether its sender is to be slowed down."""
        if now_s >= self._until or len(self._counts) >= MAX_ADDRESSES:
            self._counts.clear()
            self._until = now_s + PERIOD_S
        who = origin(address)
        self.total += 1
        self._untold += 1
        self._last = address
        self._counts[who] = count = self._counts.get(who, 0) + 1
        return count > FREE

    def suspects(self, address: str, now_s: float) -> bool:
        """Whether so many came from there that it is to be slowed down."""
        return now_s < self._until and bool(self._counts) and self._counts.get(origin(address), 0) > FREE

    def news(self) -> dict[str, str | int]:
        """What to log: how many came since the last time, and the address of the last; empty if none did."""
        untold, self._untold = self._untold, 0
        return {"wrong": untold, "address": self._last, "addresses": len(self._counts)} if untold else {}

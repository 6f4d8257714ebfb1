"""The failed-auth throttle: counts wrong tokens by address, and says which addresses to slow down and log."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address

FREE = 20  # wrong tokens per address and minute; a mistyped token or an old worker's restart causes fewer
PERIOD_S = 60.0
DELAY_S = 1.0  # delay of each answer to an address that exceeds the limit
MAX_ADDRESSES = 10_000  # remembered addresses; then all are forgotten


def origin(address: str) -> str:
    """The unit by which an address is counted: for IPv6, the /64 network that one customer gets."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(found, IPv6Address):
        return address
    return str(found.ipv4_mapped or IPv6Address(int(found) >> 64 << 64))


class AuthThrottle:
    """The wrong tokens that one process received.  The caller passes the time, in seconds."""

    def __init__(self) -> None:
        self.total = 0
        self._unlogged = 0
        self._last = ""
        self._counts: dict[str, int] = {}
        self._until = 0.0

    def wrong(self, address: str, now_s: float) -> bool:
        """Count a wrong token; return whether its sender should be slowed down."""
        self._begin(now_s)
        self.total += 1
        self._unlogged += 1
        self._last = address
        return self._count(address) > FREE

    def wrong_elsewhere(self, address: str, now_s: float) -> None:
        """Slow an address down for a wrong token that another process counts."""
        self._begin(now_s)
        self._count(address)

    def _begin(self, now_s: float) -> None:
        if now_s >= self._until or len(self._counts) >= MAX_ADDRESSES:
            self._counts.clear()
            self._until = now_s + PERIOD_S

    def _count(self, address: str) -> int:
        who = origin(address)
        self._counts[who] = count = self._counts.get(who, 0) + 1
        return count

    def is_throttled(self, address: str, now_s: float) -> bool:
        """Whether an address has sent enough wrong tokens to be slowed down."""
        return now_s < self._until and bool(self._counts) and self._counts.get(origin(address), 0) > FREE

    def news(self) -> dict[str, str | int]:
        """The fields to log: how many came since the last call, and the last address.  Empty if none came."""
        unlogged, self._unlogged = self._unlogged, 0
        return {"wrong": unlogged, "address": self._last, "addresses": len(self._counts)} if unlogged else {}

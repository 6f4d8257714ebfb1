"""Unauthenticated connections: they must neither stay for long nor take the place of others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from bunqueue.logs import get_logger
from bunqueue.server.host.auth_throttle import AuthThrottle, origin

from .ports import Client

AUTH_S = 10.0  # to authenticate
MAX_REFUSALS = 20  # of any command; then it is not one of our clients
MAX_WRONG = 5  # tokens
MAX_EACH = 256  # per address; a fleet behind one address authenticates long before it has this many pending

_log = get_logger("router")


class Unauthenticated:
    """All unauthenticated connections, in the order of their arrival."""

    def __init__(self) -> None:
        self.throttle = AuthThrottle()
        self.most_each = MAX_EACH  # per address
        self.on_wrong_token: list[Callable[[str, object], None]] = []
        """Each gets the address of a wrong token, and who has told of it: None if it was presented here."""
        self.logs = True  # wrong tokens; one router does it for all
        self._all: dict[Client, _Entry] = {}
        self._by_origin: dict[str, dict[Client, None]] = {}
        self._dropped = 0  # since the last log line about them

    def enter(self, client: Client, transport: asyncio.Transport) -> bool:
        """Add a new connection; returns whether reading it must be delayed, as wrong tokens came from its
        address. If its address has too many, the oldest one is dropped."""
        address = str((transport.get_extra_info("peername") or ("",))[0])
        now, who = time.monotonic(), origin(address)
        same = self._by_origin.setdefault(who, {})
        if len(same) >= self.most_each:
            self._drop(next(iter(same)))
            same = self._by_origin.setdefault(who, {})
        same[client] = None
        self._all[client] = _Entry(address, who, now)
        return self.throttle.is_throttled(address, now)

    def leave(self, client: Client) -> None:
        """It has closed, or has authenticated."""
        found = self._all.pop(client, None)
        if found is None:
            return
        same = self._by_origin[found.who]
        del same[client]
        if not same:
            del self._by_origin[found.who]

    def drop_oldest(self) -> bool:
        """Close the oldest one to make room for another; False if all clients have authenticated."""
        if not self._all:
            return False
        self._drop(next(iter(self._all)))
        return True

    def is_at_limit(self, client: Client, answers: int) -> bool:
        """Whether it has reached the bound on refusals, including ``answers`` refusals about to be sent."""
        found = self._all.get(client)
        return found is not None and (found.refusals + answers >= MAX_REFUSALS or found.wrong >= MAX_WRONG)

    def refused(self, client: Client, answers: int) -> bool:
        """It was refused this many times more; returns whether it has reached the bound."""
        is_enough = self.is_at_limit(client, answers)
        if (found := self._all.get(client)) is not None:
            found.refusals += answers
        return is_enough

    def wrong(self, client: Client) -> None:
        """It has presented a wrong token."""
        found = self._all.get(client)
        if found is not None:
            found.wrong += 1
            found.slowed = self.throttle.wrong(found.address, time.monotonic())
            self._tell(found.address, None)

    def is_slowed(self, client: Client) -> bool:
        """Whether it has presented a wrong token, as others from its address did before: the answer must be
        delayed."""
        found = self._all.get(client)
        return found is not None and found.slowed

    def wrong_elsewhere(self, address: str, told_by: object, *, counted: bool = True) -> None:
        """A wrong token was presented to another process, which may count it itself."""
        if counted:
            self.throttle.wrong(address, time.monotonic())
        else:
            self.throttle.wrong_elsewhere(address, time.monotonic())
        self._tell(address, told_by)

    def _tell(self, address: str, told_by: object) -> None:
        for tell in self.on_wrong_token:
            tell(address, told_by)

    def sweep(self) -> tuple[str, str, int] | None:
        """Called now and then: end those that did not authenticate in time. Returns what the trail says of
        wrong tokens since the last call: the last address, over what, how many; None for nothing."""
        late = time.monotonic() - AUTH_S
        for client, found in list(self._all.items()):
            if found.since > late:
                break
            self._drop(client)
        if self._dropped:
            _log.warning("closed connections that showed no token", connections=self._dropped)
            self._dropped = 0
        news = self.throttle.news()
        if not news or not self.logs:
            return None
        _log.warning("wrong tokens over TCP", **news)
        return str(news["address"]), "tcp", int(news["wrong"])

    def _drop(self, client: Client) -> None:
        self._dropped += 1
        self.leave(client)
        client.vanish()


class _Entry:
    __slots__ = ("address", "refusals", "since", "slowed", "who", "wrong")

    def __init__(self, address: str, who: str, since: float) -> None:
        self.address = address
        self.who = who
        self.since = since
        self.refusals = self.wrong = 0
        self.slowed = False

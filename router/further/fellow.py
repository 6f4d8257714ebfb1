"""The first router's end of the line to another one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bunqueue.protocol import router_line
from bunqueue.server_commands.commands import ServerCommands

from ..admission import Tokens
from ..local import answer
from ..routing import HERE, peek
from ..subscription import Subscription
from .line import Line

if TYPE_CHECKING:
    from ..hub import Hub
    from .supervisor import FurtherRouters


class Asker:
    """A connection of another router, as far as it asks the first one something."""

    tokens = Tokens((), ())
    subscription: Subscription | None = None
    limited = known = True
    reader = False

    def __init__(self, line: Fellow, number: int) -> None:
        self._line = line
        self.number = number
        self.kind = 0
        self.slow = 0  # is counted where the connection is
        self.finished = False

    @property
    def commands(self) -> ServerCommands:
        return self._line.hub.commands

    def admitted(self, *, reader: bool = False) -> None:
        """Not asked here."""

    def guessed(self) -> None:
        """Not asked here."""

    def gathered(self, reply: bytes) -> None:
        """The reply to its command."""
        if not self.finished:
            self._line.say(router_line.ANSWER, reply, conn=self.number)

    def finish(self, kind: int) -> None:
        """Nobody knows what became of its command."""
        if not self.finished:
            self._line.say(router_line.CUT, conn=self.number)


class Fellow(Line):
    """To one of the others."""

    def __init__(self, hub: Hub, routers: FurtherRouters, number: int) -> None:
        super().__init__()
        self.hub = hub
        self._routers = routers
        self.number = number
        self.live: set[int] = set()  # its connections
        self.heard_since = True  # since the last ping
        self._askers: dict[int, Asker] = {}

    def heard(
        self, channel: int, shard: int, conn: int, kind: int, replies: int, slow: int, body: bytes
    ) -> None:
        self.heard_since = True
        if kind == router_line.JOINED:
            self.live.add(conn)
        elif kind == router_line.LEFT:
            self._left(conn)
        elif kind == router_line.ASK:
            self._asked(conn, replies, body)
        elif kind == router_line.GUESS:
            self._routers.guessed(body.decode(), self)
        elif kind == router_line.BEGUN:
            self._routers.begun(self)

    def _left(self, conn: int) -> None:
        self.live.discard(conn)
        asker = self._askers.pop(conn, None)
        if asker is not None:
            asker.finished = True
            self.hub.workers_left(conn)

    def _asked(self, conn: int, version: int, payload: bytes) -> None:
        """What the first router answers for all."""
        asker = self._askers.get(conn)
        if asker is None:
            asker = self._askers[conn] = Asker(self, conn)
        asker.kind = version
        look = peek(payload)
        if look.handling == HERE and look.spec.heavy and self.hub.cluster is not None:
            self.hub.answer_later(asker, payload)
        elif look.handling == HERE:
            asker.gathered(answer(asker, payload))
        else:
            refused: list[bytes] = []
            self.hub.tickets.gather(asker, look, payload, self.hub.routes, refused)
            for reply in refused:
                asker.gathered(reply)

    def ended(self) -> None:
        """The process has gone, and its connections with it."""
        for conn in list(self._askers):
            self._left(conn)
        self.live.clear()
        self._routers.parted(self)

    def say_up(self, shard: int, up: router_line.Up) -> None:
        self.say(router_line.SHARD_UP, router_line.encode(up), shard=shard)

"""How far what changes is backed up, and the standby that follows it."""

from msgspec import Struct

from bunqueue.model.rights import Verb

from .base import Command, Reply, Route, Tag, command, http


class BackupView(Struct, rename="camel", gc=False):
    """What the server ships.  All that was committed before ``until`` is stored; ``base`` is the moment of
    the newest whole backup (both epoch ms, 0 while there is none).  ``lag`` is for how long changes have
    waited to be stored, in ms, and ``lagBytes`` how many bytes of them wait.  ``error`` says why nothing
    could be stored just now."""

    until: float
    base: float
    lag: float
    lag_bytes: int
    error: str | None = None


class StandbyView(Struct, rename="camel", gc=False):
    """What a standby follows.  All that the primary had committed before ``until`` is here, and what was
    there at ``shown`` is shown (both epoch ms).  ``lag`` is for how long nothing new has come, ``silent`` for
    how long the primary has given no sign of life (ms).  ``primary`` is where clients reach it, ``term`` how
    many primaries there have been.  ``error`` says why nothing could be fetched just now."""

    source: str
    primary: str
    term: int
    until: float
    shown: float
    lag: float
    silent: float
    error: str | None = None


class BackupStatusView(Struct, rename="camel", gc=False):
    """Each is null if the server does not do that."""

    backup: BackupView | None = None
    standby: StandbyView | None = None


class BackupStatusReply(Reply, kw_only=True):
    data: BackupStatusView


class Promoted(Struct, rename="camel", gc=False):
    """``term`` counts the primaries that there have been, ``until`` is up to when the new one has what the
    one before had committed, epoch ms."""

    term: int
    until: float


class PromoteReply(Reply, kw_only=True):
    data: Promoted


@http("GET /backup", Tag.SERVER)
@command(Route.ROUTER, Verb.SEE, operational=True)
class BackupStatus(Command[BackupStatusReply], tag="BackupStatus"):
    """Get how far what changes is backed up, and what a standby follows."""


@http("POST /promote", Tag.SERVER)
@command(Route.ROUTER, Verb.ADMINISTER, writes=True, repeatable=True, heavy=True)
class PromoteStandby(Command[PromoteReply], tag="PromoteStandby"):
    """Make a standby the primary.  It restarts as soon as this is answered.  With ``force`` also if the old
    primary seems to be alive, which then ends, or if the place of the backups does not answer."""

    force: bool = False

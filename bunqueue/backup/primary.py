"""Which copy of a server's data folder is the primary: the one that ships to a target.

One object says so. It is replaced only while it still is what was read (a conditional write), so of two
copies that want to be the primary at the same time one fails. Each take-over begins a new term. What an
earlier primary stores after the end of its term does not count: nobody restores or follows it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import msgspec

from .repository import Backup, Repository, ms_of
from .sealing import Damaged
from .targets import Missing, TargetError

PRIMARY = "primary"
BEAT_S = 5.0  # between two signs of life
TRIES = 5  # to replace the object, while others do so too
MOST_ENDED = 1000  # terms that are remembered


class Superseded(TargetError):
    """Another copy of the folder has become the primary."""


class Ended(msgspec.Struct, rename="camel"):
    """A term that has ended."""

    term: int
    copy: str
    until: int  # the last moment that counts, epoch ms; 0: not known yet, all counts


class Primary(msgspec.Struct, rename="camel", kw_only=True):
    """The content of the object."""

    term: int
    copy: str
    process: str  # that ships
    address: str = ""  # where clients reach it
    base: str = ""  # the backup to which it adds changes
    until: int = 0  # all that was committed before is stored; epoch ms
    beat: int = 0  # increases while it lives
    stopped: bool = False  # it has ended cleanly, and everything is stored
    ended: list[Ended] = []

    def is_passed(self, copy: str) -> bool:
        """Whether another copy has taken over from that one."""
        return copy != self.copy and any(each.copy == copy for each in self.ended)

    def last_of(self, term: int) -> int | None:
        """The last moment of a term that counts, epoch ms; None: all of it does."""
        return next((each.until for each in self.ended if each.term == term and each.until), None)

    def counts(self, term: int, moment: int) -> bool:
        """Whether what was stored in a term, of that moment, counts."""
        last = self.last_of(term)
        return last is None or moment <= last


NOBODY = Primary(term=0, copy="", process="")


def read_primary(repository: Repository) -> tuple[Primary, str]:
    """The primary, and the tag of the object; NOBODY and "" if there has been no primary yet. TargetError."""
    try:
        sealed, tag = repository.target.read_tagged(PRIMARY)
    except Missing:
        return NOBODY, ""
    try:
        found = msgspec.json.decode(repository.sealer.open(PRIMARY, sealed), type=Primary)
    except (Damaged, msgspec.DecodeError) as error:
        raise TargetError(
            f"{repository.target.where}: {PRIMARY} is damaged, so who is the primary is not known: let only "
            "one server ship there, and remove that object"
        ) from error
    return found, tag


class Claim:
    """A copy of a folder wants to be the primary at a target, and stays it."""

    def __init__(self, repository: Repository, copy: str, address: str = "") -> None:
        self._repository = repository
        self._mine = Primary(term=0, copy=copy, process=secrets.token_hex(8), address=address)
        self._tag = ""

    @property
    def term(self) -> int:
        """Its term as the primary; 0 before `take`."""
        return self._mine.term

    def take(self) -> None:
        """Become the primary, or stay it after a restart. Superseded if another copy has taken over."""
        for _ in range(TRIES):
            found, tag = read_primary(self._repository)
            if found.is_passed(self._mine.copy):
                raise self._superseded(found)
            term, ended = found.term, found.ended
            if found.copy != self._mine.copy:
                term += 1
                if found.term:
                    ended = [*ended, Ended(found.term, found.copy, 0)][-MOST_ENDED:]
            wanted = msgspec.structs.replace(
                self._mine, term=term, ended=ended, beat=found.beat + 1, base=found.base, until=found.until
            )
            if self._put(wanted, tag):
                return
        raise TargetError(f"{self._repository.target.where}: {PRIMARY} is replaced all the time: try again")

    @property
    def is_open(self) -> bool:
        """Whether it is not said yet up to when the term before counts: see `close`."""
        ended = self._mine.ended
        return bool(ended) and not ended[-1].until

    def close(self, until: int) -> None:
        """What the primary before has stored until that moment counts, and nothing later."""
        if self.is_open:
            *before, last = self._mine.ended
            ended = [*before, Ended(last.term, last.copy, max(1, until))]
            self._replace(msgspec.structs.replace(self._mine, ended=ended))

    def beat(self, base: str, until: int, *, stopped: bool = False) -> None:
        """Give a sign of life. Superseded if another process has taken over."""
        self._replace(msgspec.structs.replace(self._mine, base=base, until=until, stopped=stopped))

    def check(self) -> None:
        """Raise Superseded if another process has taken over."""
        found, self._tag = read_primary(self._repository)
        if (found.copy, found.process) != (self._mine.copy, self._mine.process):
            raise self._superseded(found)

    def _replace(self, wanted: Primary) -> None:
        wanted.beat += 1
        if not self._put(wanted, self._tag):
            self.check()  # it may have been stored although the answer was lost
            if not self._put(wanted, self._tag):
                raise TargetError(f"{self._repository.target.where}: {PRIMARY} cannot be replaced")

    def _put(self, wanted: Primary, tag: str) -> bool:
        target, sealer = self._repository.target, self._repository.sealer
        body = sealer.seal(PRIMARY, msgspec.json.encode(wanted))
        if not (target.replace(PRIMARY, body, tag) if tag else target.create(PRIMARY, body)):
            return False
        stored, self._tag = target.read_tagged(PRIMARY)
        if stored != body:
            return False
        self._mine = wanted
        return True

    def _superseded(self, found: Primary) -> Superseded:
        where = self._repository.target.where
        return Superseded(superseded(where, found, self._mine.copy))


def superseded(where: str, found: Primary, copy: str) -> str:
    """What to say to a server that is not the primary any more."""
    if found.copy == copy:
        return f"{where}: another process ships the same folder: stop one of them"
    who = f"the server at {found.address}" if found.address else "another server"
    return (
        f"{where}: {who} has taken over (term {found.term}), so this one must not go on: it lacks what has "
        f"happened since; to make it the standby, start it with --follow {where} and another --data-dir"
    )


def newest(repository: Repository, until: str | None = None) -> Iterator[Backup]:
    """The backups that count, the newest first; ``until``: those that are not later than this id. Damaged."""
    primary, _ = read_primary(repository)
    for number in reversed(repository.ids()):
        if until is None or number <= until:
            backup = repository.backup(number)
            if primary.counts(backup.term, ms_of(number)):
                yield backup


def passed(repository: Repository) -> frozenset[str]:
    """The ids of backups that do not count. Damaged ones do."""
    primary, _ = read_primary(repository)
    if not primary.ended:
        return frozenset()
    return frozenset(
        found.id
        for found in repository.backups()
        if found.backup is not None and not primary.counts(found.backup.term, ms_of(found.id))
    )

"""A shard under test: commands go in encoded by `msgpack`, replies come out as a client reads them.

The one place of these tests that knows how a shard is opened, fed and committed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any, ClassVar

import msgpack
import msgspec
from engine.follower import Follower
from engine.tenancy import check_counts, one_tenant

from shardproc.core import Shard
from shardproc.replication.recorder import Recorder, recording

Request = dict[str, Any]
Answer = tuple[int, dict[str, Any]]  # connection, reply

START = 1_700_000_000_000
EPOCH = "router-1"
RESULTS = {"result", "values", "reqId"}
CODES = {"INVALID_DATA", "MEMORY_LIMIT", "SCHEDULE_CONFLICT", "SHARD_UNAVAILABLE", "STORAGE_DAMAGED"}
CODES |= {"STORAGE_FAILED", "STORAGE_FULL", "WAL_LIMIT"}
OF_64_BITS = (b"\xcf", b"\xd3")  # the first byte of an integer
PAYLOADS = RESULTS | {"data", "returnvalue"}


def nothing(loaded: int, total: int) -> None:
    """Nobody watches the progress of recovery."""


def decoded(reply: msgspec.Struct) -> dict[str, Any]:
    """A reply as it is on the wire, read by the independent decoder."""
    encoded = msgspec.msgpack.encode(reply)
    found = msgpack.unpackb(encoded, strict_map_key=False)
    assert isinstance(found, dict)
    if any(first in encoded for first in OF_64_BITS):  # else no integer is too long
        assert not list(too_long(found)), "numbers which some languages read as another type"
    if not found["ok"]:
        assert "code" in found, found
        # What engine tests compare is the text; what else a refusal says is tested with test_codes.py.
        for name in ("field", "value", "bound"):
            found.pop(name, None)
        if found["code"] not in CODES:
            del found["code"]
    return found


def too_long(value: Any, path: str = "") -> Iterator[str]:
    """Where integers beyond 32 bits are, outside of what clients have sent themselves."""
    if isinstance(value, dict):
        of_clients = PAYLOADS if value.keys() & {"createdAt", "eventType"} else RESULTS
        for name in value.keys() - of_clients:
            yield from too_long(value[name], f"{path}.{name}")
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            yield from too_long(entry, f"{path}[{index}]")
    elif isinstance(value, int) and not -(2**31) <= value < 2**32:
        yield f"{path}: {value}"


class Driver:
    """A shard and its clock."""

    kind = Shard
    options: ClassVar[dict[str, Any]] = {}  # of the shard, beside those that are asked for below

    def __init__(
        self,
        path: str = ":memory:",
        *,
        now: int = START,
        epoch: str = EPOCH,
        live: Collection[int] = (),
        full_sync: bool = False,
        shard: int = 0,
        shards: int = 1,
    ) -> None:
        self.path = path
        self.now = now
        self.epoch = epoch
        self.full_sync = full_sync
        self.place = (shard, shards)
        self.open(live)
        self.versions: dict[int, int] = {}
        self._req_ids = 0

    def open(self, live: Collection[int] = ()) -> None:
        shard, shards = self.place
        recorder = Recorder()
        self.shard = self.kind(
            self.path,
            full_sync=self.full_sync,
            shard=shard,
            shards=shards,
            factory=recording(recorder),
            **{"prepare": one_tenant, **self.options},
        )
        self.shard.recover(self.now, self.epoch, nothing)
        self.follower = Follower(self.shard, recorder)
        self.shard.engine.reattach(live, self.now)

    def restart(self) -> None:
        """What was not committed is lost, as after a crash; no connection has survived."""
        self.close()
        self.open()

    def restarted(self, *, live: Collection[int] = ()) -> Driver:
        """After a crash: what was committed is there, and of the connections only ``live``."""
        self.close()
        return Driver(self.path, now=self.now, live=live)

    # -- one command at a time ------------------------------------------------------------

    def execute(self, conn: int, payload: bytes, version: int = 2) -> list[Answer]:
        """Carry out one payload; the replies that it caused, which are not yet committed."""
        replies = self.shard.engine.out.replies
        before = len(replies)
        self.shard.execute(self.shard.client(conn, self.versions.get(conn, version)), payload, self.now)
        while self.shard.engine.work():
            pass
        return [(to, decoded(reply)) for to, reply in replies[before:]]

    def ask(self, conn: int = 1, **request: Any) -> dict[str, Any]:
        """One command and its one reply, committed; None-valued fields are left out."""
        self._req_ids += 1
        fields = {name: value for name, value in request.items() if value is not None}
        answers = self.execute(conn, msgpack.packb({**fields, "reqId": f"ask-{self._req_ids}"}))
        self.commit()
        mine = [reply for _, reply in answers if reply.pop("reqId", None) == f"ask-{self._req_ids}"]
        assert len(mine) == 1, answers
        return mine[0]

    def push(self, *, queue: str = "q", **fields: Any) -> str:
        """The id of a new job."""
        return str(self.ask(cmd="PUSH", queue=queue, **fields)["id"])

    def job(self, job_id: str) -> dict[str, Any]:
        """All that is shown of a job."""
        found = self.ask(cmd="GetJob", id=job_id)["job"]
        assert isinstance(found, dict)
        return found

    def state(self, job_id: str) -> str:
        return str(self.ask(cmd="GetState", id=job_id)["state"])

    def batch(self, requests: Iterable[Request], conn: int = 1) -> list[dict[str, Any]]:
        """Commands in one transaction, as one read from the socket is."""
        out = [reply for request in requests for _, reply in self.execute(conn, msgpack.packb(request))]
        self.commit()
        return out

    def look(self, conn: int, **request: Any) -> dict[str, Any]:
        """A question of the test itself, whose reply does not count among those to be sent."""
        replies = self.shard.engine.out.replies
        before = len(replies)
        ((_, reply),) = self.execute(conn, msgpack.packb(request))
        del replies[before:]
        assert reply["ok"], reply
        return reply

    def tick(self, to: int) -> list[Answer]:
        """Let it be ``to``; the replies to polls that this caused."""
        replies = self.shard.engine.out.replies
        before = len(replies)
        self.now = to
        engine = self.shard.engine
        engine.tick(to)
        while engine.next_deadline() <= to and not engine.state.long_works:  # what was too much for one tick
            engine.tick(to)
        return [(conn, decoded(reply)) for conn, reply in replies[before:]]

    def keep_up(self, ms: int) -> None:
        """Let time pass, with ticks where upkeep wants them."""
        end = self.now + ms
        while self.now < end:
            self.tick(min(end, max(self.now + 1, self.shard.engine.next_deadline())))
            self.commit()

    def returned(self, to: int) -> None:
        """Until ``to`` the shard could not hear anybody."""
        self.now = to
        self.shard.engine.resume_timeouts(to)

    def disconnect(self, conn: int, *, severed: bool = False, broken: bool = False) -> list[Answer]:
        """A connection ends."""
        replies = self.shard.engine.out.replies
        before = len(replies)
        self.shard.engine.disconnect(conn, self.now, severed=severed, broken=broken)
        return [(to, decoded(reply)) for to, reply in replies[before:]]

    def commit(self) -> list[Answer]:
        """Commit; the replies that may leave now."""
        replies = self.shard.commit()
        self.follower.follow()
        check_counts(self.shard.engine.state)
        return [(conn, decoded(reply)) for conn, reply in replies]

    # -- what it shows ----------------------------------------------------------------------

    def held(self) -> dict[int, set[str]]:
        """Which active jobs which connection holds; 0: nobody who is connected."""
        state = self.shard.engine.state
        found = {conn: {job.id for job in client.held} for conn, client in state.clients.items()}
        found[0] = {job.id for job in state.orphans}
        return {conn: ids for conn, ids in found.items() if ids}

    def rows(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        return self.shard.store.database.connection.execute(query, parameters).fetchall()

    def tamper(self, sql: str, *parameters: Any) -> None:
        """Change the file as no program does, and as if that had been replicated."""
        self.follower.check()
        self.follower.tamper(sql, parameters)

    def close(self) -> None:
        try:
            self.follower.check()
        finally:
            self.follower.close()
            self.shard.close()

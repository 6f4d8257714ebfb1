"""Jobs that belong to a database transaction: the transaction writes them into a table, and a relay sends
them to the server.

If the transaction is rolled back, its jobs are never added. If it is committed, they are added once the
server is available. The tables are those of `bunqueue.integrations.django.outbox` and
`bunqueue.integrations.sqlalchemy`.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, NamedTuple, ParamSpec, Protocol, Unpack, cast

import msgspec

from bunqueue.client.connection import requests
from bunqueue.client.connection.caller import Caller
from bunqueue.client.connection.endpoint_options import EndpointOptions, endpoint_of
from bunqueue.client.connection.options import Duration, reconnect_delay, seconds
from bunqueue.client.flow_plan import FlowJob
from bunqueue.client.options import checks
from bunqueue.client.options.job import JobOptions, job_data, wire_fields
from bunqueue.client.options.unique import keyed
from bunqueue.errors import BunqueueError, CommandFailed, OptionError, ShardUnavailable
from bunqueue.model.decoders import decoder
from bunqueue.protocol.commands import core, query
from bunqueue.worker.service import run_forever

logger = logging.getLogger("bunqueue.outbox")

FORGOTTEN_S = (
    240.0  # seconds after which the relay assumes that the server forgot a key; it keeps one for 300
)
MAX_DELAY = 30.0  # seconds between attempts while there are errors

P = ParamSpec("P")

_encode = msgspec.msgpack.Encoder().encode
_decode = decoder(core.Push).decode


class Row(NamedTuple):
    """A job in the table."""

    id: Any
    command: bytes
    """The command that adds it, see `row_of`."""
    written_at: float
    """Seconds since the epoch."""


class Batch:
    """Some rows, the oldest first. When the block ends, the outbox writes their outcomes."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows
        self._done: list[int] = []
        self._refused: list[tuple[int, str]] = []

    def done(self, row: Row) -> None:
        """Remove the row: the server has the job."""
        self._done.append(row.id)

    def refused(self, row: Row, why: str) -> None:
        """Keep the row for a person to look at. It is not tried again."""
        self._refused.append((row.id, why))


class Outbox(Protocol):
    """A table of jobs to add."""

    def batch(self, limit: int) -> AbstractContextManager[Batch]:
        """The oldest rows. Within the block, no transaction may be open that others wait for."""


class Typed(Protocol[P]):
    """A job of an app, whose arguments are checked: what `@app.job` makes of a function."""

    def job(self, *args: P.args, **kwargs: P.kwargs) -> FlowJob[Any]: ...


class NewRow(NamedTuple):
    """What an outbox writes for a job."""

    job_id: str
    queue: str
    name: str
    command: bytes


def row_of(what: Any, args: tuple[Any, ...], options: Mapping[str, Any]) -> NewRow:
    """The row for a job: `what` is a function of an app, whose arguments follow, a `FlowJob` that it has
    made, or the name of a queue, followed by the name and the data of a job. Raises OptionError,
    ArgumentsError, PayloadError or TypeError.
    """
    if isinstance(what, str):
        return _named_row(what, *args, **options)
    make = getattr(what, "job", None)
    made = what if isinstance(what, FlowJob) else make(*args, **options) if callable(make) else None
    if not isinstance(made, FlowJob) or (made is what and (args or options)):
        raise TypeError(
            f"{what!r} is no job for an outbox; give a function that @app.job has made one, with its "
            "arguments, what its job(...) returns, or the name of a queue"
        )
    if made.children:
        raise OptionError(f"{made!r}: jobs that wait for others are added with app.flows")
    data = job_data(made.data, f"the data of job {made.name!r}", declared=True)
    return _row(made.queue, made.name, data, made.options)


def _named_row(queue: str, name: str, data: object = None, **options: Unpack[JobOptions]) -> NewRow:
    return _row(queue, name, job_data(data, "the data of the job"), options)


def _row(queue: str, name: str, payload: msgspec.Raw, options: Mapping[str, Any]) -> NewRow:
    """The job gets an id here unless `options` have one, so the id is known before the job is added. `delay`
    and `ttl` count from now.
    """
    fields = {**keyed(wire_fields(options, {}), name, payload)}
    if "delay" in fields or "ttl" in fields:
        fields.setdefault("timestamp", time.time() * 1000)
    key = requests.new_key()
    job_id = cast(str, fields.setdefault("job_id", key))
    command = core.Push(
        queue=checks.queue_name(queue),
        name=checks.job_name(name),
        data=payload,
        idempotency_key=key,
        **fields,
    )
    return NewRow(job_id, queue, name, _encode(command))


class Relay:
    """Sends the jobs of an outbox to the server, in order. Several relays may share the work.

    A row is removed when the server has its job. If a relay dies in between, the next one adds the job again,
    with the same id and the same key. That adds nothing while the server knows either: for at least five
    minutes, and for as long as the job exists.
    """

    def __init__(
        self, outbox: Outbox, *, batch: int = 100, pause: Duration = 500, **place: Unpack[EndpointOptions]
    ) -> None:
        """`pause` is the time between two polls of the table after it was empty."""
        self._outbox = outbox
        self._batch = checks.whole("batch", batch)
        self._pause = seconds(pause, "pause")
        self._caller = Caller(endpoint_of(place))
        self._over: asyncio.Event | None = None
        self._stopped = False

    def run_once(self) -> int:
        """Send the available rows, at most one batch. Returns their number. Raises BunqueueError, or the
        errors of the database."""
        problem: BunqueueError | None = None
        with self._outbox.batch(self._batch) as batch:
            for row in batch.rows:
                try:
                    self._bring(_decode(row.command), time.time() - row.written_at)
                    batch.done(row)
                except (CommandFailed, msgspec.MsgspecError) as error:
                    if isinstance(error, ShardUnavailable):
                        problem = error
                        break
                    logger.error("a job of the outbox is refused, and stays there: %s", error)
                    batch.refused(row, str(error))
                except BunqueueError as error:
                    problem = error
                    break
        if problem is not None:
            raise problem
        return len(batch.rows)

    def _bring(self, command: core.Push, age: float) -> None:
        if age > FORGOTTEN_S and command.job_id is not None:
            found = self._caller.call(query.GetState(id=command.job_id))
            if found.state != "unknown":  # added by a relay that could not record it
                return
        self._caller.call(command)

    def close(self) -> None:
        """Close the connection."""
        self._caller.close()

    # -- as a service, for `bunqueue.run_forever`

    def run_forever(self) -> None:
        """Run until SIGTERM or SIGINT."""
        run_forever(self)

    def stop_soon(self, *, hurry: bool = False) -> None:
        """Have `serve` end."""
        self._stopped = True
        if self._over is not None:
            self._over.set()

    async def serve(self) -> BaseException | None:
        """Send jobs until `stop_soon` is called. Errors are logged and retried."""
        self._over, failures = asyncio.Event(), 0
        try:
            while not self._stopped:
                try:
                    found = await asyncio.to_thread(self.run_once)
                    pause, failures = (0.0 if found == self._batch else self._pause), 0
                except Exception as error:
                    failures += 1
                    pause = min(reconnect_delay(failures, random.random()), MAX_DELAY)
                    self._log_failure(error, failures)
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._over.wait()
        finally:
            await asyncio.to_thread(self.close)
        return None

    def _log_failure(self, error: Exception, failures: int) -> None:
        if failures == 1 and isinstance(error, BunqueueError):
            logger.warning("the outbox waits: %s", error)
        elif failures == 1:
            logger.exception("the outbox waits")

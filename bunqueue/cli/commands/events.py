"""``bunqueue events``: what happens in queues, as it happens."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bunqueue.model.events import NAMES, PUBLISHED
from bunqueue.settings import SettingsError

from ...readable import printable
from ..framework import completing, exits
from ..framework.session import Session
from ..framework.shared import verb
from ..framework.values import SPAN, WHEN, argument, begun, option, span, span_or_moment
from ..output.output import Output, Row, colourful, encoded, field, plain

if TYPE_CHECKING:
    from bunqueue.client.connection.transport import Endpoint
    from bunqueue.client.event_stream import QueueEvent

app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)

LOOK_S = 1.0
"""Between looks for new queues, when all are listened to."""
MAX_QUEUES = 200
"""Each takes a connection."""
BUFFER = 10_000
COLOURS = {
    "completed": "green",
    "failed": "red",
    "stalled": "red",
    "lost": "red",
    "pulled": "cyan",
    "progress": "cyan",
    "delayed": "yellow",
    "retried": "yellow",
}
DETAILS = ("data", "error", "terminal", "reason", "prev", "delay", "progress", "message", "count")

Queues = Annotated[
    list[str] | None, argument("[QUEUE]...", "Which queues. Default: all, also new ones.", completing.queues)
]
Types = Annotated[
    list[str] | None,
    option(
        "--type",
        "-T",
        about=f"Only these: {', '.join(PUBLISHED)}; may be repeated.",
        metavar="TYPE",
        complete=completing.one_of(*PUBLISHED),
    ),
]
Jobs = Annotated[
    list[str] | None, option("--job", "-j", about="Only of this job; may be repeated.", metavar="ID")
]
Count = Annotated[int | None, option("--count", "-n", about="So many events, then it ends.", metavar="N")]
Lasting = Annotated[float | None, option("--for", about="So long, then it ends.", metavar=SPAN, parser=span)]
Since = Annotated[
    Any,
    option(
        "--since",
        about="What has happened since so long ago, or a moment, from the log.",
        metavar=WHEN,
        parser=span_or_moment,
    ),
]
Follow = Annotated[
    bool,
    option(
        "--follow", "-f", about="Until Ctrl-C: with --since; else it is so unless --count or --for say else."
    ),
]


@verb(
    app,
    "bunqueue events --follow",
    "bunqueue events emails --type failed --type stalled",
    "bunqueue events emails --job 01980f2e-... --count 1 --for 30s",
    "bunqueue events emails --since 1h --type failed",
    "bunqueue events --json | jq 'select(.terminal)'",
    patient=True,
)
def events(
    session: Session,
    queues: Queues = None,
    types: Types = None,
    job_ids: Jobs = None,
    count: Count = None,
    lasting: Lasting = None,
    since: Since = None,
    follow: Follow = False,
) -> None:
    """Print what happens in queues from now on, one event a line; with --since, what has happened.

    Into a pipe go the moment in epoch ms, the type, the queue, the job, and details as JSON, separated by
    tabs. With --json each line is a JSON object. An event "lost" says that some are missing, as the
    connection broke, or the reader was too slow. A line on standard error says when listening has begun.

    With --since the server's log is read, and followed if --follow says so. It has more types of events, but
    not the data of jobs.

    Exit status: 5 when the time is over before --count events.
    """
    _check_types(types or [], PUBLISHED if since is None else NAMES)
    if count is not None and count < 1:
        raise SettingsError(f"--count: {count} is not allowed; give a whole number from 1 on")
    if follow and (count is not None or lasting is not None):
        raise SettingsError("--follow: --count and --for say when it ends; give one or the other")
    if since is not None and lasting is not None:
        raise SettingsError("--for: with --since it ends by itself; give --count or --follow")
    session.ping()
    for queue in queues or ():
        session.queue(queue)  # refuses what is no name
    if since is not None:
        _replay(session, queues, types, job_ids, begun(since), count, follow)
        return
    ear = _Ear(session, frozenset(types or ()), frozenset(job_ids or ()))
    try:
        enough = asyncio.run(ear.listen(queues or [], count, lasting))
    except KeyboardInterrupt:
        raise typer.Exit(exits.INTERRUPTED) from None
    if count is not None and not enough:
        raise typer.Exit(exits.TIMED_OUT)


def _check_types(types: list[str], known: tuple[str, ...]) -> None:
    for each in types:
        if each not in known:
            raise SettingsError(f"--type: {each!r} is not allowed; give one of {', '.join(known)}")


def _replay(
    session: Session,
    queues: list[str] | None,
    types: list[str] | None,
    jobs: list[str] | None,
    since: float,
    count: int | None,
    follow: bool,
) -> None:
    """Print from the log, which knows more kinds of events, but not the data of jobs."""
    from .event_log import replay

    one = jobs[0] if jobs and len(jobs) == 1 else None
    wanted = {"queues": queues or None, "types": types or None, "job_id": one}
    printed = 0

    def emit(event: Row) -> bool:
        nonlocal printed
        if not jobs or event.get("jobId") in jobs:
            _print(session.out, event)
            printed += 1
        return printed == count

    try:
        replay(session, wanted, since, follow, emit)
    except KeyboardInterrupt:
        raise typer.Exit(exits.INTERRUPTED) from None


def _print(out: Output, row: Row) -> None:
    out.line(row, _coloured(row) if out.is_terminal else _tabbed(row))


class _Ear:
    """Hears several queues at a time, and prints what is wanted."""

    def __init__(self, session: Session, types: frozenset[str], jobs: frozenset[str]) -> None:
        self._session = session
        self._endpoint: Endpoint = session.endpoint
        self._types = types
        self._jobs = jobs
        self._heard: asyncio.Queue[QueueEvent] = asyncio.Queue(BUFFER)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._looked = asyncio.Event()

    async def listen(self, queues: list[str], count: int | None, lasting: float | None) -> bool:
        """Whether ``count`` events came within ``lasting`` ms. Raises BunqueueError."""
        looking = None if queues else asyncio.create_task(self._look_for_queues())
        for queue in queues:
            await self._open(queue)
        where = f"queue {', '.join(queues)}" if queues else "all queues"
        if looking is not None:
            await self._first_look(looking)
        self._session.out.note(f"bunqueue: listening to {where}; Ctrl-C ends it")
        printing = asyncio.create_task(self._print(count))
        try:
            async with asyncio.timeout(None if lasting is None else lasting / 1000):
                await self._until_one_ends([printing, *([looking] if looking else [])])
        except TimeoutError:
            return False
        finally:
            everyone = [printing, *self._tasks.values(), *([looking] if looking else [])]
            for task in everyone:
                task.cancel()
            await asyncio.gather(*everyone, return_exceptions=True)
        return True

    async def _until_one_ends(self, tasks: list[asyncio.Task[None]]) -> None:
        """Until all is printed, or something is wrong."""
        while True:
            every = [*tasks, *self._tasks.values()]
            done, _ = await asyncio.wait(every, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
                return

    async def _print(self, count: int | None) -> None:
        left = count
        while left is None or left > 0:
            event = await self._heard.get()
            _print(self._session.out, plain(event))
            left = None if left is None else left - 1

    # -- hearing

    def _wants(self, event: QueueEvent) -> bool:
        return (not self._types or event.type in self._types) and (
            not self._jobs or event.job_id in self._jobs
        )

    async def _open(self, queue: str) -> None:
        """From the return on nothing of the queue is missed."""
        from bunqueue.client.event_stream import AsyncEventStream

        stream = AsyncEventStream(self._endpoint, queue, self._wants, BUFFER)
        await stream.open()
        self._tasks[queue] = asyncio.create_task(self._hear(stream))

    async def _hear(self, stream: Any) -> None:
        try:
            while (event := await stream.next()) is not None:
                await self._heard.put(event)
        finally:
            await stream.close()

    # -- all queues

    async def _look_for_queues(self) -> None:
        """Listen to queues as they come to be."""
        from ..framework.checked import EndpointAdmin

        async with EndpointAdmin(self._endpoint) as admin:
            while True:
                for queue in await admin.list_queues():
                    if queue.name not in self._tasks:
                        await self._open_another(queue.name)
                self._looked.set()
                await asyncio.sleep(LOOK_S)

    async def _open_another(self, name: str) -> None:
        if len(self._tasks) >= MAX_QUEUES:
            raise SettingsError(
                f"there are more than {MAX_QUEUES} queues; say which: bunqueue events QUEUE ..."
            )
        await self._open(name)

    async def _first_look(self, looking: asyncio.Task[None]) -> None:
        """Until it listens to all queues that there are."""
        seen = asyncio.create_task(self._looked.wait())
        await asyncio.wait({looking, seen}, return_when=asyncio.FIRST_COMPLETED)
        seen.cancel()
        if looking.done():
            looking.result()


def _details(row: Row) -> dict[str, Any]:
    return {name: row[name] for name in DETAILS if row.get(name) not in (None, False)}


def _tabbed(row: Row) -> str:
    details = _details(row)
    cells = (field(row["timestamp"]), row["eventType"], row["queue"], row.get("jobId") or "")
    return "\t".join(map(printable, (*cells, encoded(details) if details else "")))


def _coloured(row: Row) -> str:
    at = int(row["timestamp"])
    clock = time.strftime("%H:%M:%S", time.localtime(at / 1000))
    kind = f"{row['eventType']:<10}"
    if colourful():
        kind = typer.style(kind, fg=COLOURS.get(row["eventType"]))
    details = "  ".join(f"{name} {_short(value)}" for name, value in _details(row).items())
    line = f"{clock}.{at % 1000:03}  {kind}  {printable(row['queue'])}  {printable(row.get('jobId') or '')}"
    return f"{line}  {details}" if details else line


def _short(value: object) -> str:
    text = printable(value if isinstance(value, str) else encoded(value))
    return text if len(text) <= 100 else text[:100] + "…"

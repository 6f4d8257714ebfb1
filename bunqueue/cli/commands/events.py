"""``bunqueue events``: prints the events of queues as they happen."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bunqueue.model.events import NAMES, PUBLISHED
from bunqueue.server.settings import SettingsError
from bunqueue.text import printable

from ...protocol.encoded import for_people
from ..framework import completing, exits
from ..framework.session import Session
from ..framework.shared import verb
from ..framework.values import SPAN, WHEN, argument, begun, option, span, span_or_moment
from ..output.output import Output, Row, encoded, field, plain

if TYPE_CHECKING:
    from rich.text import Text

    from bunqueue.client.connection.transport import Endpoint
    from bunqueue.client.event_stream import QueueEvent

app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)

DISCOVERY_S = 1.0
"""The time between polls for new queues, when all queues are followed."""
MAX_QUEUES = 200
"""The maximum number of queues to follow: each takes a connection."""
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
DETAILS = (
    "data",
    "dataBytes",
    "error",
    "terminal",
    "reason",
    "prev",
    "delay",
    "progress",
    "message",
    "count",
)

Queues = Annotated[
    list[str] | None,
    argument("[QUEUE]...", "The queues. Default: all, including new ones.", completing.queues),
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
    list[str] | None, option("--job", "-j", about="Only events of this job; may be repeated.", metavar="ID")
]
Count = Annotated[int | None, option("--count", "-n", about="End after this many events.", metavar="N")]
Lasting = Annotated[float | None, option("--for", about="End after this time.", metavar=SPAN, parser=span)]
Since = Annotated[
    Any,
    option(
        "--since",
        about="Print past events from the log, from this long ago or from this moment.",
        metavar=WHEN,
        parser=span_or_moment,
    ),
]
Follow = Annotated[
    bool,
    option("--follow", "-f", about="Go on until Ctrl-C. The default without --since, --count and --for."),
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
    """Print the events of queues from now on, one per line; with --since, past events.

    A pipe gets the time in epoch ms, the type, the queue, the job, and details as JSON, separated by tabs.
    With --json each line is a JSON object. The event "lost" means that some events are missing, because the
    connection broke or the reader was too slow. A line on standard error reports when listening starts.

    With --since it reads the server's event log, and with --follow it then continues with new ones. The log
    has more types of events, but not the data of jobs.

    Exit status: 5 when the time is up before --count events.
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
        session.queue(queue)  # raises for an invalid name
    if since is not None:
        _replay(session, queues, types, job_ids, begun(since), count, follow)
        return
    listener = _Listener(session, frozenset(types or ()), frozenset(job_ids or ()))
    try:
        enough = asyncio.run(listener.listen(queues or [], count, lasting))
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
    """Print events from the log, which has more types of events, but not the data of jobs."""
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


class _Listener:
    """Listens to several queues at a time, and prints the wanted events."""

    def __init__(self, session: Session, types: frozenset[str], jobs: frozenset[str]) -> None:
        self._session = session
        self._endpoint: Endpoint = session.endpoint
        self._types = types
        self._jobs = jobs
        self._heard: asyncio.Queue[QueueEvent] = asyncio.Queue(BUFFER)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._discovered = asyncio.Event()

    async def listen(self, queues: list[str], count: int | None, lasting: float | None) -> bool:
        """Return whether ``count`` events arrived within ``lasting`` ms. Raises BunqueueError."""
        discovery = None if queues else asyncio.create_task(self._discover_queues())
        for queue in queues:
            await self._open(queue)
        where = f"queue {', '.join(queues)}" if queues else "all queues"
        if discovery is not None:
            await self._first_discovery(discovery)
        self._session.out.note(f"bunqueue: listening to {where}; Ctrl-C ends it")
        printing = asyncio.create_task(self._print(count))
        try:
            async with asyncio.timeout(None if lasting is None else lasting / 1000):
                await self._until_one_ends([printing, *([discovery] if discovery else [])])
        except TimeoutError:
            return False
        finally:
            everyone = [printing, *self._tasks.values(), *([discovery] if discovery else [])]
            for task in everyone:
                task.cancel()
            await asyncio.gather(*everyone, return_exceptions=True)
        return True

    async def _until_one_ends(self, tasks: list[asyncio.Task[None]]) -> None:
        """Wait until everything is printed, or a task fails."""
        while True:
            every = [*tasks, *self._tasks.values()]
            done, _ = await asyncio.wait(every, timeout=DISCOVERY_S, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
                return

    async def _print(self, count: int | None) -> None:
        left = count
        while left is None or left > 0:
            event = await self._heard.get()
            _print(self._session.out, plain(event))
            left = None if left is None else left - 1

    # -- listening

    def _wants(self, event: QueueEvent) -> bool:
        return (not self._types or event.type in self._types) and (
            not self._jobs or event.job_id in self._jobs
        )

    async def _open(self, queue: str) -> None:
        """Subscribe to a queue. Once this returns, no event is missed."""
        from bunqueue.client.event_stream import AsyncEventStream

        stream = AsyncEventStream(self._endpoint, queue, self._wants, BUFFER)
        await stream.open()
        self._tasks[queue] = asyncio.create_task(self._forward(stream))

    async def _forward(self, stream: Any) -> None:
        try:
            while (event := await stream.next()) is not None:
                await self._heard.put(event)
        finally:
            await stream.close()

    # -- all queues

    async def _discover_queues(self) -> None:
        """Listen to all queues, and to new ones as they appear."""
        from ..framework.checked import EndpointAdmin

        async with EndpointAdmin(self._endpoint) as admin:
            while True:
                for queue in await admin.list_queues():
                    if queue.name not in self._tasks:
                        await self._open_another(queue.name)
                self._discovered.set()
                await asyncio.sleep(DISCOVERY_S)

    async def _open_another(self, name: str) -> None:
        if len(self._tasks) >= MAX_QUEUES:
            raise SettingsError(
                f"there are more than {MAX_QUEUES} queues; say which: bunqueue events QUEUE ..."
            )
        await self._open(name)

    async def _first_discovery(self, discovery: asyncio.Task[None]) -> None:
        """Wait until it listens to all existing queues."""
        seen = asyncio.create_task(self._discovered.wait())
        await asyncio.wait({discovery, seen}, return_when=asyncio.FIRST_COMPLETED)
        seen.cancel()
        if discovery.done():
            discovery.result()


def _details(row: Row) -> dict[str, Any]:
    return {name: for_people(row[name]) for name in DETAILS if row.get(name) not in (None, False)}


def _tabbed(row: Row) -> str:
    details = _details(row)
    cells = (field(row["timestamp"]), row["eventType"], row["queue"], row.get("jobId") or "")
    return "\t".join(map(printable, (*cells, encoded(details) if details else "")))


def _coloured(row: Row) -> Text:
    from rich.text import Text

    at = int(row["timestamp"])
    clock = time.strftime("%H:%M:%S", time.localtime(at / 1000))
    kind = printable(row["eventType"])
    details = [f"{name} {_short(value)}" for name, value in _details(row).items()]
    line = Text(f"{clock}.{at % 1000:03}  ").append(f"{kind:<10}", style=COLOURS.get(kind))
    return line.append("  ".join(["", printable(row["queue"]), printable(row.get("jobId") or ""), *details]))


def _short(value: object) -> str:
    text = printable(value if isinstance(value, str) else encoded(value))
    return text if len(text) <= 100 else text[:100] + "…"

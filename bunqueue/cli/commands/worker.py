"""``bunqueue worker`` runs the workers of a program, in this process or in several that are kept running.
``bunqueue worker list`` lists the workers that the server knows.
"""

from __future__ import annotations

import math
import os
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer

from bunqueue.logs import FORM_VARIABLE, Form, Level, log_for_people
from bunqueue.server.settings import SettingsError
from bunqueue.text import plural

from ..framework.other_words import meant_by
from ..framework.session import Session
from ..framework.shared import (
    CONNECTION,
    NAMES,
    Noun,
    Verb,
    extend,
    given,
    keeper,
    parameters_of,
    point_at,
    verb,
)
from ..framework.values import SPAN, argument, option, span
from ..output.output import Column, Kind, plain
from ..output.terminal import give_streams_back

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from bunqueue.worker.options import WorkerOptions

    from ..framework.target import Described

LEVELS = get_args(Level)
FORMATS = get_args(Form)
NOT_PASSED_ON = {"processes", "reload", "overseen", "target", *NAMES}
"""The parameters that only the overseer uses, or that its processes get through the environment."""


def _text(name: str, about: str, *names: str, **bounds: float) -> Any:
    return typer.Option(*names, metavar=name, help=about, show_default=False, **cast(Any, bounds))


Target = Annotated[
    str,
    typer.Argument(
        metavar="MODULE[:NAME]", help="An app, a Worker, a list of them, or a function that takes a job."
    ),
]
Queues = Annotated[
    list[str] | None, _text("NAME", "The queue of a function; may be repeated.", "--queue", "-q")
]
Concurrency = Annotated[
    int | None, _text("N", "How many jobs run at a time in each process.", "--concurrency", "-c", min=1)
]
Order = Annotated[
    str | None,
    _text("even|strict|QUEUE=N,...", "Which of several queues is next; N: weights.", "--order"),
]
Processes = Annotated[
    int, typer.Option("--processes", "-p", metavar="N", min=1, help="The number of processes.")
]
RunIn = Annotated[str | None, _text("thread|process", "Where plain functions run.")]
Grace = Annotated[
    float | None, _text("MS", "How long running jobs may take to end after a stop signal.", min=0)
]
MaxJobs = Annotated[int | None, _text("N", "Replace a process after this many jobs.", min=1)]
MaxMemory = Annotated[int | None, _text("MIB", "Replace a process that takes more memory.", min=1)]
Name = Annotated[str | None, _text("NAME", "The name in the server's list of workers.")]
Folder = Annotated[str, typer.Option(metavar="DIR", help="The folder of the module.")]
Reload = Annotated[bool, typer.Option("--reload", help="Restart when a file below --app-dir changes.")]
LogLevel = Annotated[str, typer.Option(metavar="|".join(LEVELS))]
LogFormat = Annotated[
    str | None,
    _text(
        "|".join(FORMATS), f"Lines for people, or a JSON object a line. Default: {FORM_VARIABLE}, else text."
    ),
]


RUN = "run"
PASSED_ON = ("concurrency", "run_in", "grace", "max_jobs", "name")
WORKERS = (
    Column("name"),
    Column("hostname", title="host"),
    Column("pid", Kind.TEXT),
    Column("queues", Kind.DATA),
    Column("status", Kind.STATE),
    Column("activeJobs", Kind.NUMBER, "active"),
    Column("concurrency", Kind.NUMBER, "of"),
    Column("processedJobs", Kind.NUMBER, "done"),
    Column("failedJobs", Kind.NUMBER, "failed"),
    Column("uptime", Kind.SPAN, "up"),
    Column("id", Kind.ID),
)
PATIENCE_MS = 15_000  # workers send heartbeats every 3 s, those of other libraries less often
POLL_S = 0.2
Worker = Annotated[
    str, argument("WORKER", "The id of a worker, or the name of several: see bunqueue worker list.")
]
WorkerOrHost = Annotated[
    str,
    argument("WORKER", "The id, name or host of workers: see bunqueue worker list."),
]
Jobs = Annotated[int, argument("N", "How many jobs run at a time.")]
Within = Annotated[float, option("--within", metavar=SPAN, about="How long to wait for it.", parser=span)]
OfQueue = Annotated[str | None, _text("QUEUE", "Only workers of this queue.", "--queue", "-q")]


class _RunByDefault(Noun):
    """``worker tasks:app`` is ``worker run tasks:app``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = args and (args[0] in self.commands or args[0] in ("--help", "-h"))
        if args and not known and meant_by("worker", args[0]) is None:
            args = [RUN, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_RunByDefault,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Run the workers of a program; list, pause and stop those that the server knows.\n\n"
    "bunqueue worker tasks:app is the same as bunqueue worker run tasks:app.",
)
app.callback()(keeper())


def _run_command(
    *,
    target: Target,
    queue: Queues = None,
    concurrency: Concurrency = None,
    order: Order = None,
    processes: Processes = 1,
    run_in: RunIn = None,
    grace: Grace = None,
    max_jobs: MaxJobs = None,
    max_memory: MaxMemory = None,
    name: Name = None,
    app_dir: Folder = ".",
    reload: Reload = False,
    log_level: LogLevel = "info",
    log_format: LogFormat = None,
    overseen: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Declare the parameters of the command, besides the connection options."""


def _order(text: str | None) -> Any:
    """The order in the form that the option of a worker takes, which refuses unknown values."""
    if text is None or "=" not in text:
        return text
    pairs = [part.rpartition("=") for part in text.split(",")]
    if len({queue for queue, _, _ in pairs}) < len(pairs):  # otherwise one of two weights would be dropped
        return text
    return {queue: int(weight) if weight.isdecimal() else weight for queue, _, weight in pairs}


def _worker(context: typer.Context, **flags: Any) -> None:
    """Run workers until SIGTERM or SIGINT; a second signal does not wait for running jobs.

    Exit status: 0 after a signal; 75 to be replaced (--max-jobs, --max-memory); 1 for errors that may pass.
    A restart does not help after 2 (wrong target or flag) or 78 (the server refuses the token or a schedule).
    """
    logging = _logging(flags["log_level"], flags["log_format"])
    point_at(given(context, flags))
    if flags["processes"] > 1 or flags["reload"]:
        with logging:
            pass
        raise typer.Exit(_oversee(context, flags["processes"], flags["app_dir"] if flags["reload"] else None))
    from ..framework.target import load, services_of

    memory = flags["max_memory"]
    options: dict[str, Any] = {key: flags[key] for key in PASSED_ON}
    options["order"] = _order(flags["order"])
    options["max_memory"] = None if memory is None else memory << 20
    chosen = {key: value for key, value in options.items() if value is not None}
    sys.path.insert(0, os.path.abspath(flags["app_dir"]))
    give_streams_back()
    with logging:
        found = load(flags["target"])
    services = services_of(found, flags["target"], flags["queue"] or [], cast("WorkerOptions", chosen))
    raise typer.Exit(_run(services, overseen=flags["overseen"]))


extend(_worker, parameters_of(_run_command), CONNECTION)
_EXAMPLES = "\n".join(
    (
        "bunqueue worker tasks:app --processes 4",
        "bunqueue worker tasks:send --queue emails --concurrency 20 --reload",
    )
)
app.command(RUN, cls=Verb, epilog=_EXAMPLES)(_worker)


@verb(app, "bunqueue worker list", "bunqueue worker list --queue emails", name="list")
def list_(session: Session, queue: OfQueue = None) -> None:
    """List the workers that have registered with the server, all or those of one queue."""
    found = session.admin.list_workers(queue)
    rows = [plain(each) | ({"status": "paused"} if each.paused else {}) for each in found]
    session.out.rows(rows, WORKERS, none="no worker has made itself known")


@verb(
    app,
    "bunqueue worker pause mailer",
    "bunqueue worker pause mailer@web1:4711-8c1f",
    name="pause",
)
def pause(session: Session, worker: Worker, within: Within = PATIENCE_MS) -> None:
    """Have a worker take no more jobs; it finishes those that it has. Waits until it has confirmed."""
    _control(session, worker, within, "paused", paused=True)


@verb(app, "bunqueue worker resume mailer", name="resume")
def resume(session: Session, worker: Worker, within: Within = PATIENCE_MS) -> None:
    """Have a paused worker take jobs again. Waits until it has confirmed."""
    _control(session, worker, within, "resumed", paused=False)


@verb(app, "bunqueue worker concurrency mailer 20", name="concurrency")
def concurrency(session: Session, worker: Worker, jobs: Jobs, within: Within = PATIENCE_MS) -> None:
    """Have a worker run another number of jobs at a time, until it ends. Waits until it has confirmed."""
    _control(session, worker, within, f"set to {jobs} jobs at a time", concurrency=jobs)


@verb(app, "bunqueue worker stop mailer", "bunqueue worker stop web1", name="stop")
def stop(session: Session, worker: WorkerOrHost, within: Within = 60_000) -> None:
    """Stop a worker: it takes no more jobs, and its running jobs have its grace to end. Waits for its end."""
    _stop(session, worker, "grace", within)


@verb(app, "bunqueue worker drain mailer --within 2h", name="drain")
def drain(session: Session, worker: WorkerOrHost, within: Within = math.inf) -> None:
    """Stop a worker once its running jobs have ended, however long they take. Waits for its end."""
    _stop(session, worker, "drain", within)


def _stop(session: Session, worker: str, how: Any, within: float) -> None:
    """Ask for the end of the worker with that id, or all with that name or on that host, and wait for it."""
    from bunqueue.errors import NotFound, ResultTimeout

    listed = session.admin.list_workers()
    ids = [each.id for each in listed if worker in (each.id, each.name, each.hostname)]
    if not ids:
        raise NotFound(f"there is no worker {worker!r}; bunqueue worker list shows them")
    for each in ids:
        with suppress(NotFound):  # it has left meanwhile
            session.admin.control_worker(each, stop=how)
    end = time.monotonic() + within / 1000
    while left := [each for each in session.admin.list_workers() if each.id in ids]:
        if time.monotonic() >= end:
            running = sum(each.active_jobs for each in left)
            raise ResultTimeout(
                f"{len(left)} of {len(ids)} workers have not ended yet, such as {left[0].id}; they run "
                f"{plural(running)}, and end after them"
            )
        time.sleep(POLL_S)
    many = worker if len(ids) == 1 else f"{len(ids)} workers of {worker}"
    session.out.done(f"{many}: stopped", {"workers": ids, "stop": how})


def _control(session: Session, worker: str, within: float, done: str, **desired: Any) -> None:
    """Ask the worker with that id, or all with that name, and wait until they confirm."""
    from bunqueue.errors import NotFound, ResultTimeout

    ids = [each.id for each in session.admin.list_workers() if worker in (each.id, each.name)]
    if not ids:
        raise NotFound(f"there is no worker {worker!r}; bunqueue worker list shows them")
    for each in ids:
        session.admin.control_worker(each, **desired)
    end = time.monotonic() + within / 1000
    while left := _unlike(session, ids, desired):
        if time.monotonic() >= end:
            raise ResultTimeout(
                f"{len(left)} of {len(ids)} workers have not heard yet, such as {left[0].id}; they do with "
                "their next heartbeat, if their library knows of it"
            )
        time.sleep(POLL_S)
    many = worker if len(ids) == 1 else f"{len(ids)} workers called {worker}"
    session.out.done(f"{many}: {done}", {"workers": ids, **desired})


def _unlike(session: Session, ids: list[str], desired: dict[str, Any]) -> list[Any]:
    """The workers that do not yet have the desired state, and have not left."""
    listed = [each for each in session.admin.list_workers() if each.id in ids]
    return [each for each in listed if any(getattr(each, name) != value for name, value in desired.items())]


def _logging(level: str, form: str | None) -> AbstractContextManager[None]:
    """Configure logging while the program is imported, which may configure it as well."""
    origin = "--log-format"
    if form is None:
        origin, form = FORM_VARIABLE, os.environ.get(FORM_VARIABLE, "text")
    for name, value, known in (("--log-level", level, LEVELS), (origin, form, FORMATS)):
        if value not in known:
            raise SettingsError(f"{name}: {value!r} is not allowed; give one of {', '.join(known)}")
    from bunqueue.worker.log_context import JobLogFilter

    from ..worker_pool.processes import report_to_log

    if form == "json":
        report_to_log()
    return log_for_people(cast(Level, level), cast(Form, form), JobLogFilter())


def _oversee(context: typer.Context, processes: int, watched: str | None) -> int:
    """Run this command in child processes."""
    from ..worker_pool.file_changes import changes
    from ..worker_pool.processes import oversee, report

    many = f"{processes} processes" if processes > 1 else "one process"
    report(f"{many}, restarted when a file changes" if watched else many)
    flags = [str(context.params["target"]), "--overseen"]
    for key, value in context.params.items():
        for each in value if isinstance(value, list | tuple) else [value]:
            if each is not None and key not in NOT_PASSED_ON:
                flags += [f"--{key.replace('_', '-')}", str(each)]
    command = [sys.executable, "-m", "bunqueue", "worker", RUN, *flags]
    return oversee(command, processes, None if watched is None else lambda: changes([watched]))


def _run(services: list[Described], *, overseen: bool) -> int:
    from bunqueue.errors import (
        AuthError,
        BunqueueError,
        OptionError,
        ProcessBroken,
        ScheduleConflict,
        TlsError,
    )
    from bunqueue.worker.service import run_forever

    from ..worker_pool.processes import BAD_CONFIG, NOT_REPLACED, RECYCLED, end_with_overseer, report

    for service in services:
        for line in service.describe():
            report(line)
    if overseen:
        end_with_overseer()
    else:
        report("stop it with Ctrl-C; once more does not wait for running jobs")
    try:
        run_forever(*services)
    except BunqueueError as error:
        report(f"{type(error).__name__}: {error}")
        hopeless = isinstance(error, AuthError | TlsError | OptionError | ProcessBroken | ScheduleConflict)
        return BAD_CONFIG if hopeless else 1
    recycle_reason = next((service.recycle_reason for service in services if service.recycle_reason), None)
    if recycle_reason is not None:
        report(f"to be replaced: {recycle_reason}")
    if overseen and any(service.asked_to_stop for service in services):
        return NOT_REPLACED
    return 0 if recycle_reason is None else RECYCLED

"""``bunqueue worker``: runs the workers of a program, in this process or in several that are kept running."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from bunqueue.settings import SettingsError

from .server import app

if TYPE_CHECKING:
    from bunqueue.client.worker_options import WorkerOptions

LEVELS = ("debug", "info", "warning", "error")
NOT_PASSED_ON = {"processes", "reload", "url", "host", "port", "token", "overseen", "target"}
"""Of the parameters: what concerns the overseer alone, or is in the environment."""


def _text(name: str, about: str, *names: str) -> Any:
    return typer.Option(*names, metavar=name, help=about, show_default=False)


Target = Annotated[
    str,
    typer.Argument(
        metavar="MODULE[:NAME]", help="An app, a Worker, a list of them, or a function that takes a job."
    ),
]
Queues = Annotated[list[str] | None, _text("NAME", "Of a function: whose jobs it runs.", "--queue", "-q")]
Concurrency = Annotated[int | None, _text("N", "Jobs at a time, in each process.", "--concurrency", "-c")]
Processes = Annotated[
    int, typer.Option("--processes", "-p", metavar="N", min=1, help="Processes that do the same work.")
]
RunIn = Annotated[str | None, _text("thread|process", "Where plain functions run.")]
Grace = Annotated[float | None, _text("MS", "How long running jobs may take to end at a stop.")]
MaxJobs = Annotated[int | None, _text("N", "After so many a process is replaced.")]
MaxMemory = Annotated[int | None, _text("MIB", "Beyond that a process is replaced.")]
Name = Annotated[str | None, _text("NAME", "In the server's list of workers.")]
Url = Annotated[str | None, _text("URL", "bunqueue://TOKEN@HOST:PORT, where the program names no server.")]
Host = Annotated[str | None, _text("HOST", "Instead of --url.")]
Port = Annotated[int | None, _text("PORT", "Instead of --url.")]
Token = Annotated[str | None, _text("TOKEN", "Others see it; the variable BUNQUEUE_TOKEN they do not.")]
Folder = Annotated[str, typer.Option(metavar="DIR", help="Where the module is.")]
Reload = Annotated[bool, typer.Option("--reload", help="Start anew when a file below --app-dir changes.")]
Level = Annotated[str, typer.Option(metavar="|".join(LEVELS))]


@app.command()
def worker(
    context: typer.Context,
    target: Target,
    queue: Queues = None,
    concurrency: Concurrency = None,
    processes: Processes = 1,
    run_in: RunIn = None,
    grace: Grace = None,
    max_jobs: MaxJobs = None,
    max_memory: MaxMemory = None,
    name: Name = None,
    url: Url = None,
    host: Host = None,
    port: Port = None,
    token: Token = None,
    app_dir: Folder = ".",
    reload: Reload = False,
    log_level: Level = "info",
    overseen: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Run workers until SIGTERM or SIGINT; a second signal does not wait for running jobs.

    Exit status: 0 stopped; 75 worn out, start it again; 2 for a wrong target or flag and 78 when the server
    refuses the token, where starting again would not help; 1 for anything else.
    """
    _configure_logging(log_level)
    _point_at(url, host, port, token)
    if processes > 1 or reload:
        raise typer.Exit(_oversee(context, processes, app_dir if reload else None))
    options = {
        "concurrency": concurrency,
        "run_in": run_in,
        "grace": grace,
        "max_jobs": max_jobs,
        "max_memory": None if max_memory is None else max_memory << 20,
        "name": name,
    }
    given = {key: value for key, value in options.items() if value is not None}
    sys.path.insert(0, os.path.abspath(app_dir))
    raise typer.Exit(_run(target, queue or [], given, overseen=overseen))


def _configure_logging(level: str) -> None:
    if level not in LEVELS:
        raise SettingsError(f"--log-level: {level!r} is not allowed; give one of {', '.join(LEVELS)}")
    layout = "%(asctime)s %(levelname)s %(name)s %(message)s"
    logging.basicConfig(level=level.upper(), format=layout, stream=sys.stderr)


def _point_at(url: str | None, host: str | None, port: int | None, token: str | None) -> None:
    """Where the server is, for everything in this process and its children that does not say it itself."""
    from bunqueue.client.address import TOKEN_VARIABLE, URL_VARIABLE
    from bunqueue.client.transport import HOST, PORT

    if host is not None or port is not None:
        if url is not None:
            raise SettingsError("--url says what --host and --port say; give one or the other")
        where = f"[{host}]" if host and ":" in host else host or HOST
        url = f"bunqueue://{where}:{PORT if port is None else port}"
    if url is not None:
        os.environ[URL_VARIABLE] = url
    if token is not None:
        os.environ[TOKEN_VARIABLE] = token


def _oversee(context: typer.Context, processes: int, watched: str | None) -> int:
    """Run this command in other processes."""
    from .changes import changes
    from .crew import oversee, say

    many = f"{processes} processes" if processes > 1 else "one process"
    say(f"{many}, started anew when a file changes" if watched else many)
    flags = [str(context.params["target"]), "--overseen"]
    for key, value in context.params.items():
        for each in value if isinstance(value, list | tuple) else [value]:
            if each is not None and key not in NOT_PASSED_ON:
                flags += [f"--{key.replace('_', '-')}", str(each)]
    command = [sys.executable, "-m", "bunqueue", "worker", *flags]
    return oversee(command, processes, None if watched is None else lambda: changes([watched]))


def _run(target: str, queues: list[str], options: dict[str, Any], *, overseen: bool) -> int:
    from bunqueue.client.service import run_forever
    from bunqueue.errors import AuthError, BunqueueError, OptionError, ProcessBroken, TlsError

    from .crew import BAD_CONFIG, WORN_OUT, end_with_overseer, say
    from .target import load, services_of

    services = services_of(load(target), target, queues, cast("WorkerOptions", options))
    for service in services:
        for line in service.describe():
            say(line)
    if overseen:
        end_with_overseer()
    else:
        say("stop it with Ctrl-C; once more does not wait for running jobs")
    try:
        run_forever(*services)
    except BunqueueError as error:
        say(f"{type(error).__name__}: {error}")
        hopeless = isinstance(error, AuthError | TlsError | OptionError | ProcessBroken)
        return BAD_CONFIG if hopeless else 1
    worn_out = next((service.worn_out for service in services if service.worn_out), None)
    if worn_out is not None:
        say(f"to be replaced: {worn_out}")
    return 0 if worn_out is None else WORN_OUT

"""The program ``bunqueue``: its commands, and where they are. A command's module is loaded when it is called.

The table holds what the list of commands says, so that ``bunqueue --help`` loads none of them.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, MutableMapping
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.main import get_group

from .framework.shared import Noun, extend, given, refuse_shared


class Entry(NamedTuple):
    """Where a command is: ``app`` of a module; ``flat``: it is one of several in that; ``local``: it talks to
    no server."""

    module: str
    about: str
    flat: bool = False
    local: bool = False


COMMANDS = {
    "start": Entry("server", "Start the server.", True, True),
    "worker": Entry("worker", "Run workers of a program, or list those that the server knows."),
    "push": Entry("push", "Add a job to a queue, or one for each line of a file.", True),
    "pull": Entry("worker_commands", "Take the next job of a queue.", True),
    "ack": Entry("worker_commands", "Complete a job that was pulled.", True),
    "fail": Entry("worker_commands", "Report that a job that was pulled has failed.", True),
    "heartbeat": Entry("worker_commands", "Keep a job that was pulled: renew its lock.", True),
    "job": Entry("job", "Look at a job, wait for it, change it, cancel it."),
    "flow": Entry("flow", "Flows, jobs that wait for each other: add one, and see how far it is."),
    "queue": Entry("queue", "List queues; pause, count, clean, drain, remove one."),
    "dlq": Entry("dlq", "Dead letters: list, retry, purge them."),
    "cron": Entry("cron", "Schedules: list, add, run, pause, delete them, and see when they run."),
    "rate-limit": Entry("limits.rate_limit", "How fast jobs of a queue may start."),
    "concurrency": Entry("limits.concurrency", "How many jobs of a queue may run at a time."),
    "group": Entry("limits.group", "Groups of jobs: list, pause and limit them."),
    "stall": Entry("limits.stall", "When running jobs of a queue count as stalled."),
    "webhook": Entry("webhook", "Webhooks: list, add, remove them, switch them on and off."),
    "events": Entry("events", "Print what happens in queues, as it happens.", True),
    "top": Entry("top.screen", "Watch the server live: throughput, queues, workers, shards.", True),
    "stats": Entry("monitor", "Print how many jobs there are, and how fast they come and go.", True),
    "shards": Entry("monitor", "List the shards, and how they are.", True),
    "metrics": Entry("monitor", "Print all numbers as Prometheus reads them.", True),
    "health": Entry("monitor", "Say whether the server is there and can store everything.", True),
    "ping": Entry("monitor", "Say how long the server takes to answer.", True),
    "doctor": Entry("doctor", "Look for what commonly goes wrong.", True),
    "config": Entry("config", "Look at the settings of the server.", local=True),
    "reshard": Entry("data_folder.reshard", "Change the number of shards of a data folder.", True, True),
    "snapshot": Entry("data_folder.snapshot", "Copy a data folder, while its server works, too.", True, True),
    "adopt": Entry(
        "data_folder.adopt", "Make the file of embedded queues the data folder of a server.", True, True
    ),
    "accept-loss": Entry(
        "data_folder.accept_loss", "Let a shard begin empty whose file is lost.", True, True
    ),
    "analytics": Entry("analytics", "Figures, charts and history of queues, with Spark.", local=True),
    "completion": Entry("completion", "Print what a shell needs to complete commands.", True, True),
    "version": Entry("server", "Print the version.", True, True),
}


def load(name: str) -> Any:
    """The command of that name."""
    entry = COMMANDS[name]
    group: Any = get_group(import_module(f"{__package__}.commands.{entry.module}").app)
    if entry.flat:
        return group.commands[name]
    group.name = name
    return group


class _Loaded(MutableMapping[str, Any]):
    """The commands, each loaded when it is first asked for."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in COMMANDS:
            raise KeyError(name)
        if name not in self._made:
            self._made[name] = load(name)
        return self._made[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._made[name] = command

    def __delitem__(self, name: str) -> None:
        del self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class _Program(Noun):
    """The root of all commands."""

    def __init__(self, **attributes: Any) -> None:
        attributes["commands"] = {}
        super().__init__(**attributes)
        self.commands = _Loaded()

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        if name in COMMANDS and COMMANDS[name].local:
            refuse_shared(name, ctx.params)
        return name, command, rest

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.about) for name, entry in COMMANDS.items()])


def _print_version(wanted: bool) -> None:
    if wanted:
        from .commands.server import version

        version()
        raise typer.Exit


app = typer.Typer(
    cls=_Program,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: the drawn one takes longer to load
    context_settings={"max_content_width": 120, "help_option_names": ["--help", "-h"]},
    help="A job queue: its server, its workers, and all that can be done with queues and jobs.\n\n"
    "bunqueue COMMAND --help says more about each, with examples. Commands that talk to a server take --url, "
    "--host, --port, --token, --tls... and --json, anywhere on the line.",
)
_VERSION = typer.Option(
    "--version", help="Print the version and leave.", callback=_print_version, is_eager=True
)


def _root(context: typer.Context, show_version: bool = False, **shared: Any) -> None:
    context.obj = given(context, shared)


extend(
    _root,
    [
        inspect.Parameter(
            "show_version",
            inspect.Parameter.KEYWORD_ONLY,
            default=False,
            annotation=Annotated[bool, _VERSION],
        )
    ],
    hidden=True,
)
app.callback()(_root)

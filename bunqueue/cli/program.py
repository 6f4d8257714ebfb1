"""The program ``bunqueue``: its commands and their modules. A command's module is loaded when it is called.

The table has the text for the list of commands, so that ``bunqueue --help`` loads no command.
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
    """The location of a command: ``app`` of a module. ``flat``: the app has several commands. ``local``: the
    command does not connect to a server."""

    module: str
    about: str
    flat: bool = False
    local: bool = False


COMMANDS = {
    "start": Entry("server", "Start the server.", True, True),
    "worker": Entry("worker", "Run the workers of a program; list, pause or stop workers."),
    "push": Entry("push", "Add a job to a queue, or one for each line of a file.", True),
    "pull": Entry("pull_ack_fail", "Take the next job of a queue.", True),
    "ack": Entry("pull_ack_fail", "Complete a pulled job.", True),
    "fail": Entry("pull_ack_fail", "Report that a pulled job has failed.", True),
    "heartbeat": Entry("pull_ack_fail", "Keep a pulled job: renew its lock.", True),
    "job": Entry("job", "Show a job, wait for it, change it, cancel it."),
    "bulk": Entry("bulk", "Retry, cancel, remove, prioritise or move all jobs that a search finds."),
    "flow": Entry("flow", "Flows, jobs that wait for each other: list, add, show, close, cancel or retry."),
    "workflow": Entry("workflow", "Workflows: start, list and show them; signal, cancel, retry or undo one."),
    "queue": Entry("queue", "List queues; pause, count, clean, drain or remove one."),
    "dlq": Entry("dlq", "Dead letters: list, retry or purge them."),
    "errors": Entry("errors", "What fails: errors in groups; mute or watch them."),
    "function": Entry("function", "Functions that apps have declared: list, show, declare or remove them."),
    "cron": Entry("cron", "Schedules: list, add, run, pause or delete them, and show when they run."),
    "rate-limit": Entry("limits.rate_limit", "How fast jobs of a queue may start."),
    "concurrency": Entry("limits.concurrency", "How many jobs of a queue may run at a time."),
    "group": Entry("limits.group", "Groups of jobs: list, pause or limit them."),
    "breaker": Entry("limits.breaker", "Circuit breakers: jobs rest when too many of them fail."),
    "bounds": Entry("limits.bounds", "How much may wait in a queue, and how long completed jobs are kept."),
    "stall": Entry("limits.stall", "When running jobs of a queue count as stalled."),
    "webhook": Entry("webhook", "Webhooks: list, add or remove them, switch them on and off."),
    "events": Entry("events", "Print the events of queues as they happen.", True),
    "top": Entry("top.screen", "Watch the server live: throughput, queues, workers, shards.", True),
    "stats": Entry("monitor", "Print the number of jobs, and how fast they are pushed and pulled.", True),
    "shards": Entry("monitor", "List the shards and their condition.", True),
    "metrics": Entry("monitor", "Print all metrics in the Prometheus format.", True),
    "health": Entry("monitor", "Check that the server is up and can store everything.", True),
    "ping": Entry("monitor", "Measure how long the server takes to answer.", True),
    "mcp": Entry("mcp", "Let assistants use the server: a server of the Model Context Protocol.", True),
    "cluster": Entry("cluster", "The hosts of a cluster: show them, check them, move shards between them."),
    "promote": Entry("promote", "Make a standby the primary.", True),
    "call": Entry("call", "Send any command of the protocol by its name.", True),
    "keys": Entry("keys", "Which keys of encryption the stored payloads need.", True),
    "doctor": Entry("doctor", "Look for common problems.", True),
    "audit": Entry("audit", "Who changed what: list or follow the trail, verify it.", local=True),
    "identity": Entry(
        "identity", "Who may use the server, and for what: list, add, rotate, revoke.", local=True
    ),
    "config": Entry("config", "Show the settings of the server.", local=True),
    "reshard": Entry("data_folder.reshard", "Change the number of shards of a data folder.", True, True),
    "snapshot": Entry("data_folder.snapshot", "Copy a data folder, even while its server runs.", True, True),
    "backup": Entry("backup.program", "Backups: make, list, verify and prune them.", local=True),
    "restore": Entry("backup.restore", "Make a data folder from a backup, and prove it good.", True, True),
    "adopt": Entry(
        "data_folder.adopt", "Turn the file of embedded queues into a server's data folder.", True, True
    ),
    "accept-loss": Entry(
        "data_folder.accept_loss", "Let a shard whose file is lost start empty.", True, True
    ),
    "store": Entry(
        "store.program", "A store in PostgreSQL: make, check and verify it; move jobs in and out.", local=True
    ),
    "analytics": Entry("analytics", "Statistics, charts and history of queues.", local=True),
    "completion": Entry("completion", "Print the completion script for a shell.", True, True),
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


SECTIONS = {
    "Run": ("start", "worker", "mcp"),
    "Jobs": ("push", "job", "bulk", "flow", "workflow", "cron", "pull", "ack", "fail", "heartbeat"),
    "Queues": (
        "queue",
        "dlq",
        "errors",
        "function",
        "group",
        "rate-limit",
        "concurrency",
        "breaker",
        "bounds",
        "stall",
        "webhook",
    ),
    "Watch": ("top", "events", "stats", "metrics", "health", "ping", "shards", "doctor", "analytics"),
    "Operate": (
        "cluster",
        "promote",
        "store",
        "backup",
        "restore",
        "snapshot",
        "adopt",
        "reshard",
        "accept-loss",
        "identity",
        "audit",
        "keys",
        "config",
        "call",
    ),
    "This program": ("completion", "version"),
}
"""How the help arranges the commands; each is in one section."""


class _Loaded(MutableMapping[str, Any]):
    """The commands, each loaded on first use."""

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
    """The root group."""

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
        width = max(map(len, COMMANDS))
        for title, names in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), COMMANDS[name].about) for name in names])


def _print_version(wanted: bool) -> None:
    if wanted:
        from .commands.server import version

        version()
        raise typer.Exit


app = typer.Typer(
    cls=_Program,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: rich takes longer to load
    context_settings={"max_content_width": 120, "help_option_names": ["--help", "-h"]},
    help="A job queue: its server, its workers, and commands for queues and jobs.\n\n"
    "bunqueue COMMAND --help explains each command, with examples. Commands that talk to a server take "
    "--url, --host, --port, --token, --tls... and --json, anywhere on the line.",
)
_VERSION = typer.Option(
    "--version", help="Print the version and exit.", callback=_print_version, is_eager=True
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

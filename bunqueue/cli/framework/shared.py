"""The options of every verb that talks to a server: the server's address, and ``--json``.

They are declared only here. ``verb`` adds them to a function, ``noun`` to a group of verbs, so they may
appear anywhere on the line: ``bunqueue --json queue list`` and ``bunqueue queue list --json`` are the same.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, TypeVar

import typer

from bunqueue.errors import BunqueueError, OptionError
from bunqueue.server.settings import SettingsError

from ..output.output import pipe_closed
from .other_words import meant_by
from .reading import PlainCommand, PlainGroup
from .session import Session
from .token_file import token_in
from .values import number, whole

F = TypeVar("F", bound=Callable[..., None])


class Shared(NamedTuple):
    """An option that many commands have."""

    name: str
    kind: Any
    flags: tuple[str, ...]
    about: str
    metavar: str | None = None

    def parameter(self, taken: Collection[str], hidden: bool) -> inspect.Parameter:
        """The parameter for Typer, without flags that the command uses for something else."""
        flags = [flag for flag in self.flags if flag not in taken]
        declared = typer.Option(
            *flags, metavar=self.metavar, help=self.about, show_default=False, hidden=hidden
        )
        default = False if self.kind is bool else None
        by_name = inspect.Parameter.KEYWORD_ONLY
        kind: Any = self.kind
        return inspect.Parameter(self.name, by_name, default=default, annotation=Annotated[kind, declared])


def _text(metavar: str, about: str, *flags: str) -> Shared:
    return Shared(flags[0].removeprefix("--").replace("-", "_"), str | None, flags, about, metavar)


def _flag(about: str, flag: str) -> Shared:
    return Shared(flag.removeprefix("--").replace("-", "_"), bool, (flag,), about)


CONNECTION = (
    _text(
        "URL",
        "bunqueue://TOKEN@HOST:PORT, with TLS bunqueues://. Default: BUNQUEUE_URL, else 127.0.0.1:6789.",
        "--url",
    ),
    _text("HOST", "The server's host, instead of --url.", "--host", "-H"),
    _text("PORT", "The server's port, instead of --url.", "--port", "-p"),
    _text(
        "TOKEN",
        "The server's token. Shells remember flags, and other users may see them; prefer BUNQUEUE_TOKEN.",
        "--token",
        "-t",
    ),
    _text("FILE", "Read the token from the first line of this file; - is standard input.", "--token-file"),
    _flag("Use TLS, and verify the server's certificate.", "--tls"),
    _text("FILE", "Use TLS, and trust the authorities in this PEM file.", "--tls-ca"),
    _text("FILE", "Use TLS, with this client certificate.", "--tls-cert"),
    _text("FILE", "The key of --tls-cert.", "--tls-key"),
    _text("NAME", "The name in the server's certificate.", "--tls-server-name"),
    _flag("Use TLS, and accept any certificate: only for trials.", "--tls-no-verify"),
)
JSON = _flag("Write JSON, with the names of the wire protocol.", "--json")
SHARED = (*CONNECTION, JSON)
NAMES = frozenset(option.name for option in SHARED)

_READERS: dict[Any, Callable[[str], Any]] = {
    kind: reader for reader, plain in ((whole, int), (number, float)) for kind in (plain, plain | None)
}
_CONTEXT = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)


class Verb(PlainCommand):
    """A command whose help lists the shared options separately, and its examples verbatim."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": [], "Any command": []}
        param: Any
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is None:
                continue
            if param.param_type_name == "argument":
                name = param.metavar
                sections["Arguments"].append((name.strip("[].") if name[0] == "[" else name, param.help))
            else:
                sections["Any command" if param.name in NAMES else "Options"].append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        params: list[Any] = self.get_params(ctx)
        return ["[OPTIONS]", *(param.metavar for param in params if param.param_type_name == "argument")]

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        if self.epilog:
            with formatter.section("Examples"):
                for line in self.epilog.splitlines():
                    formatter.write(f"  {line}\n")


class Noun(PlainGroup):
    """A group of verbs. A word that other programs use for one of them is answered with its name here."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands:
            group = ctx.command_path.partition(" ")[2]
            if (meant := meant_by(group, args[0])) is not None:
                ctx.fail(f"No such command {args[0]!r}. Did you mean: {meant}?")
        return super().resolve_command(ctx, args)


def given(context: typer.Context, options: Mapping[str, Any]) -> dict[str, Any]:
    """The shared options of this level over those of the levels above it."""
    above = context.obj if isinstance(context.obj, dict) else {}
    found = {**above, **{name: value for name, value in options.items() if name in NAMES and value}}
    if file := found.pop("token_file", None):
        if "token" in found:
            raise SettingsError("--token-file says what --token says; give one or the other")
        found["token"] = token_in(file)
    return found


def extend(
    function: Callable[..., Any],
    own: Sequence[inspect.Parameter] = (),
    options: Sequence[Shared] = SHARED,
    *,
    hidden: bool = False,
) -> None:
    """Give the function, as Typer sees it, ``own`` parameters, a context, and the shared options."""
    taken = {flag for parameter in own for flag in _flags(parameter)}
    parameters = [_CONTEXT, *own, *(option.parameter(taken, hidden) for option in options)]
    vars(function)["__signature__"] = inspect.Signature(parameters)
    function.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}


def _flags(parameter: inspect.Parameter) -> list[str]:
    """The flags of an option that Typer has not processed yet: the first one is in the place of its
    default."""
    (declared, *_) = getattr(parameter.annotation, "__metadata__", (None,))
    flags = (getattr(declared, "default", None), *(getattr(declared, "param_decls", None) or ()))
    return [flag for flag in flags if isinstance(flag, str)]


def verb(
    app: typer.Typer, *examples: str, name: str | None = None, patient: bool = False, **settings: Any
) -> Callable[[F], F]:
    """Make a command from a function whose first parameter is the session with the server.

    ``examples`` are lines of its help. ``patient``: the server's work grows with the queue, so the command
    may take long.
    """

    def add(function: F) -> F:
        def run(context: typer.Context, **values: Any) -> None:
            place = given(context, values)
            own = {key: value for key, value in values.items() if key not in NAMES}
            try:
                with Session(place, patient=patient) as session:
                    function(session, **own)
            except OptionError as error:
                from ..output.exit_status import as_usage, json_of, status_of

                text = as_usage(error, context)
                if not place.get("json"):
                    raise SettingsError(text) from None
                print(json_of(error, text), file=sys.stderr)
                raise typer.Exit(status_of(error)) from None
            except BunqueueError as error:
                if not place.get("json"):
                    raise
                from ..output.exit_status import json_of, status_of

                print(json_of(error), file=sys.stderr)
                raise typer.Exit(status_of(error)) from None
            except BrokenPipeError:
                raise typer.Exit(pipe_closed()) from None

        run.__name__, run.__doc__ = function.__name__, function.__doc__
        extend(run, parameters_of(function)[1:])
        app.command(name, cls=Verb, epilog="\n".join(examples), **settings)(run)
        return function

    return add


def parameters_of(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters of a function, keyword-only. Numbers are read by `values.whole` or `number`."""
    signature = inspect.signature(function, eval_str=True)
    parameters = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in signature.parameters.values()
    ]
    for parameter in parameters:
        kind = getattr(parameter.annotation, "__origin__", None)
        if kind in _READERS:
            declared = parameter.annotation.__metadata__[0]
            declared.parser = declared.parser or _READERS[kind]
    return parameters


def noun(about: str, **settings: Any) -> typer.Typer:
    """A group of verbs. It takes the shared options as well."""
    app = typer.Typer(
        cls=Noun,
        help=about,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        add_completion=False,
        **settings,
    )
    app.callback(help=about)(keeper())
    return app


def keeper() -> Callable[..., None]:
    """The callback of a group: it keeps the shared options for the verbs."""

    def keep(context: typer.Context, **values: Any) -> None:
        context.obj = given(context, values)

    extend(keep, hidden=True)
    return keep


def point_at(place: Mapping[str, Any]) -> None:
    """Make that server the default for this process and its children."""
    from bunqueue.cli.framework.server_address import endpoint_of, url_of
    from bunqueue.client.connection.address import TOKEN_VARIABLE, URL_VARIABLE

    url = url_of(place)
    if url is not None:
        endpoint_of(place)  # an error names the flag, not the variable
        os.environ[URL_VARIABLE] = url
    if place.get("token") is not None:
        os.environ[TOKEN_VARIABLE] = place["token"]


def refuse_shared(command: str, options: Mapping[str, Any]) -> None:
    """Refuse shared options for a command that talks to no server: they would have no effect."""
    for name, value in options.items():
        if name in NAMES and value:
            flag = "--" + name.replace("_", "-")
            raise SettingsError(f"{flag}: it is for commands that talk to a server, which {command} does not")

"""``bunqueue start`` and ``version``.

The flags are made from the table of settings, so this file names only ``--config``. ``start`` imports nothing
of the server: it replaces itself with the router's process, and passes the settings through a pipe. So the
list of processes shows no tokens, and the process id that a service manager knows stays the same.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from bunqueue.server.host.replacing import become, settings_pipe
from bunqueue.server.settings import SettingsError
from bunqueue.server.settings.settings import (
    OPTIONS,
    Option,
    Settings,
    file_with_secrets,
    resolve_settings,
)
from bunqueue.version import __version__

from ..framework.reading import PlainCommand

SERVER_PACKAGES = ("router", "shardproc")

app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)


def _parameter(name: str, annotation: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _flag(option: Option) -> inspect.Parameter:
    """The flag for ``option``.  It accepts any text: the settings check the value, and their errors name the
    flag."""
    kind = option.kind
    allowed = "" if kind.choices else f" Allowed: {kind.bound}."
    default = option.default_text or option.show(option.default(os.environ))
    declared = typer.Option(
        option.flag,
        metavar=None if kind.switch else "|".join(kind.choices) or option.name.rpartition("_")[2].upper(),
        help=f"{option.help}{allowed} Default: {default}.",
        show_default=False,
        autocompletion=lambda incomplete: [
            choice for choice in kind.choices if choice.startswith(incomplete)
        ],
    )
    if kind.switch:
        return _parameter(option.name, Annotated[bool | None, declared])
    return _parameter(option.name, Annotated[list[str] | None if kind.repeatable else str | None, declared])


JSON = Annotated[bool, typer.Option("--json", help="Write JSON.", show_default=False)]


def with_settings(
    command: Callable[[dict[str, object]], None], *more: inspect.Parameter
) -> Callable[..., None]:
    """Add ``--config``, a flag for every setting, and ``more`` to ``command``, which receives them by
    name."""

    @functools.wraps(command)
    def run(**flags: object) -> None:
        command(flags)

    config = typer.Option(
        "--config",
        metavar="FILE",
        help="A TOML file with settings as top-level keys.",
        show_default=False,
    )
    parameters = [_parameter("config", Annotated[str | None, config]), *map(_flag, OPTIONS), *more]
    vars(run)["__signature__"] = inspect.Signature(parameters)
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


@app.command(cls=PlainCommand)
def version(as_json: JSON = False) -> None:
    """Print the version."""
    if as_json:
        from ..output.output import encoded

        print(encoded({"version": __version__}))
    else:
        print("bunqueue", __version__)


@app.command(cls=PlainCommand)
@with_settings
def start(flags: dict[str, object]) -> None:
    """Start the server.

    Each setting is a flag, a variable and a key of the config file: --tcp-port, BUNQUEUE_TCP_PORT, tcp_port.
    A flag overrides a variable, and a variable overrides the file. --config has no key.

    Example: bunqueue start --data-dir ./data --shards 2
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the router handles it, once it runs
    settings = resolve_settings(flags, os.environ).settings
    check_packages()
    _become_router(settings, file_with_secrets(flags, os.environ))


@contextmanager
def _path_of_child() -> Iterator[None]:
    """Set ``sys.path`` as under ``python -P``: without the current or the script's folder in front."""
    whole = sys.path
    sys.path = whole if sys.flags.safe_path else whole[1:]
    try:
        yield
    finally:
        sys.path = whole


def check_packages() -> None:
    """Raise ``SettingsError`` unless the server's packages are the ones installed with this one.

    Their names are common words, so a module of the user may have the same name.
    """
    home = Path(__file__).resolve().parents[3]
    for name in SERVER_PACKAGES:
        with _path_of_child():
            spec = importlib.util.find_spec(name)
        if spec is None:
            raise SettingsError(
                f"the package {name} is not installed beside bunqueue; install bunqueue again"
            )
        places = list(spec.submodule_search_locations or ())
        if [Path(place).resolve().parent for place in places] != [home]:
            found = places[0] if places else spec.origin
            raise SettingsError(
                f"the package {name} in {found} is not the server's, which is in {home}; rename it"
            )


def _become_router(settings: Settings, secrets_in: str = "") -> None:
    """Replace this process with the router's. Raises ``SettingsError`` if that fails.

    ``secrets_in`` is the config file if it has secrets, else "": the router checks who can read it.
    """
    try:
        become("router", "--settings-fd", str(settings_pipe(settings)), "--secrets-in", secrets_in)
    except OSError as error:
        raise SettingsError(f"the router cannot be started: {error}") from error

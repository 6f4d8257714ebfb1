"""``bunqueue config``: the settings of the server, and where they come from."""

from __future__ import annotations

import inspect
import os
import tomllib

import typer

from bunqueue.server.settings.settings import OPTIONS, resolve_settings

from ..framework.reading import PlainCommand, PlainGroup
from ..output.output import encoded
from .server import JSON, with_settings

app = typer.Typer(cls=PlainGroup, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.callback()
def _config() -> None:
    """Show the settings of the server."""


def show(flags: dict[str, object]) -> None:
    """Print the effective settings, and the source of each. Takes the flags of start; hides tokens.

    Example: bunqueue config show --config bunqueue.toml
    """
    as_json = flags.pop("as_json")
    settings, sources = resolve_settings(flags, os.environ)
    if as_json:
        found = {
            option.name: {
                "value": _plain(option.show(getattr(settings, option.name))),
                "source": sources[option.name],
            }
            for option in OPTIONS
        }
        print(encoded(found))
        return
    lines = [f"{option.name} = {option.show(getattr(settings, option.name))}" for option in OPTIONS]
    width = max(map(len, lines))
    for option, line in zip(OPTIONS, lines, strict=True):
        print(f"{line:{width}}  # {sources[option.name]}")


def _plain(shown: str) -> object:
    """A value read from TOML, or the placeholder of a hidden value."""
    try:
        return tomllib.loads(f"value = {shown}")["value"]
    except tomllib.TOMLDecodeError:
        return shown


_AS_JSON = inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=JSON)
app.command("show", cls=PlainCommand)(with_settings(show, _AS_JSON))

"""Verbs that need no server.  They have ``--json``, and examples in their help."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import typer

from bunqueue.errors import BunqueueError

from ..output.output import Output, pipe_closed
from .shared import JSON, Verb, extend, parameters_of

F = TypeVar("F", bound=Callable[..., None])


def offline_verb(app: typer.Typer, *examples: str, name: str | None = None) -> Callable[[F], F]:
    """Make a command from a function whose first parameter is its `Output`.  ``examples`` are lines of
    help."""

    def add(function: F) -> F:
        def run(context: typer.Context, **values: Any) -> None:
            as_json = bool(values.pop("json", False))
            try:
                function(Output(as_json=as_json), **values)
            except BunqueueError as error:
                if not as_json:
                    raise
                from ..output.exit_status import json_of, status_of

                print(json_of(error), file=sys.stderr)
                raise typer.Exit(status_of(error)) from None
            except BrokenPipeError:
                raise typer.Exit(pipe_closed()) from None

        run.__name__, run.__doc__ = function.__name__, function.__doc__
        extend(run, parameters_of(function)[1:], (JSON,))
        app.command(name, cls=Verb, epilog="\n".join(examples))(run)
        return function

    return add

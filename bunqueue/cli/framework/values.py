"""Parsers for what users write, and the arguments that many verbs share."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from bunqueue.model.durations import EXAMPLES, span_ms
from bunqueue.text import json_problem

from . import completing

_DATE = re.compile(r"[0-9]{4}-")
SPAN = "TIME"
"""The metavar of a duration."""
WHEN = "TIME|MOMENT"
"""The metavar of a duration or a moment."""


def span(text: str | float, also: str = "") -> float:
    """A duration in ms, from a plain number or parts with units: 90s, 1.5h, 1h30m. Raises BadParameter;
    ``also`` names what else its message allows."""
    if not isinstance(text, str):  # a default
        return text
    found = span_ms(text)
    if found is None:
        raise typer.BadParameter(f"{text!r} is no span of time; give ms, or {EXAMPLES}{also}.")
    return found


def waits(text: str | float) -> Any:
    """A duration, or several with commas between: 1s,5s,1m. Raises BadParameter."""
    if not isinstance(text, str) or "," not in text:
        return span(text, ", or several: 1s,5s,1m")
    return [span(part.strip()) for part in text.split(",")]


def whole(text: str | int) -> int:
    """A whole number. Raises BadParameter."""
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no whole number.") from None


def number(text: str | float) -> float:
    """A number. Raises BadParameter."""
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no number.") from None


def data(text: str) -> object:
    """JSON, from the command line itself, from ``@FILE``, or from standard input (``-``).

    Raises BadParameter.
    """
    import msgspec

    source = _source(text)
    try:
        return msgspec.json.decode(source)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise typer.BadParameter(
            f"{_truncated(source)} is no JSON ({json_problem(source, error)}); "
            "texts need double quotes inside single ones: '\"text\"'."
        ) from None


def _source(text: str) -> bytes:
    if text == "-":
        return sys.stdin.buffer.read()
    if not text.startswith("@"):
        return text.encode("utf-8", "surrogateescape")
    try:
        return Path(text[1:]).read_bytes()
    except OSError as error:
        raise typer.BadParameter(f"{text[1:]!r} cannot be read: {error.strerror}.") from None


def _truncated(source: bytes) -> str:
    shown = source.decode("utf-8", "replace").strip()
    return repr(shown if len(shown) <= 60 else shown[:60] + "...")


def span_or_moment(text: str | float) -> float | datetime:
    """A duration as in `span`, or a moment in ISO 8601 with its time zone. Raises BadParameter."""
    if not isinstance(text, str) or not _DATE.match(text):
        return span(text, ", or a moment such as 2026-01-31T12:00Z")
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is no moment ({error}); give 2026-01-31T12:00Z.") from None
    if moment.tzinfo is None:
        example = text if len(text) > len("2026-01-31") else f"{text}T00:00"
        raise typer.BadParameter(
            f"{text!r} has no time zone; give {example}Z for UTC, or {example}+02:00 and the like."
        )
    return moment


def begun(value: float | datetime) -> float:
    """A moment in epoch ms, from a datetime or from its age."""
    return value.timestamp() * 1000 if isinstance(value, datetime) else time.time() * 1000 - value


def option(
    *names: str,
    about: str,
    metavar: str | None = None,
    parser: Callable[[str], Any] | None = None,
    complete: Any = None,
) -> Any:
    """An option. Its help text gives the default, if there is one."""
    return typer.Option(
        *names, metavar=metavar, help=about, show_default=False, parser=parser, autocompletion=complete
    )


def argument(
    metavar: str, about: str, complete: Any = None, parser: Callable[[str], Any] | None = None
) -> Any:
    """An argument."""
    return typer.Argument(
        metavar=metavar, help=about, show_default=False, autocompletion=complete, parser=parser
    )


QueueName = Annotated[str, argument("QUEUE", "The name of the queue.", completing.queues)]
JobId = Annotated[str, argument("ID", "The id of the job.")]
Yes = Annotated[bool, option("--yes", "-y", about="Do not ask for confirmation.")]
JsonData = Annotated[Any, argument("DATA", "JSON, @FILE, or - for standard input.", parser=data)]

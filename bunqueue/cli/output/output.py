"""The output of verbs, in three formats.

- On a terminal: tables and sentences for people.
- In a pipe or file: lines of tab-separated fields without a heading. A record becomes a line ``name, value``
  for each field; a sentence becomes the one value that matters, or nothing. Values are as in JSON.
- With ``--json``: one JSON document with the names of the wire protocol, or for streams one per line.
"""

from __future__ import annotations

import codecs
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from bunqueue.text import CONTROL, printable

from ...protocol.encoded import for_people
from ..framework.exits import PIPE_CLOSED
from .terminal import console

if TYPE_CHECKING:
    from rich.text import Text

ESCAPED = "bunqueue.escaped"
"""The name of the error handler for characters that cannot be encoded."""


class Kind(Enum):
    """How a value is formatted for people."""

    TEXT = "text"
    PROSE = "prose"  # a sentence: wrapped, not cut
    ID = "id"  # never cut
    STATE = "state"
    NUMBER = "number"
    TIME = "time"  # epoch ms
    SPAN = "span"  # ms
    SIZE = "size"  # bytes
    FLAG = "flag"
    COUNTS = "counts"  # a map of numbers
    DATA = "data"  # any JSON value


class Column(NamedTuple):
    """A field of the output: its name in JSON, its kind, and its heading for people."""

    name: str
    kind: Kind = Kind.TEXT
    title: str = ""

    @property
    def heading(self) -> str:
        return self.title or re.sub(r"([a-z])([A-Z])", r"\1 \2", self.name).lower()


Row = Mapping[str, Any]


def plain(value: object) -> Any:
    """A reply as JSON types: maps, lists, texts, numbers."""
    return msgspec.to_builtins(value, str_keys=True, enc_hook=str)


def encoded(value: object) -> str:
    """JSON on one line, with control and bidirectional characters escaped."""
    text = msgspec.json.encode(value, enc_hook=str).decode()
    return CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def field(value: object) -> str:
    """A value as a tab-separated field. For an encoded value, a note that it is encoded."""
    value = for_people(value)
    if value is None:
        return ""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return encoded(value)


class Unwritable(Exception):
    """Standard output cannot be written, for example because the disk is full."""


def pipe_closed() -> int:
    """The exit status when the reader has closed the pipe. Keeps Python from flushing the rest at exit."""
    _write_off()
    return PIPE_CLOSED


def _write_off() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def flush() -> None:
    """Flush standard output. Raises BrokenPipeError or Unwritable."""
    with _writing():
        sys.stdout.flush()


@contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        _write_off()
        raise Unwritable(f"standard output cannot be written: {error.strerror}") from None


def speak_any_language() -> None:
    """Write characters that the locale cannot encode as JSON does, \u00e9, instead of failing."""
    codecs.register_error(ESCAPED, _escaped)
    for stream in (sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors=ESCAPED)


def _escaped(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2)), error.end


class Output:
    """Writes to standard output."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json

    @property
    def is_terminal(self) -> bool:
        """Whether the output is for people."""
        return not self.as_json and sys.stdout.isatty()

    def rows(self, rows: Iterable[object], columns: Sequence[Column], *, none: str) -> None:
        """Print a list; ``none`` is the text for people when it is empty."""
        shown: list[Row] = [plain(row) for row in rows]
        if self.as_json:
            self._write(encoded(shown))
        elif not self.is_terminal:
            for row in shown:
                self._write("\t".join(field(row.get(column.name)) for column in columns))
        elif shown:
            from . import tables

            tables.table(shown, columns)
        else:
            self._write(none)

    def record(self, value: object, columns: Sequence[Column], *, whole: object = None) -> None:
        """Print one object with its fields. JSON has all of ``whole``, if given."""
        row: Row = plain(value)
        if self.as_json:
            self._write(encoded(plain(whole) if whole is not None else row))
        elif self.is_terminal:
            from . import tables

            tables.record(row, columns)
        else:
            for column in columns:
                self._write(f"{column.name}\t{field(row.get(column.name))}")

    def done(self, sentence: str, facts: Row, bare: str | None = None) -> None:
        """Print what was done: a sentence for people, ``facts`` as JSON, in a pipe the fact ``bare``."""
        if self.as_json:
            self._write(encoded(plain(facts)))
        elif self.is_terminal:
            self._write(printable(sentence))
        elif bare is not None:
            self._write(field(plain(facts[bare])))

    def line(self, value: object, text: str | Text) -> None:
        """Print an entry of a stream: the value as JSON, else the text, in colours on a terminal."""
        if self.as_json:
            self._write(encoded(plain(value)))
        elif isinstance(text, str):
            self._write(text)
        else:
            with _writing():
                console().print(text, soft_wrap=True)
        flush()

    def text(self, text: str) -> None:
        """Print a text of several lines."""
        self._write(text.rstrip("\n"))

    def note(self, text: str) -> None:
        """Print a note for people on standard error."""
        print(text, file=sys.stderr)

    @staticmethod
    def _write(text: str) -> None:
        with _writing():
            print(text)

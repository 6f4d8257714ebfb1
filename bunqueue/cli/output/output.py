"""What verbs say, and the three kinds in which it is said.

- On a terminal: tables and sentences for people.
- Into a pipe or file: lines of fields separated by tabs, without a heading; a record is a line ``name,
  value`` for each field, a sentence is the one value that matters, or nothing. Values are as in JSON.
- With ``--json``: one JSON document with the names of the wire protocol; of streams one a line.
"""

from __future__ import annotations

import codecs
import io
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any, NamedTuple

import msgspec

from ...readable import CONTROL, printable
from ..framework.exits import PIPE_CLOSED

ESCAPED = "bunqueue.escaped"
"""The name of the handler of what cannot be encoded."""


class Kind(Enum):
    """What a value is, for people."""

    TEXT = "text"
    PROSE = "prose"  # a sentence: folded, not cut
    ID = "id"  # never cut
    STATE = "state"
    NUMBER = "number"
    TIME = "time"  # epoch ms
    SPAN = "span"  # ms
    SIZE = "size"  # bytes
    FLAG = "flag"
    COUNTS = "counts"  # a map of numbers
    DATA = "data"  # anything that JSON can say


class Column(NamedTuple):
    """A field of what is shown: its name as in JSON, what it is, and its heading for people."""

    name: str
    kind: Kind = Kind.TEXT
    title: str = ""

    @property
    def heading(self) -> str:
        return self.title or re.sub(r"([a-z])([A-Z])", r"\1 \2", self.name).lower()


Row = Mapping[str, Any]


def plain(value: object) -> Any:
    """A reply as JSON has it: maps, lists, texts, numbers."""
    return msgspec.to_builtins(value, str_keys=True, enc_hook=str)


def encoded(value: object) -> str:
    """JSON on one line, in which nothing moves the cursor or turns text around; it says the same."""
    text = msgspec.json.encode(value, enc_hook=str).decode()
    return CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def field(value: object) -> str:
    """A value between tabs."""
    if value is None:
        return ""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return encoded(value)


def colourful() -> bool:
    """Whether a terminal is to be coloured; see no-color.org."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class Unwritable(Exception):
    """Standard output takes nothing: the disk is full, say."""


def pipe_closed() -> int:
    """Whoever read the output has gone: the exit status; nor must Python try to flush the rest at the end."""
    _write_off()
    return PIPE_CLOSED


def _write_off() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def flush() -> None:
    """Have what was said leave this process. Raises BrokenPipeError or Unwritable."""
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
    """What a terminal or locale has no letters for is written as JSON has it, \\u00e9, instead of failing."""
    codecs.register_error(ESCAPED, _escaped)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors=ESCAPED)


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
        """Whether people read it."""
        return not self.as_json and sys.stdout.isatty()

    def rows(self, rows: Iterable[object], columns: Sequence[Column], *, none: str) -> None:
        """A list; ``none`` is what people see in place of an empty one."""
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
        """One thing with its fields. JSON has all of ``whole``, where that is more."""
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
        """What was done, for people; for programs the facts, and in a pipe that one which matters."""
        if self.as_json:
            self._write(encoded(plain(facts)))
        elif self.is_terminal:
            self._write(printable(sentence))
        elif bare is not None:
            self._write(field(plain(facts[bare])))

    def line(self, value: object, text: str) -> None:
        """An entry of a stream: as JSON the value, else the text."""
        self._write(encoded(plain(value)) if self.as_json else text)
        flush()

    def text(self, text: str) -> None:
        """As it is."""
        self._write(text.rstrip("\n"))

    def note(self, text: str) -> None:
        """For people beside the output, on standard error."""
        print(text, file=sys.stderr)

    @staticmethod
    def _write(text: str) -> None:
        with _writing():
            print(text)

"""Structured logging for all processes: one line per record on standard error, as text or as JSON.

    log = get_logger("router")
    log.info("shard ready", shard=0, took_ms=31)

gives ``2026-01-01T12:00:00.123Z INFO router shard ready shard=0 took_ms=31``, or the same as a JSON object.
A line never contains a token or a payload: fields with names like that are masked, and bytes are shown only
as their number.  Messages are constants; everything that varies is a field.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Literal, TextIO, TypeAlias

import orjson

from bunqueue.text import CONTROL

Field: TypeAlias = str | int | float | bool | None

Level = Literal["debug", "info", "warning", "error"]
Form = Literal["text", "json"]
FORM_VARIABLE = "BUNQUEUE_LOG_FORMAT"
"""An environment variable.  The server reads it as one of its settings; workers use it as a default."""

MAX_VALUE_CHARS = 1000
"""Longer text is cut.  This is enough for any address or reason, and too little for a payload to flood the
log."""
MAX_TRACEBACK_CHARS = 8000
"""A longer traceback loses its beginning; the end says what went wrong."""
_SECRET_WORDS = ("token", "secret", "password", "authorization")
_PAYLOAD_NAMES = frozenset({"data", "payload", "result", "body", "frame"})
_RESERVED = frozenset({"time", "level", "logger", "message", "traceback"})


class Logger:
    """A named logger whose records carry fields. Safe to use before ``configure_logging``."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, message: str, /, **fields: Field) -> None:
        self._logger.debug(message, extra={"fields": fields})

    def info(self, message: str, /, **fields: Field) -> None:
        self._logger.info(message, extra={"fields": fields})

    def warning(self, message: str, /, **fields: Field) -> None:
        self._logger.warning(message, extra={"fields": fields})

    def error(self, message: str, /, **fields: Field) -> None:
        self._logger.error(message, extra={"fields": fields})

    def exception(self, message: str, /, **fields: Field) -> None:
        """Like ``error``, with the traceback of the exception that is being handled."""
        self._logger.exception(message, extra={"fields": fields})


def get_logger(name: str) -> Logger:
    """The logger called ``name``: the process or component that logs, for example ``router``."""
    return Logger(name)


def configure_logging(
    level: Level,
    form: Form,
    *,
    stream: TextIO | None = None,
    **context: Field,
) -> None:
    """Log records of at least ``level``, to ``stream`` or standard error.

    ``context`` is added to every line of this process, before the record's own fields. Replaces any earlier
    configuration, including one made by other code.
    """
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(JsonFormatter(context) if form == "json" else TextFormatter(context))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


@contextmanager
def log_for_people(level: Level, form: Form) -> Iterator[None]:
    """Log to standard error, including what the user's own code logs. Text logs have only the messages, which
    must be complete in themselves; JSON logs have the fields as well.

    The user's program is imported in this block. If it configures the root logger itself, in any way, its
    configuration is used.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter({}) if form == "json" else MessageFormatter({}))
    root, without = logging.getLogger(), logging.lastResort
    handler.setLevel(level.upper())
    logging.lastResort = handler  # used while there is no other handler; `basicConfig` does not see it
    try:
        yield
    finally:
        logging.lastResort = without
        handler.setLevel(logging.NOTSET)
        if not root.handlers:
            root.addHandler(handler)
            if root.level == logging.WARNING:  # Python's default
                root.setLevel(level.upper())


class _Formatter(logging.Formatter):
    def __init__(self, context: Mapping[str, Field]) -> None:
        super().__init__()
        self._context = dict(context)

    def _fields(self, record: logging.LogRecord) -> dict[str, Field]:
        given = self._context | getattr(record, "fields", {})
        return {name: _safe(name, value) for name, value in given.items()}

    def _traceback(self, record: logging.LogRecord) -> str:
        text = self.formatException(record.exc_info) if record.exc_info else ""
        return _encodable(text[-MAX_TRACEBACK_CHARS:])


class TextFormatter(_Formatter):
    """Time, level, logger, message, then ``key=value`` for each field; a traceback follows, indented."""

    def format(self, record: logging.LogRecord) -> str:
        parts = [_time(record), record.levelname, record.name, escaped(record.getMessage())]
        parts += [f"{name}={_quote(value)}" for name, value in self._fields(record).items()]
        lines = [" ".join(parts), *("  " + escaped(line) for line in self._traceback(record).splitlines())]
        return "\n".join(lines)


class MessageFormatter(TextFormatter):
    """The same without the fields, for messages that are complete in themselves."""

    def _fields(self, record: logging.LogRecord) -> dict[str, Field]:
        return {}


class JsonFormatter(_Formatter):
    """An object with time, level, logger and message, then the fields; a field whose name is taken gets a
    ``_``."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Field] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _encodable(record.getMessage()),
        }
        for name, value in self._fields(record).items():
            line[name + "_" if name in _RESERVED else name] = value
        if traceback := self._traceback(record):
            line["traceback"] = traceback
        text = orjson.dumps(line).decode()
        if text.isascii():
            return text
        # A terminal may interpret some characters as commands, or show the line in another order.
        return CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


def _safe(name: str, value: object) -> Field:
    """The loggable form of ``value``; its type is only the caller's promise."""
    if name.lower() in _PAYLOAD_NAMES or any(word in name.lower() for word in _SECRET_WORDS):
        return "***"
    if isinstance(value, str):
        return _encodable(value if len(value) <= MAX_VALUE_CHARS else value[:MAX_VALUE_CHARS] + "...")
    if value is None or isinstance(value, (bool, float)):
        return value
    if isinstance(value, int):
        return value if value.bit_length() < 64 else str(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"<{len(value)} bytes>"
    return f"<{type(value).__name__}>"


def _encodable(text: str) -> str:
    """``text`` without lone surrogates, which file names can contain and UTF-8 cannot encode."""
    return text.encode(errors="backslashreplace").decode()


def escaped(text: str) -> str:
    """``text`` on one line, so that a client cannot forge log lines with the name of a queue."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _quote(value: Field) -> str:
    if isinstance(value, str) and value.isprintable() and value and not set(value) & set(' "=\\'):
        return value
    return json.dumps(value)

"""Structured logging for all processes: one line per record on standard error, as text or as JSON.

    log = get_logger("router")
    log.info("shard ready", shard=0, took_ms=31)

gives ``2026-01-01T12:00:00.123Z INFO router shard ready shard=0 took_ms=31``, or the same as a JSON object.
A line of this package never contains a token or a payload: fields with names like that are masked, and bytes
are shown only as their number.  Messages are constants; everything that varies is a field.  In JSON, what
other code logs with ``extra`` are fields as well, with secrets masked, and so are tracebacks.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Literal, NamedTuple, TextIO, TypeAlias

import orjson

from bunqueue.text import CONTROL, printable

Field: TypeAlias = str | int | float | bool | None

Level = Literal["debug", "info", "warning", "error", "critical"]
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
_RESERVED = frozenset({"time", "level", "logger", "message", "traceback", "stack"})
JOB_FIELDS = "job_fields"
"""An attribute of a record: what a filter found out about the job whose handler logs."""
_OF_RECORDS = frozenset(
    {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", "fields", JOB_FIELDS}
)
"""The attributes that every record has; what else it has came from ``extra``, or from a filter."""


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

    def critical(self, message: str, /, **fields: Field) -> None:
        self._logger.critical(message, extra={"fields": fields})

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
    if form == "json":
        log_uncaught()


class ForPeople(NamedTuple):
    """A configuration made by `log_for_people`."""

    level: Level
    form: Form


_for_people: ForPeople | None = None


def for_people() -> ForPeople | None:
    """What `log_for_people` has configured in this process: other processes for the same jobs do the same."""
    return _for_people


@contextmanager
def log_for_people(level: Level, form: Form, *filters: logging.Filter) -> Iterator[None]:
    """Log to standard error, including what the user's own code logs. Text logs have only the messages, which
    must be complete in themselves; JSON logs have the fields as well.

    The user's program is imported in this block. If it configures the root logger itself, in any way, its
    configuration is used.
    """
    global _for_people
    _for_people = ForPeople(level, form)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter({}) if form == "json" else MessageFormatter({}))
    for each in filters:
        handler.addFilter(each)
    if form == "json":
        log_uncaught()
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


def json_line(level: int, text: str, trace: Any = None) -> str:
    """A line in the form of a JSON log, for what a program writes besides its log."""
    record = logging.LogRecord("bunqueue", level, __file__, 0, text, (), trace)
    return JsonFormatter({}).format(record)


def report_error(text: str, error: BaseException | None = None, *, in_json: bool | None = None) -> None:
    """Write why a program ends to standard error: a line for people, or one of the log if that is JSON.
    `error`: its traceback is shown as well.
    """
    text = " ".join(text.split())
    trace = None if error is None else (type(error), error, error.__traceback__)
    if in_json is None:
        in_json = any(isinstance(each.formatter, JsonFormatter) for each in logging.getLogger().handlers)
    if in_json:
        print(json_line(logging.CRITICAL, text, trace), file=sys.stderr, flush=True)
        return
    if error is not None:
        traceback.print_exception(error)
    print("bunqueue:", printable(text), file=sys.stderr, flush=True)


def log_uncaught() -> None:
    """Log warnings, and exceptions that nobody catches, instead of writing them to standard error."""

    def show_warning(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if file is not None:
            write(message, category, filename, lineno, file, line)
        else:
            text = f"{filename}:{lineno}: {category.__name__}: {message}"
            logging.getLogger("py.warnings").warning("%s", text)

    def show_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        words = "interrupted" if issubclass(kind, KeyboardInterrupt) else "an exception that nobody caught"
        logging.getLogger("py.exceptions").critical(words, exc_info=(kind, error, trace))

    def show_in_thread(found: threading.ExceptHookArgs) -> None:
        if found.exc_type is not SystemExit and found.exc_value is not None:
            show_exception(found.exc_type, found.exc_value, found.exc_traceback)

    def show_unraisable(found: sys.UnraisableHookArgs) -> None:
        trace = (found.exc_type, found.exc_value or found.exc_type(), found.exc_traceback)
        words = found.err_msg or "an exception that cannot be raised"
        logging.getLogger("py.exceptions").error("%s", words, exc_info=trace)

    write = warnings.showwarning
    warnings.showwarning = show_warning
    sys.excepthook, sys.unraisablehook, threading.excepthook = show_exception, show_unraisable, show_in_thread


class TracebackText(Exception):
    """An exception from elsewhere, or one that cannot be shown as it is; its text is that traceback."""

    def __str__(self) -> str:  # for formatters of others
        return f'\n"""\n{self.args[0]}\n"""'


class _Formatter(logging.Formatter):
    def __init__(self, context: Mapping[str, Field]) -> None:
        super().__init__()
        self._context = dict(context)

    def _fields(self, record: logging.LogRecord) -> dict[str, Field]:
        given = self._context | getattr(record, "fields", {})
        return {name: _safe(name, value) for name, value in given.items()}

    def _traceback(self, record: logging.LogRecord) -> str:
        if not record.exc_info or record.exc_info[0] is None:
            return ""
        try:
            raised = record.exc_info[1]
            text = raised.args[0] if type(raised) is TracebackText else self.formatException(record.exc_info)
        except Exception as error:  # the text of an exception is made by somebody's code
            text = f"{record.exc_info[0].__name__}, which cannot be shown: {type(error).__name__}"
        return _encodable(text[-MAX_TRACEBACK_CHARS:])


def _message(record: logging.LogRecord) -> str:
    """The record's text. If its arguments do not fit, both parts as they are: the line must not be lost."""
    try:
        return record.getMessage()
    except Exception as error:
        return f"{record.msg!s} (cannot be formatted with its arguments: {type(error).__name__})"


class TextFormatter(_Formatter):
    """Time, level, logger, message, then ``key=value`` for each field; a traceback follows, indented."""

    def format(self, record: logging.LogRecord) -> str:
        parts = [_time(record), record.levelname, record.name, escaped(_message(record))]
        parts += [f"{name}={_quote(value)}" for name, value in self._fields(record).items()]
        lines = [" ".join(parts), *("  " + escaped(line) for line in self._traceback(record).splitlines())]
        return "\n".join(lines)


class MessageFormatter(TextFormatter):
    """The same for messages that are complete in themselves: without the fields, except for the job whose
    handler logs."""

    def _fields(self, record: logging.LogRecord) -> dict[str, Field]:
        return {name: _safe(name, value) for name, value in getattr(record, JOB_FIELDS, {}).items()}


class JsonFormatter(_Formatter):
    """An object with time, level, logger and message, then the fields; a field whose name is taken gets a
    ``_``."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _encodable(_message(record)),
        }
        extra = {name: value for name, value in vars(record).items() if name not in _OF_RECORDS}
        for name, value in (_extra(extra) | self._fields(record)).items():
            line[name + "_" if name in _RESERVED else name] = value
        if traceback := self._traceback(record):
            line["traceback"] = traceback
        if record.stack_info:
            line["stack"] = _encodable(record.stack_info[-MAX_TRACEBACK_CHARS:])
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


def _extra(given: Mapping[str, object]) -> dict[str, Any]:
    """What somebody's code gave as ``extra``, as far as JSON can hold it; the rest is shown as text."""
    return {name: _masked(name, _shown(value)) for name, value in given.items()}


def _shown(value: object) -> Any:
    if value is None or isinstance(value, (str, bool, int, float)):
        return _safe("", value)
    try:
        found = orjson.dumps(value, default=repr, option=orjson.OPT_NON_STR_KEYS)
        return (
            orjson.loads(found)
            if len(found) <= MAX_VALUE_CHARS
            else found[:MAX_VALUE_CHARS].decode(errors="ignore") + "..."
        )
    except Exception:  # `repr` is somebody's code
        return f"<{type(value).__name__}>"


def _masked(name: str, value: Any) -> Any:
    if any(word in name.lower() for word in _SECRET_WORDS):
        return "***"
    if isinstance(value, dict):
        return {key: _masked(key, each) for key, each in value.items()}
    return [_masked("", each) for each in value] if isinstance(value, list) else value


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

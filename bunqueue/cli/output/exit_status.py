"""Errors of the client in terms of the command line, and the exit status of each."""

from __future__ import annotations

import re
from typing import Any

from bunqueue.errors import (
    AuthError,
    BunqueueError,
    CommandFailed,
    CommandTimeout,
    ConnectionLost,
    ConnectTimeout,
    JobCancelled,
    JobExpired,
    JobFailed,
    JobNotFound,
    LockLost,
    NotFound,
    OptionError,
    PayloadError,
    ResultTimeout,
    TlsError,
    WrongState,
)

from ..framework import exits
from .output import encoded

# The first match applies, so subclasses come before their base classes.
_STATUSES: tuple[tuple[int, tuple[type[Exception], ...]], ...] = (
    (exits.USAGE, (OptionError, PayloadError)),
    (exits.NOT_FOUND, (JobNotFound, NotFound)),
    (exits.WRONG_STATE, (WrongState, LockLost)),
    (exits.NOT_COMPLETED, (JobFailed, JobCancelled, JobExpired)),
    (exits.NOT_ALLOWED, (AuthError,)),
    (exits.TIMED_OUT, (ResultTimeout, CommandTimeout)),
    (exits.NO_CONNECTION, (ConnectTimeout, TlsError, ConnectionLost)),
)
# The client's advice to programmers, and its equivalent on the command line.
_WORDS = {
    "(token=...)": "(--token, or the variable BUNQUEUE_TOKEN)",
    "give tls=True": "give --tls",
    "connect without tls": "connect without --tls",
    "tls=TlsOptions(ca_file=...)": "--tls-ca FILE",
    "tls=TlsOptions(cert_file=...)": "--tls-cert FILE",
    "raise ConnectionOptions(command_timeout=...)": "give it longer: --url bunqueue://HOST?command_timeout=MS",
    "give a bunqueue.RateLimit, or a text such as": "give a text such as",
    "give either every, or pattern, a cron expression": "give either that, or --repeat-pattern",
    "it is the size of a group; give group, too": "it is the size of a group; give --group, too",
    "JobHandle.retry() gives it": "bunqueue job retry ID gives it",
}
# Option names whose parameter has another name in some verbs.
_ALSO = {
    "flow_id": "id",
    "max": "limit",
    "concurrency": "limit",
    "count": "limit",
    "per": "duration",
    "name": "signal",
}


def status_of(error: Exception) -> int:
    """The exit status for an error."""
    return next((status for status, kinds in _STATUSES if isinstance(error, kinds)), exits.FAILED)


def words_of(error: Exception) -> str:
    """The text of an error: the server's own words, then the client's advice."""
    text = str(error)
    for inside, outside in _WORDS.items():
        text = text.replace(inside, outside)
    return text


def json_of(error: BunqueueError, text: str | None = None) -> str:
    """An error for programs: a JSON object on one line. `text` replaces the client's text."""
    report: dict[str, object] = {"ok": False, "error": text or words_of(error), "code": error.code}
    field = error.field
    if field is not None and isinstance(error, OptionError):
        field = re.sub(r"_([a-z])", lambda found: found[1].upper(), field)
    details: dict[str, object] = {"field": field, "value": error.value, "bound": error.bound}
    if isinstance(error, CommandFailed):
        details |= {"serverCode": error.server_code, "retryAfter": error.retry_after}
    return encoded(report | {name: value for name, value in details.items() if value is not None})


def json_of_usage(text: str) -> str:
    """The same for an error in the command line itself."""
    return encoded({"ok": False, "error": text, "code": OptionError.code})


def as_usage(error: BunqueueError, context: Any) -> str:
    """An error about an option, with the flag or argument instead of the option's name in Python."""
    text = words_of(error)
    found = re.match(r"\w+", text)
    params = {param.name: param for param in context.command.params}
    if found is None:
        return text
    arguments = {param.metavar.strip("[]").lower(): param for param in params.values() if _is_argument(param)}
    param = arguments.get(found[0]) or params.get(found[0]) or params.get(_ALSO.get(found[0]))
    if param is None:
        return text
    shown = param.metavar.strip("[]") if _is_argument(param) else max(param.opts, key=len)
    return f"{shown}{text[found.end() :]}"


def _is_argument(param: Any) -> bool:
    return bool(param.param_type_name == "argument")

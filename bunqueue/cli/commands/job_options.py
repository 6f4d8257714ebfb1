"""The options of jobs as flags, for ``push`` and ``cron add``.

The protocol declares their bounds, and the client checks them.  The flags of `RareOptions` follow from their
declaration.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, NamedTuple, TypeVar

from bunqueue.model.job_options import RARE_OPTIONS, Option
from bunqueue.server.settings import SettingsError

from ..framework.shared import parameters_of
from ..framework.values import SPAN, WHEN, option, span, span_or_moment, waits
from ..framework.values import data as json

F = TypeVar("F", bound=Callable[..., None])


def pairs(text: str) -> str:
    """The kind of a flag with values NAME=TEXT."""
    return text


class Flag(NamedTuple):
    """The flag of an option of `bunqueue.JobOptions`, or of part of one. ``kind``: int, str, bool, list (of
    texts), pairs, float, json, span, waits or span_or_moment."""

    kind: Any
    about: str
    metavar: str | None = None
    names: tuple[str, ...] = ()


def _flag_of(rare: Option) -> Flag:
    kind, metavar = {bool: (bool, None), int: (int, "N"), float: (span, SPAN), str: (str, "TEXT")}[rare.kind]
    return Flag(kind, rare.words, metavar)


FLAGS: dict[str, Flag] = {
    "priority": Flag(int, "Higher runs first. Default: 0.", "N", ("-P",)),
    "delay": Flag(span_or_moment, "Not before this much time has passed, or this moment.", WHEN, ("-d",)),
    "lifo": Flag(bool, "Run it before other jobs of its priority, the newest first."),
    "max_attempts": Flag(int, "The maximum number of attempts. Default: 3.", "N"),
    "backoff": Flag(
        waits, "The wait before a retry; it doubles with each retry. Or all waits: 1s,5s,1m.", f"{SPAN}[,...]"
    ),
    "on_dead": Flag(str, "The name of a job to add when this one has failed for good.", "NAME"),
    "on_dead_queue": Flag(str, "The queue for --on-dead. Default: that of the job.", "QUEUE"),
    "on_dead_data": Flag(json, "The data for --on-dead, as JSON.", "JSON"),
    "ttl": Flag(span_or_moment, "Dropped if not started within this time, or by this moment.", WHEN),
    "timeout": Flag(span, "An attempt that takes longer fails.", SPAN),
    "job_id": Flag(str, "An id of your own, unique on the whole server.", "ID"),
    "unique_key": Flag(str, "While a job with this key waits or runs, no other is added.", "KEY", ("-u",)),
    "group": Flag(str, "The group, which can have its own limits.", "GROUP", ("-g",)),
    "depends_on": Flag(list, "A job that must complete first; may be repeated.", "ID"),
    "on_dead_dependency": Flag(
        str, "What the failure of such a job means: fail, ignore, continue, remove, wait.", "POLICY"
    ),
    "parent": Flag(str, "The parent job.", "ID"),
    "tags": Flag(list, "A label shown with the job; may be repeated.", "TAG", ("--tag",)),
    "repeat": Flag(span, "Add the job again after each completion, to run this much later.", SPAN),
    "repeat_pattern": Flag(str, "Instead of --repeat: at the next time of this cron expression.", "CRON"),
    "repeat_limit": Flag(int, "The number of times for --repeat.", "N"),
    "repeat_timezone": Flag(str, "For --repeat-pattern, such as Europe/Rome. Default: UTC.", "ZONE"),
    "repeat_start": Flag(span_or_moment, "No repetition runs before this moment, or so long from now.", WHEN),
    "repeat_end": Flag(span_or_moment, "No repetition runs after this moment, or so long from now.", WHEN),
    "backoff_type": Flag(
        str, "constant: the wait stays the same; linear: it grows by itself; exponential: it doubles.", "TYPE"
    ),
    "unique": Flag(bool, "While a job with the same data waits or runs, no other is added."),
    "unique_by": Flag(list, "As --unique, for this field of the data; may be repeated.", "FIELD"),
    "unique_for": Flag(span, "No other job with the key within this time, even if it has ended.", SPAN),
    "on_conflict": Flag(
        str, "What if the key is taken: keep (the default), replace, extend, reject, supersede.", "POLICY"
    ),
    "unique_states": Flag(
        list,
        "The key is taken while its job is in this state; may be repeated.",
        "STATE",
        ("--unique-state",),
    ),
    "unique_extend": Flag(bool, "The same as --on-conflict extend."),
    "backoff_max": Flag(span, "No wait before a retry is longer. Default: an hour.", SPAN),
    "backoff_jitter": Flag(
        float, "Waits are longer or shorter by up to this part, 0 to 1. Default: 0.1.", "N"
    ),
    "retry_on": Flag(
        list,
        "Retried after errors of this class only, such as httpx.ConnectTimeout; may be repeated.",
        "CLASS",
    ),
    "never_on": Flag(list, "Never retried after errors of this class; may be repeated.", "CLASS"),
    "unique_replace": Flag(bool, "Take the place of the job that holds the key, unless that runs."),
    "debounce": Flag(
        span, "Run only the last job with this --unique-key, after this time without another.", SPAN
    ),
    "headers": Flag(
        pairs, "For middleware, such as a trace context; may be repeated.", "NAME=TEXT", ("--header",)
    ),
    "group_max_size": Flag(int, "Refused while this many jobs of its --group are queued.", "N"),
    "stack_trace_limit": Flag(int, "How many lines of a traceback to keep. Default: 10.", "N"),
    "size_limit": Flag(int, "Refused when its data takes more bytes.", "N"),
    "failure_policy": Flag(
        str, "What its failure means for its --parent: fail, ignore, continue, remove, wait.", "POLICY"
    ),
    "remove_on_complete": Flag(bool, "Forget the job and its result when it has completed."),
    "remove_on_fail": Flag(bool, "Forget the job when it has failed for good."),
    "durable": Flag(bool, "Acknowledged only when it would survive a power loss."),
    **{name: _flag_of(rare) for name, rare in RARE_OPTIONS.items()},
}


def with_job_options(names: Collection[str]) -> Callable[[F], F]:
    """Replace the ``**options`` of a verb by flags for these options of jobs."""

    def add(function: F) -> F:
        own = [each for each in parameters_of(function) if each.name != "options"]
        vars(function)["__signature__"] = inspect.Signature([*own, *(_parameter(name) for name in names)])
        return function

    return add


_PARSERS: dict[Any, Callable[[str], Any]] = {
    span: span,
    span_or_moment: span_or_moment,
    waits: waits,
    json: json,
}


def _parameter(name: str) -> inspect.Parameter:
    flag = FLAGS[name]
    names = tuple(each for each in flag.names if each.startswith("--")) or (f"--{name.replace('_', '-')}",)
    declared = option(
        *names,
        *(each for each in flag.names if not each.startswith("--")),
        about=flag.about,
        metavar=flag.metavar,
        parser=_PARSERS.get(flag.kind),
    )
    kinds: dict[Any, Any] = {
        span: float | None,
        span_or_moment: Any,
        waits: Any,
        json: Any,
        float: float | None,
        list: list[str] | None,
        pairs: list[str] | None,
        int: int | None,
        str: str | None,
    }
    kind = kinds.get(flag.kind, bool)
    default = False if flag.kind is bool else None
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, declared]
    )


def given(options: dict[str, Any]) -> Any:
    """The given options, as `JobOptions`. Raises SettingsError for flags that exclude or require each
    other."""
    found = {
        name: value
        for name, value in options.items()
        if value is not None and value is not False and value != []
    }
    if "headers" in found:
        found["headers"] = dict(map(_pair, found["headers"]))
    if "unique" in found or "unique_by" in found:
        _unique_by_data(found)
    if "repeat_pattern" in found:
        found.setdefault("repeat", None)  # `Repeat` refuses both
    for owner, parts, make in _PARTS:
        subfields = {field: found.pop(name) for name, field in parts.items() if name in found}
        if subfields:
            if owner not in found:
                flag = next(name for name, field in parts.items() if field in subfields)
                owners = [_flag(name) for name in (owner, *_ALSO.get(flag, ())) if name in options]
                raise SettingsError(f"{_flag(flag)}: it goes with {' or '.join(owners)}; give that, too")
            make(found, subfields)
    if isinstance(found.get("on_dead"), str):
        _on_dead(found, {})
    return found


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise SettingsError(f"--header: {text!r} is not allowed; give NAME=TEXT, such as tenant=acme")
    return name, value


def _backoff(found: dict[str, Any], subfields: dict[str, Any]) -> None:
    from bunqueue.client.options.types import Backoff

    given = found["backoff"]
    found["backoff"] = (
        Backoff(delays=given, **subfields) if isinstance(given, list) else Backoff(given, **subfields)
    )


def _on_dead(found: dict[str, Any], subfields: dict[str, Any]) -> None:
    from bunqueue.client.options.job import NewJob

    job = NewJob(found["on_dead"], subfields.get("data"))
    job.queue = subfields.get("queue")
    found["on_dead"] = job


def _repeat(found: dict[str, Any], subfields: dict[str, Any]) -> None:
    from bunqueue.client.options.types import Repeat

    for field in ("start", "end"):
        if isinstance(subfields.get(field), int | float):
            subfields[field] = datetime.now(UTC) + timedelta(milliseconds=subfields[field])
    found["repeat"] = Repeat(found.get("repeat"), **subfields)


def _unique_by_data(found: dict[str, Any]) -> None:
    from bunqueue.client.options.types import Unique

    parts = {
        "unique_by": "by",
        "unique_for": "within",
        "unique_states": "states",
        "on_conflict": "on_conflict",
    }
    found["unique"] = Unique(**{field: found.pop(name) for name, field in parts.items() if name in found})


def _unique(found: dict[str, Any], subfields: dict[str, Any]) -> None:
    from bunqueue.client.options.types import Debounce, Dedup

    wait = subfields.pop("wait", None)
    if wait is None:
        found["dedup"] = Dedup(**subfields)
    elif subfields:
        raise SettingsError(
            "--debounce: it replaces the job that holds the key; leave out --unique-for and the like"
        )
    else:
        found["debounce"] = Debounce(found.pop("unique_key"), wait)


_ALSO = {
    **dict.fromkeys(("unique_for", "on_conflict", "unique_states"), ("unique", "unique_by")),
    **dict.fromkeys(("repeat_limit", "repeat_start", "repeat_end"), ("repeat_pattern",)),
}
"""The option that each further flag requires."""
# Options with further flags: the option, the fields of those flags, and the function that combines them.
_PARTS: tuple[tuple[str, dict[str, str], Callable[[dict[str, Any], dict[str, Any]], None]], ...] = (
    (
        "backoff",
        {"backoff_type": "type", "backoff_max": "max_delay", "backoff_jitter": "jitter"},
        _backoff,
    ),
    ("on_dead", {"on_dead_queue": "queue", "on_dead_data": "data"}, _on_dead),
    (
        "repeat",
        {
            "repeat_pattern": "pattern",
            "repeat_limit": "limit",
            "repeat_timezone": "tz",
            "repeat_start": "start",
            "repeat_end": "end",
        },
        _repeat,
    ),
    (
        "unique_key",
        {
            "unique_for": "ttl",
            "on_conflict": "on_conflict",
            "unique_states": "states",
            "unique_extend": "extend",
            "unique_replace": "replace",
            "debounce": "wait",
        },
        _unique,
    ),
)

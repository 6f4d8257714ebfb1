"""The options of a job that few jobs have, each declared once, with its bounds and its words.

From a field of `RareOptions` follow: the field of PUSH, and of jobs that schedules and failed jobs add; the
stored field; the field of the job that clients get (always for `Extra.ALWAYS_SHOWN`, else if it is set); the
check and the conversion of the option in Python; the flag of ``push`` and ``cron add``.  Only
`CommonJobOptions` of the client names it again, because type checkers read that class.

An option is a text, a whole number, a span in ms (a float), or true or false.  The words are those of the
flag.
"""

from typing import Annotated, Any, NamedTuple, get_args, get_type_hints

from msgspec import Meta, Struct
from msgspec.structs import fields

from bunqueue.model.durations import DAY_MS, YEAR_MS

Timeout = Annotated[float, Meta(ge=0, le=DAY_MS)]
KeptFor = Annotated[
    float,
    Meta(
        ge=1,
        le=10 * YEAR_MS,
        extra={"problem": "must be a positive number of milliseconds, at most 10 years"},
    ),
]


class RareOptions(Struct, rename="camel"):
    """The fields of these options; times are in ms."""

    stall_timeout: Annotated[Timeout | None, "Taken from its worker after this time without a heartbeat."] = (
        None
    )
    keep_logs: Annotated[
        Annotated[int, Meta(ge=0)] | None, "How many lines of its log to keep, at most 100."
    ] = None
    keep_completed: Annotated[KeptFor | None, "Remove it and its result so long after it completed."] = None
    keep_failed: Annotated[KeptFor | None, "Remove it so long after it failed for good."] = None


class Option(NamedTuple):
    """What is declared about an option; ``kind`` is str, int, float (a span in ms) or bool."""

    wire_name: str
    default: Any
    kind: type
    words: str


def _declared() -> dict[str, Option]:
    hints = get_type_hints(RareOptions, include_extras=True)
    found = {}
    for field in fields(RareOptions):
        kind, words = get_args(hints[field.name])
        found[field.name] = Option(field.encode_name, field.default, _plain(kind), words)
    return found


def _plain(kind: Any) -> type:
    """The type without bounds, and without None."""
    while parts := get_args(kind):
        kind = parts[0]
    assert isinstance(kind, type)
    return kind


RARE_OPTIONS = _declared()

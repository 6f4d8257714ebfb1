"""Job options that are more than a number or a text."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from typing import Literal, Protocol

from bunqueue.client.connection.options import Duration
from bunqueue.errors import DEFAULT_JITTER
from bunqueue.protocol.commands.core import KeyState


class HasId(Protocol):
    """A handle, a job, or anything else with a job's id."""

    @property
    def id(self) -> str: ...


JobRef = str | HasId
"""A job: its id, or anything that has it."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """The wait before a retry. The first wait is `delay`. For each later retry an "exponential" wait doubles,
    a "linear" one grows by `delay`, and a "constant" one stays the same. Each wait is varied by a random part
    of up to `jitter` (0.1 is a tenth), so that jobs that failed together are not retried together; 0 turns
    that off.

    No wait is longer than `max_delay`, which defaults to an hour, or to `delay` if that is longer.
    Alternatively `delays` lists all waits; the last one repeats. With `retry_after`, an exception that says
    how long to wait (see `bunqueue.retry_after`) is respected, up to `max_delay`.
    """

    delay: Duration = 1000
    type: Literal["constant", "fixed", "linear", "exponential"] = "exponential"
    """"fixed" is an alias for "constant"."""
    jitter: float = DEFAULT_JITTER
    max_delay: Duration | None = None
    delays: Sequence[Duration] | None = None
    retry_after: bool = False


OnConflict = Literal["keep", "replace", "extend", "reject", "supersede"]
"""What happens to a job whose unique key is taken:

- `keep`: it is not added; the handle is that of the existing job;
- `replace`: it replaces a job that waits; next to one that runs or has ended it is added;
- `extend`: like `keep`, and the key is held for another `ttl` from now on;
- `reject`: `DuplicateJob` is raised;
- `supersede`: like `replace`, but a running job is cancelled, and this one starts once that has stopped.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dedup:
    """What happens to a job whose `unique_key` is held by another one. Used together with `unique_key`.

    By default the job is not added as long as the other one waits or runs.
    """

    ttl: Duration | None = None
    """How long the key is held from now on, whether the job still waits, runs, has completed or failed; a job
    that is cancelled or removed releases it. Without a `ttl`, the key is held until the job has ended.
    """
    extend: bool = False
    """An alias for `on_conflict="extend"`."""
    replace: bool = False
    """Replace the holder, which is removed unless it runs. An error if jobs depend on it. With a `ttl`, an
    alias for `on_conflict="replace"`.
    """
    on_conflict: OnConflict | None = None
    """What happens when the key is taken; "keep" unless given."""
    states: Iterable[KeyState] | None = None
    """The states of the holder in which the key counts as taken, overriding the defaults above."""
    grace: Duration = 10_000
    """How long a superseded job may take to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unique:
    """One job of a kind for the same arguments: `unique=Unique(by="order", within=timedelta(minutes=5))`.

    The key is made from the job's name and its arguments, so it replaces `unique_key` and `dedup`.
    """

    by: str | Collection[str] | Callable[..., object] | None = None
    """The arguments that count: one name, several, or None for all. With `@app.job` also a function of the
    arguments that it names, as for `group`.
    """
    within: Duration | None = None
    """At most one job within this span, even after it has completed or failed. None: at most one that has not
    ended.
    """
    states: Iterable[KeyState] | None = None
    """Only while the other job is in one of these states."""
    on_conflict: OnConflict = "keep"
    """What happens if there is already such a job."""
    grace: Duration = 10_000
    """How long a superseded job may take to stop."""


@dataclass(frozen=True, slots=True)
class Debounce:
    """Run once no more jobs come for a while: each job with the same key replaces the one that waits, and
    restarts its delay. It replaces `unique_key`, `delay` and `Dedup(replace=True)`.
    """

    key: str
    wait: Duration


@dataclass(frozen=True, slots=True)
class Repeat:
    """Add the job again each time it has completed, to run after `every`, or at the next time of a cron
    expression.
    """

    every: Duration | None = None
    limit: int | None = None
    """How many times to repeat; no limit unless given."""
    _: KW_ONLY
    pattern: str | None = None
    """A cron expression in place of `every`: 5 fields, 6 with leading seconds, or @hourly, @daily, ..."""
    tz: str | None = None
    """For `pattern`, an IANA name such as Europe/Rome; UTC unless given."""
    start: datetime | float | None = None
    """No repetition runs before this: a datetime with a time zone, or epoch ms."""
    end: datetime | float | None = None
    """No repetition runs after this."""


OnFailure = Literal["fail", "ignore", "continue", "remove", "wait"]
"""What the failure of a child, after its last attempt, means for its parent:

- `fail`: the parent also fails, and so does its own parent if its policy says so;
- `ignore`: the parent runs when the others are done, and gets the error;
- `continue`: the parent runs at once, does not wait for the others, and gets the error;
- `remove`: the parent runs when the others are done, and gets nothing;
- `wait`: the parent keeps waiting, so that somebody can retry the child.
"""
POLICIES: dict[str, str] = {
    "fail": "fail_parent_on_failure",
    "ignore": "ignore_dependency_on_failure",
    "continue": "continue_parent_on_failure",
    "remove": "remove_dependency_on_failure",
    "wait": "",
}
"""The wire field of each policy; empty for the default."""

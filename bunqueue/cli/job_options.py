"""The options of jobs as flags: of those that are pushed, and of those that a schedule pushes.

Their bounds stand where the protocol declares them; the client checks them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from typing import Annotated, Any, NamedTuple, TypeVar

from .shared import parameters_of
from .values import SPAN, option, span

F = TypeVar("F", bound=Callable[..., None])


class Flag(NamedTuple):
    """How an option of `bunqueue.JobOptions` is said: ``kind``: int, str, bool, list (of texts) or span."""

    kind: Any
    about: str
    metavar: str | None = None
    names: tuple[str, ...] = ()


FLAGS: dict[str, Flag] = {
    "priority": Flag(int, "Higher is taken first. Default: 0.", "N", ("-P",)),
    "delay": Flag(span, "Not before this much time has passed.", SPAN, ("-d",)),
    "lifo": Flag(bool, "Before others of its priority, the newest first."),
    "max_attempts": Flag(int, "How often it may run. Default: 3.", "N"),
    "backoff": Flag(span, "The wait before a retry; doubles with each. Default: 1s.", SPAN),
    "ttl": Flag(span, "Dropped if not started within this time.", SPAN),
    "timeout": Flag(span, "An attempt that takes longer has failed.", SPAN),
    "stall_timeout": Flag(span, "Taken from its worker when that was silent for so long.", SPAN),
    "job_id": Flag(str, "An id of your own, unique over the whole server.", "ID"),
    "unique_key": Flag(str, "While a job with this key waits or runs, no other is added.", "KEY", ("-u",)),
    "group": Flag(str, "Jobs of a group have limits of their own.", "GROUP", ("-g",)),
    "depends_on": Flag(list, "A job that must complete before; may be repeated.", "ID"),
    "parent": Flag(str, "The job whose child it is.", "ID"),
    "tags": Flag(list, "A word to find it by; may be repeated.", "TAG", ("--tag",)),
    "repeat": Flag(span, "Added again each time it has completed, to run so much later.", SPAN),
    "remove_on_complete": Flag(bool, "Forget the job and its result when it has completed."),
    "remove_on_fail": Flag(bool, "Forget the job when it has failed for good."),
    "durable": Flag(bool, "Acknowledged only when it would survive a power loss."),
}


def with_job_options(names: Collection[str]) -> Callable[[F], F]:
    """Give a verb, whose last parameter is ``**options``, these options of jobs as flags."""

    def add(function: F) -> F:
        own = [each for each in parameters_of(function) if each.name != "options"]
        vars(function)["__signature__"] = inspect.Signature([*own, *(_parameter(name) for name in names)])
        return function

    return add


def _parameter(name: str) -> inspect.Parameter:
    flag = FLAGS[name]
    names = tuple(each for each in flag.names if each.startswith("--")) or (f"--{name.replace('_', '-')}",)
    declared = option(
        *names,
        *(each for each in flag.names if not each.startswith("--")),
        about=flag.about,
        metavar=flag.metavar,
        parser=span if flag.kind is span else None,
    )
    kinds: dict[Any, Any] = {span: float | None, list: list[str] | None, int: int | None, str: str | None}
    kind = kinds.get(flag.kind, bool)
    default = False if flag.kind is bool else None
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, declared]
    )


def given(options: dict[str, Any]) -> Any:
    """What was given of them, as `JobOptions`."""
    return {
        name: value
        for name, value in options.items()
        if value is not None and value is not False and value != []
    }

"""The wait before a retry: from the user's options to the wire format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bunqueue.client.connection.options import Duration, milliseconds, refused, unfit
from bunqueue.client.options import checks
from bunqueue.client.options.types import Backoff
from bunqueue.protocol.commands import core

_USUAL = Backoff()
HOUR_MS = 3_600_000  # the default for the longest wait


def backoff_map(value: Duration | Sequence[Duration] | Backoff, name: str) -> dict[str, object]:
    """The fields to send. Raises OptionError, beginning with `name`."""
    if isinstance(value, dict):
        raise refused(name, value, "is not a time; give a bunqueue.Backoff, or milliseconds")
    given = isinstance(value, Backoff | list | tuple)
    if isinstance(value, Backoff):
        backoff = value
    else:
        several = value.split(",") if isinstance(value, str) and "," in value else value
        if isinstance(several, Sequence) and not isinstance(several, str):
            backoff = Backoff(delays=several)
        else:
            backoff = Backoff(several)
    fields = _waits(backoff, name) if backoff.delays is None else _list_of_waits(backoff, name)
    fields |= {"jitter": backoff.jitter}
    if backoff.max_delay is not None:
        fields["max_delay"] = milliseconds(backoff.max_delay, f"{name}: max_delay")
    if checks.switch(f"{name}: retry_after", backoff.retry_after):
        fields["retry_after"] = True
    if given:
        checks.nested(core.BackoffMap, fields, name)
    else:
        checks.wire(core.BackoffMap, fields, delay=name)
    return {_BACKOFF_NAMES.get(field, field): each for field, each in fields.items()}


_TYPES = ("constant", "linear", "exponential", "fixed")
_BACKOFF_NAMES = {"max_delay": "maxDelay", "retry_after": "retryAfter"}


def _waits(backoff: Backoff, name: str) -> dict[str, object]:
    checks.one_of(f"{name}: type", backoff.type, _TYPES)
    delay = milliseconds(backoff.delay, name)
    fields: dict[str, object] = {"delay": delay, "type": backoff.type}
    if backoff.type == "constant":
        fields["type"] = "fixed"  # its name on the wire
    if delay > HOUR_MS and isinstance(backoff.jitter, int | float):  # else it would be cut to an hour
        fields["max_delay"] = delay * (1 + backoff.jitter)
    return fields


def _list_of_waits(backoff: Backoff, name: str) -> dict[str, object]:
    if (backoff.delay, backoff.type) != (_USUAL.delay, _USUAL.type):
        raise unfit(name, "delays says all waits already; leave out delay and type")
    delays = backoff.delays
    if not isinstance(delays, list | tuple) or not delays:
        raise refused(f"{name}: delays", delays, "is not allowed; give a list of times")
    *first, last = [milliseconds(each, f"{name}: delays") for each in delays]
    return {**_waits(replace(_USUAL, delay=last, type="constant"), name), "delays": first or [last]}

"""Unique keys made from the arguments of a job."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from hashlib import blake2b
from typing import Any, get_args

import msgspec
from msgspec import Raw

from bunqueue.client.connection.options import milliseconds, refused, shown, unfit
from bunqueue.client.options import checks
from bunqueue.client.options.types import Dedup, OnConflict, Unique
from bunqueue.errors import OptionError
from bunqueue.protocol.commands import core
from bunqueue.protocol.commands.core import KeyState

decode = msgspec.msgpack.Decoder().decode
_encode = msgspec.msgpack.Encoder(order="deterministic").encode  # equal maps are encoded alike
DIGEST = 16  # bytes; enough to rule out collisions in practice


def unique(value: Unique | bool, name: str) -> Unique | None:
    """The value of `unique=`; None for False. Raises OptionError."""
    if isinstance(value, bool):
        return Unique() if value else None
    return checks.one(name, value, Unique)


def names_of(wanted: Unique) -> tuple[str, ...] | None:
    """The arguments that count; None: all. Raises OptionError for invalid names."""
    by = wanted.by
    if by is None:
        return None
    names = (by,) if isinstance(by, str) else tuple(by) if isinstance(by, Collection) else ()
    if not names or not all(isinstance(name, str) and name for name in names):
        raise refused("unique: by", by, "is not allowed; give the names of arguments")
    return names


def dedup_of(wanted: Unique) -> Dedup:
    """What happens to a job whose key is taken."""
    return Dedup(ttl=wanted.within, on_conflict=wanted.on_conflict, states=wanted.states, grace=wanted.grace)


def wire_dedup(value: Dedup, name: str, ttl_name: str = "ttl") -> core.Dedup:
    """The fields to send. Raises OptionError, with the user's name for `ttl`."""
    checks.one(name, value, Dedup)
    if value.on_conflict is not None and (value.extend or value.replace):
        raise unfit(name, "on_conflict says that already; leave out extend and replace")
    policy = value.on_conflict
    if policy is None and (value.ttl is not None or value.states is not None):
        policy = "replace" if value.replace else "extend" if value.extend else "keep"
    if policy is None:
        return core.Dedup(extend=value.extend, replace=value.replace)
    checks.one_of(f"{name}: on_conflict", policy, get_args(OnConflict))
    if policy == "extend" and value.ttl is None:
        raise unfit(f"{name}: on_conflict", f"'extend' needs a time; give {ttl_name}, too")
    ttl = None if value.ttl is None else milliseconds(value.ttl, f"{name}: {ttl_name}")
    if ttl == 0:
        raise refused(f"{name}: {ttl_name}", value.ttl, "would hold the key for no time; give more, or None")
    grace = milliseconds(value.grace, f"{name}: grace")
    fields = {"ttl": ttl, "on_conflict": policy, "states": _states(value, name), "grace": grace}
    try:
        checks.wire(core.Dedup, fields, ttl=ttl_name)
    except OptionError as error:
        raise error.within(name) from None
    return core.Dedup(**fields)  # type: ignore[arg-type]


def _states(value: Dedup, name: str) -> list[str] | None:
    if value.states is None:
        return None
    states: list[str] = [value.states] if isinstance(value.states, str) else [*value.states]
    for state in states:
        checks.one_of(f"{name}: states", state, get_args(KeyState))
    if not states:
        raise unfit(f"{name}: states", "without any the key would never be held; give some, or None")
    return states


def key_of(wanted: Unique, name: str, payload: Raw, secret: bytes = b"") -> str:
    """The key of a job, from its name and its encoded data. Raises OptionError."""
    names, data = names_of(wanted), decode(payload)
    if names is not None:
        data = [_value(data, each) for each in names]
    return digest(name, data, secret)


def _value(data: Any, name: str) -> Any:
    if not isinstance(data, Mapping) or name not in data:
        raise OptionError(
            f"unique: by: the data of the job has no {name!r}; it is {shown(data)}",
            field="unique.by",
            value=data,
        )
    return data[name]


def digest(name: str, value: Any, secret: bytes = b"") -> str:
    """A key for jobs with this name and data. Without the secret nobody can test guesses of the data."""
    return f"{name}:{blake2b(_encode(value), digest_size=DIGEST, key=secret).hexdigest()}"


def keyed(fields: Mapping[str, Any], name: str, payload: Raw, secret: bytes = b"") -> Mapping[str, Any]:
    """The fields of a job with `unique` replaced by the unique key it asks for. Raises OptionError."""
    wanted = fields.get("unique")
    if wanted is None:
        return fields
    rest = {field: value for field, value in fields.items() if field != "unique"}
    return {**rest, "unique_key": key_of(wanted, name, payload, secret)}

"""Whether a value fits a JSON Schema, as far as the schema describes types.

Schemas and values come from clients, and are checked between the commands of other clients.  So regular
expressions are not supported, and the work is bounded.  Unknown keywords, and anything beyond the bounds,
count as fitting: the code that finally uses the value checks it as well.
"""

from __future__ import annotations

import datetime
import reprlib
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

MAX_WORK = 20_000  # parts of the value and of the schema that are checked; about 20 ms
MAX_DEPTH = 100
MAX_FORMATTED = 1_000  # characters of a text whose format is checked
MAX_SHOWN = 60  # characters of a value in a text
MAX_STEP = 100  # characters of a name in a path
COMPARED = 50  # what it counts to compare a list or an object with one of a schema
MAX_NAMED = 5  # names or values listed in a text
MAX_LEVELS = 2  # levels of alternatives listed in a text

Schema = Mapping[str, Any]


class Misfit(NamedTuple):
    """Where a value does not fit ("" for the value itself, otherwise as in `items[0].name`), what is expected
    there, and what was found."""

    path: str
    expected: str
    found: str


class _Problem(NamedTuple):
    """The same while alternatives are tried: of most problems nobody reads the text, so it is made last."""

    path: str
    expected: Callable[[], str]
    found: str


_FORMATS: dict[str, type] = {
    "date": datetime.date,
    "time": datetime.time,
    "date-time": datetime.datetime,
    "duration": datetime.timedelta,
    "uuid": UUID,
    "decimal": Decimal,
}
_ARTICLES = {
    "boolean": "true or false",
    "integer": "an integer",
    "number": "a number",
    "string": "a text",
    "object": "an object",
    "array": "a list",
    "null": "null",
}


class Budget:
    """How much may still be checked, of one value or of several."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left  # parts of values and schemas


def misfit(schema: Schema, value: object, budget: Budget | None = None) -> Misfit | None:
    """The first part of a value (decoded from MessagePack) that does not fit; None if everything fits.
    Several checks may share a ``budget``; each has at most MAX_WORK of it."""
    check = _Check(schema, MAX_WORK if budget is None else min(MAX_WORK, budget.left))
    before = check.left
    found = check.misfit(schema, value, "", 0)
    if budget is not None:
        budget.left -= before - max(0, check.left)
    return None if found is None else Misfit(found.path, found.expected(), found.found)


def words(schema: object, root: Schema | None = None) -> str:
    """What a schema requires, in a few words."""
    if not isinstance(schema, Mapping):
        return "nothing" if schema is False else "any value"
    check = _Check(schema if root is None else root)
    return check.words(check.resolved(schema))


class _Check:
    """The check of one value."""

    def __init__(self, root: Schema, work: int = MAX_WORK) -> None:
        self._root = root
        self.left = work

    def can(self, work: int) -> bool:
        """Count some work; return whether it is still within the bounds."""
        self.left -= work
        return self.left >= 0

    def misfit(self, schema: object, value: object, path: str, depth: int) -> _Problem | None:
        if not self.can(1) or depth > MAX_DEPTH:
            return None
        if schema is False:
            return _Problem(path, lambda: "nothing", _found(value))
        if not isinstance(schema, Mapping):
            return None
        if "$ref" in schema:
            return self.misfit(self.resolved(schema), value, path, depth + 1)
        if not (_is_of_type(schema, value) and self._is_allowed(schema, value)):
            return _Problem(path, lambda: self.words(schema), _found(value))
        if len(schema) == 1 and "type" in schema:  # as of most arguments
            return None
        for rule in _RULES:
            for problem in rule(self, schema, value, path, depth):
                if problem is not None or self.left < 0:
                    return problem
        return None

    def _is_allowed(self, schema: Schema, value: object) -> bool:
        allowed = _values(schema)
        if allowed is None or not self.can(len(allowed)):
            return True
        same = [each for each in allowed if type(each) is type(value)]
        if isinstance(value, list | dict) and not self.can(COMPARED * len(same)):
            return True
        return value in same

    def resolved(self, schema: Schema) -> Any:
        """Resolve a reference within the document."""
        for _ in range(MAX_DEPTH):
            reference = schema.get("$ref")
            if not isinstance(reference, str):
                return schema
            if not self.can(1 + len(reference) // 16):
                return {}
            found: Any = self._root if reference.startswith("#") else None
            for step in reference.removeprefix("#").split("/")[1:]:
                name = step.replace("~1", "/").replace("~0", "~")
                found = found.get(name) if isinstance(found, Mapping) else None
            if not isinstance(found, Mapping):
                return {}
            schema = found
        return {}

    def words(self, schema: object, depth: int = 0) -> str:
        if not isinstance(schema, Mapping):
            return "any value"
        if isinstance(allowed := _values(schema), list):
            return f"one of {_listed(allowed, _shown)}" if len(allowed) != 1 else _shown(allowed[0])
        if (ways := _ways(schema)) and depth < MAX_LEVELS:
            known = [self.resolved(way) for way in ways[:MAX_NAMED] if isinstance(way, Mapping)]
            some = [self.words(way, depth + 1) for way in known]
            return " or ".join(dict.fromkeys(some)) or "any value"
        kinds = _types(schema)
        text = " or ".join(_word(kind, schema) for kind in kinds) or "any value"
        required = schema.get("required")
        if isinstance(required, list) and required and "object" in kinds:
            text += f" with {_listed(required, _step)}"
        return text


def _word(kind: str, schema: Schema) -> str:
    form = schema.get("format")
    return f"a {form} as text" if kind == "string" and isinstance(form, str) else _ARTICLES.get(kind, kind)


def _is_of_type(schema: Schema, value: object) -> bool:
    kinds = _types(schema)
    return not kinds or any(_is(kind, value, schema) for kind in kinds)


def _is(kind: str, value: object, schema: Schema) -> bool:
    if kind == "null":
        return value is None
    if kind == "boolean":
        return isinstance(value, bool)
    if kind == "integer":
        return isinstance(value, int) and not isinstance(value, bool)
    if kind == "number":
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind == "object":
        return isinstance(value, dict)
    if kind == "array":
        return isinstance(value, list)
    if kind != "string":  # an unknown type
        return True
    if isinstance(value, bytes):
        return "contentEncoding" in schema or schema.get("format") in ("binary", "base64url")
    if not isinstance(value, str):  # of MessagePack's additional types, JSON Schema describes times as text
        return isinstance(value, datetime.datetime | msgspec.msgpack.Ext)
    expected = _FORMATS.get(str(schema.get("format")))
    return expected is None or len(value) > MAX_FORMATTED or _converts(value, expected)


def _converts(value: str, kind: type) -> bool:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "minimum": lambda value, bound: value >= bound,
    "maximum": lambda value, bound: value <= bound,
    "exclusiveMinimum": lambda value, bound: value > bound,
    "exclusiveMaximum": lambda value, bound: value < bound,
}
_LENGTHS: dict[type[Any], tuple[str, str]] = {
    str: ("minLength", "maxLength"),
    list: ("minItems", "maxItems"),
    dict: ("minProperties", "maxProperties"),
}
_BOUND_WORDS = {
    "minimum": "at least",
    "maximum": "at most",
    "exclusiveMinimum": "more than",
    "exclusiveMaximum": "less than",
}

Problems = Iterator[_Problem | None]


def _bounds(check: _Check, schema: Schema, value: Any, path: str, depth: int) -> Problems:
    if isinstance(value, int | float) and not isinstance(value, bool):
        for name, holds in _COMPARISONS.items():
            bound = schema.get(name)
            if isinstance(bound, int | float) and not holds(value, bound):
                expected = partial(_bounded, check, schema, f"{_BOUND_WORDS[name]} {bound}")
                yield _Problem(path, expected, _found(value))
    lengths = _LENGTHS.get(type(value))
    if lengths is not None:
        least, most = (schema.get(name) for name in lengths)
        if isinstance(least, int) and len(value) < least:
            yield _Problem(path, lambda: f"at least {least} {_units(value)}", f"{len(value)}")
        if isinstance(most, int) and len(value) > most:
            yield _Problem(path, lambda: f"at most {most} {_units(value)}", f"{len(value)}")


def _bounded(check: _Check, schema: Schema, bound: str) -> str:
    return f"{check.words(schema)} of {bound}"


def _property(check: _Check, known: object, name: str) -> str:
    return check.words(_of(check, known, name))


def _units(value: object) -> str:
    return "characters" if isinstance(value, str) else "entries"


def _properties(check: _Check, schema: Schema, value: Any, path: str, depth: int) -> Problems:
    if not isinstance(value, dict):
        return
    found, known = schema.get("required"), schema.get("properties")
    required = found if isinstance(found, list) else []
    if not check.can(len(required) + len(value)):
        return
    for name in _texts(required):
        if name not in value:
            yield _Problem(_below(path, name), partial(_property, check, known, name), "nothing")
    rest = schema.get("additionalProperties", True)
    for name, each in value.items():
        if isinstance(known, Mapping) and name in known:
            yield check.misfit(known[name], each, _below(path, str(name)), depth + 1)
        elif rest is not True:
            yield check.misfit(rest, each, _below(path, str(name)), depth + 1)


def _of(check: _Check, known: object, name: object) -> object:
    found = known.get(name) if isinstance(known, Mapping) else None
    return check.resolved(found) if isinstance(found, Mapping) else None


def _items(check: _Check, schema: Schema, value: Any, path: str, depth: int) -> Problems:
    if not isinstance(value, list):
        return
    first = schema.get("prefixItems")
    known: list[Any] = first if isinstance(first, list) else []
    rest = schema.get("items", True)
    some = value[: len(known)] if rest is True else value
    if not check.can(len(some)):
        return
    for place, each in enumerate(some):
        of = known[place] if place < len(known) else rest
        yield check.misfit(of, each, f"{path}[{place}]", depth + 1)


def _combined(check: _Check, schema: Schema, value: Any, path: str, depth: int) -> Problems:
    every = schema.get("allOf")
    for each in every if isinstance(every, list) else ():
        yield check.misfit(each, value, path, depth + 1)
    ways = _ways(schema)
    if ways:
        problems: list[_Problem] = []
        for way in ways:
            problem = check.misfit(way, value, path, depth + 1)
            if problem is None:
                return
            problems.append(problem)
        nearest = max(problems, key=lambda each: len(each.path))
        own = _Problem(path, lambda: check.words(schema), _found(value))
        yield nearest if nearest.path != path else own


_RULES = (_bounds, _properties, _items, _combined)


def _types(schema: Schema) -> list[str]:
    found = schema.get("type")
    if isinstance(found, list) and len(found) > len(_ARTICLES):  # no schema has a reason for that
        return []
    return [found] if isinstance(found, str) else _texts(found)


def _texts(found: object) -> list[str]:
    return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []


def _values(schema: Schema) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    found = schema.get("enum")
    return found if isinstance(found, list) else None


def _ways(schema: Schema) -> list[Any]:
    for name in ("anyOf", "oneOf"):
        if isinstance(found := schema.get(name), list):
            return found
    return []


def _below(path: str, name: str) -> str:
    return f"{path}.{_step(name)}" if path else _step(name)


def _step(name: object) -> str:
    return name[:MAX_STEP] if isinstance(name, str) else _shown(name)


def _found(value: object) -> str:
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    return _shown(value)


def _shown(value: object) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, msgspec.msgpack.Ext):
        return f"an extension of type {value.code}"
    some = value[: MAX_SHOWN + 1] if isinstance(value, str | bytes) else value
    text = reprlib.repr(some) if isinstance(some, list | dict) else repr(some)
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."


def _listed(each: list[Any], show: Callable[[object], str]) -> str:
    more = len(each) - MAX_NAMED
    return ", ".join(map(show, each[:MAX_NAMED])) + (f" and {more} more" if more > 0 else "")

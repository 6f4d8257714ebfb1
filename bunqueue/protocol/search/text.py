"""Conditions as people write them: ``state = failed and data.order.id = 7 and created > 2h ago``.

    query     = condition { "and" condition }
    condition = field comparison value  |  field ("=" | "!=" | "in") "(" value { "," value } ")"
    field     = state, name, tag, ... or data.path.to.field; a name in "quotes" may hold anything
    value     = a word, a "text" as in JSON, a 'text' as it is, a number, true, false, null; a moment, or a
                span and "ago"

In conditions on data, a word that is a JSON number, true, false or null has that value; in quotes it is text.
"""

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from bunqueue.model.states import STATES
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands.base import CommandError

from .conditions import EQUAL, FIELDS, UNEQUAL, Condition, Kind

MAX_CONDITIONS = 32  # of one search
MAX_VALUES = 100  # of one condition
MAX_SHOWN = 40  # characters of the query that an error shows

MAX_MOMENT = 10**15  # epoch ms, as in the fields of a command; the files store 64-bit integers

_TOKEN = re.compile(
    r"""\s*(?: (?P<text>"(?:[^"\\]|\\.)*") | (?P<sign>>=|<=|!=|=|<|>|~) | (?P<mark>[(),])
        | (?P<word>(?:[^\s"=<>!~(),]|"(?:[^"\\]|\\.)*")+) )""",
    re.VERBOSE,
)
_AS_IT_IS = re.compile(r"""\s*'([^']*)'(?=[\s(),]|$)""")
_STEP = re.compile(r"""(?:"((?:[^"\\]|\\.)*)"|([^."]+))(?:\.|$)""")
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d|w)")
_SPAN = re.compile(rf"(?:{_PART.pattern})+")
_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_text_of = msgspec.json.Decoder(str).decode
_scalar_of = msgspec.json.Decoder(int | float | bool | None).decode  # no lists: deep nesting could crash us

MOMENT = "give a moment such as 2026-01-31T12:00Z, epoch ms, or a span and ago, as in 2h ago"


class _Token:
    __slots__ = ("kind", "text")

    def __init__(self, kind: str, text: str) -> None:
        self.kind, self.text = kind, text

    @property
    def plain(self) -> str:
        """The text without its quotes."""
        if self.kind != "text":
            return self.text
        try:
            found = _text_of(self.text)
        except (msgspec.DecodeError, UnicodeError):
            raise problem(f"{_truncated(self.text)} is not a text as in JSON") from None
        return found


def problem(text: str) -> CommandError:
    """The refusal of a query."""
    return CommandError(f"where: {text}", Code.INVALID_FIELD, field="where")


def parsed(query: str, now: int) -> list[Condition]:
    """The conditions of a query, evaluated at time ``now`` (epoch ms).  CommandError if it is malformed."""
    tokens = _tokens(query)
    found: list[Condition] = []
    start = 0
    for place, token in enumerate([*tokens, _Token("word", "and")]):
        if token.kind == "word" and token.text.lower() == "and":
            found.append(_condition(tokens[start:place], now))
            start = place + 1
    if len(found) > MAX_CONDITIONS:
        raise problem(f"it has {len(found)} conditions, at most {MAX_CONDITIONS} are allowed")
    return found


def _tokens(query: str) -> list[_Token]:
    found: list[_Token] = []
    place, query = 0, query.rstrip()
    while place < len(query):
        if found and found[-1].kind in ("sign", "mark") and (match := _AS_IT_IS.match(query, place)):
            found.append(_Token("text", msgspec.json.encode(match[1]).decode()))
            place = match.end()
            continue
        match = _TOKEN.match(query, place)
        if match is None:
            raise problem(f"{_truncated(query[place:].strip())} cannot be read; is a quote missing?")
        found.append(_Token(match.lastgroup or "", match[match.lastgroup or 0]))
        place = match.end()
    return found


def _condition(tokens: Sequence[_Token], now: int) -> Condition:
    shown = _truncated(" ".join(token.text for token in tokens))
    if len(tokens) < 3 or tokens[0].kind not in ("word", "text"):
        sentence = f"{shown} is no condition" if tokens else "a condition is missing"
        raise problem(f"{sentence}: write a field, a comparison and a value, as in state = failed")
    field, path = _field(tokens[0].text)
    kind = FIELDS[field]
    sign = EQUAL if tokens[1].text.lower() == "in" else tokens[1].text
    if sign not in kind.comparisons:
        raise problem(
            f"{field} cannot be compared with {_truncated(sign)}; it takes {' '.join(kind.comparisons)}"
        )
    values = tuple(_value(field, kind, some, now) for some in _listed(tokens[2:], shown))
    if len(values) > 1 and sign not in (EQUAL, UNEQUAL):
        raise problem(f"{shown}: only = and != take several values")
    return Condition(field, sign, values, path)


def _field(text: str) -> tuple[str, tuple[str, ...]]:
    """Split a field's text into the field and the path in the data."""
    steps = path_of(text)
    field = steps[0].lower()
    if field not in FIELDS:
        raise problem(f"{_truncated(text)} is no field; there are {', '.join(FIELDS)}, and data.NAME")
    if field != "data" and len(steps) > 1:
        raise problem(f"{_truncated(text)}: only data has fields of its own; write data.{_truncated(text)}")
    return field, tuple(steps[1:])


def path_of(text: str) -> list[str]:
    """The steps of a path such as ``order.id`` or ``"order id".0``.  CommandError for anything else."""
    steps: list[str] = []
    place = 0
    while place < len(text):
        match = _STEP.match(text, place)
        if match is None:
            break
        steps.append(match[2] if match[1] is None else _Token("text", f'"{match[1]}"').plain)
        place = match.end()
    if place < len(text) or not steps or text.endswith("."):
        raise problem(f"{_truncated(text)} is no path: write names with dots between them, as in order.id")
    return steps


def _listed(tokens: Sequence[_Token], shown: str) -> list[Sequence[_Token]]:
    """The tokens of each value."""
    if tokens[0].text != "(" or tokens[0].kind != "mark":
        if any(token.kind in ("mark", "sign") for token in tokens):
            raise problem(f"{shown}: put quotes around a value with such signs in it")
        return [tokens]
    if tokens[-1].text != ")":
        raise problem(f"{shown}: a closing parenthesis is missing")
    values: list[list[_Token]] = [[]]
    for token in tokens[1:-1]:
        if token.kind == "mark" and token.text == ",":
            values.append([])
        elif token.kind in ("mark", "sign"):
            raise problem(f"{shown}: put quotes around a value with such signs in it")
        else:
            values[-1].append(token)
    if not all(values) or len(values) > MAX_VALUES:
        raise problem(f"{shown}: give one to {MAX_VALUES} values with commas between them")
    return list(values)


def _value(field: str, kind: Kind, tokens: Sequence[_Token], now: int) -> Any:
    words = " ".join(token.plain for token in tokens)
    if kind is Kind.TIME:
        return moment_of(words, now)
    if kind is Kind.ANY and (len(tokens) > 1 or tokens[0].kind == "text"):
        return words
    if kind in (Kind.ANY, Kind.NUMBER):
        found = _json(words)
        if kind is Kind.ANY or (isinstance(found, int | float) and not isinstance(found, bool)):
            return found
        raise problem(f"{field} is compared with numbers, and {_truncated(words)} is not one")
    if field == "state":
        return state_of(words)
    if field == "workflow":
        return _flag(field, words)
    return words


def _flag(field: str, words: str) -> bool:
    if words.lower() not in ("true", "false"):
        raise problem(f"{field} is true or false, not {_truncated(words)}")
    return words.lower() == "true"


def _json(words: str) -> Any:
    try:
        return _scalar_of(words)
    except (msgspec.DecodeError, UnicodeError):
        return words


def state_of(word: str) -> str:
    """The state with that name, or a refusal that lists all of them."""
    if word.lower() not in STATES:
        known = ", ".join(STATES)
        raise CommandError(
            f"state {word[:MAX_SHOWN]!r} is unknown; there are {known}",
            Code.INVALID_FIELD,
            field="state",
            value=word,
            bound=known,
        )
    return word.lower()


def moment_of(words: str, now: int) -> float:
    """A point in time as epoch ms: ``2026-01-31T12:00Z``, ``1767225600000``, ``2h ago``."""
    moment = _moment(words, now)
    if abs(moment) > MAX_MOMENT:
        raise problem(f"{_truncated(words)} is too far away; {MOMENT}")
    return moment


def _moment(words: str, now: int) -> float:
    span, _, rest = words.partition(" ")
    if rest.strip().lower() == "ago" and _SPAN.fullmatch(span):
        return now - sum(float(amount) * _UNITS[unit] for amount, unit in _PART.findall(span))
    if words.isascii() and words.isdigit() and len(words) < 16:
        return int(words)
    try:
        moment = datetime.fromisoformat(words)
    except ValueError:
        raise problem(f"{_truncated(words)} is no moment; {MOMENT}") from None
    if moment.tzinfo is None:
        raise problem(f"{_truncated(words)} has no time zone; {MOMENT}")
    return moment.timestamp() * 1000


def _truncated(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."

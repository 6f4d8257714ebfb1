"""Commands for several shards: splits them into parts, and merges the answers.

Pure.  The command table says how answers are merged (`Merge`).  Fields of a reply whose numbers are not added
up declare their own rule (`Across`).  The code finds the values to merge in the answers themselves, so a new
command of an existing kind needs no code here.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, get_args, get_type_hints

from msgspec import UNSET, Raw, Struct
from msgspec.msgpack import Decoder
from msgspec.structs import fields, replace

from bunqueue.protocol.codec import encode_frame, encode_reply
from bunqueue.protocol.codes import NOT_FOUND, Code
from bunqueue.protocol.commands import Command, CommandError, Merge, Reply, Route, Spec
from bunqueue.protocol.commands.base import LARGEST, Across, RequestId
from bunqueue.protocol.framing import HEADER, frame
from bunqueue.protocol.lenient import DECODE_ERRORS
from bunqueue.protocol.readable import salvaged
from bunqueue.protocol.search import cursor as cursors
from bunqueue.protocol.search import merging

_MAX_INT = 0x7FFF_FFFF  # larger numbers are sent as float64, which every client can read

_decode: Any = Decoder(dict[str, Any]).decode
_decode_any: Any = Decoder().decode
_decode_fields = Decoder(dict[str, Raw]).decode
_LIST_HEADS = {0xDC: 2, 0xDD: 4}  # first byte of a list of 16 or more: how many bytes of length follow

Answer = dict[str, Any]
Addition = Callable[[Answer], None]
Rules = dict[str, Any]  # by field: an `Across`, or the rules of a nested struct


class Part(NamedTuple):
    """The part of a command for one shard: a frame, and the positions of its ids in the whole command."""

    frame: bytes
    places: Sequence[int] = ()


def for_all(command: Command, shards: int) -> dict[int, Part]:
    """The same command for every shard."""
    part = Part(frame(encode_reply(replace(command, req_id=UNSET))))
    return dict.fromkeys(range(shards), part)


def for_some(spec: Spec, command: Command, shards: int, shard_of: Callable[[str], int]) -> dict[int, Part]:
    """The same command for every shard that it concerns; CommandError if its cursor cannot be read."""
    queue: str | None = getattr(command, "queue", None)
    if spec.route is Route.ALL or (queue is None and spec.route is Route.QUEUE_OR_ALL):
        return for_all(command, shards)
    shard = 0
    if queue is not None:
        shard = shard_of(queue)
    elif (given := command.cursor) is not None:  # type: ignore[attr-defined]  # the route guarantees it
        shard = (cursors.read(given).turn or 0) & (shards - 1)
    return {shard: Part(frame(encode_reply(replace(command, req_id=UNSET))))}


def split(spec: Spec, command: Command, shard_of: Callable[[str], int]) -> dict[int, Part]:
    """The parts of a command that names ids of several shards.

    The command's other lists correspond to the ids one to one; CommandError if one has another length.
    """
    ids: list[str] = command.ids  # type: ignore[attr-defined]  # Route.IDS guarantees it
    beside = _lists_beside(spec, command, len(ids))
    places: dict[int, list[int]] = {}
    for place, job_id in enumerate(ids):
        places.setdefault(shard_of(job_id), []).append(place)
    parts = {}
    for shard, chosen in places.items():
        changes = {name: [values[place] for place in chosen] for name, values in beside.items()}
        part = replace(command, req_id=UNSET, **changes)
        parts[shard] = Part(frame(encode_reply(part)), chosen)
    return parts


def _lists_beside(spec: Spec, command: Command, length: int) -> dict[str, list[Any]]:
    """The list fields of a command by name, including the ids."""
    lists: dict[str, list[Any]] = {}
    for field in fields(command):
        value = getattr(command, field.name)
        if isinstance(value, list):
            if len(value) != length:
                text = f"{spec.name} {field.encode_name} length must match ids length"
                raise CommandError(
                    text, Code.INVALID_FIELD, field=field.encode_name, value=len(value), bound=length
                )
            lists[field.name] = value
    return lists


class Gather:
    """Collects the answers of several shards to one command until each has answered."""

    __slots__ = ("_add", "_answers", "_ids", "_merge", "_parts", "_replies", "_reply", "waiting")

    def __init__(
        self,
        merge: Merge,
        parts: Mapping[int, Part],
        ids: Sequence[str] = (),
        add: Addition | None = None,
        reply: type[Reply] = Reply,
    ) -> None:
        """``reply``: the type of the answer; its fields say how their numbers are merged."""
        self._merge = _MERGES[merge]
        self._reply = reply
        self._add = add  # adds to the merged answer what no shard knows
        self._parts = parts
        self._ids = ids
        self._replies: dict[int, bytes] = {}
        self._answers: dict[int, Answer] = {}
        self.waiting = set(parts)  # the shards that have not answered

    @property
    def answered(self) -> bool:
        """Whether any shard has."""
        return bool(self._replies)

    def add(self, shard: int, reply: bytes) -> None:
        """Add the reply frame of a shard."""
        self._replies[shard] = reply
        self.waiting.discard(shard)

    def result(self, req_id: RequestId) -> bytes:
        """The merged answer as a frame; all shards must have answered."""
        read = _READ.get(self._merge, _whole)
        self._answers = {
            shard: read(memoryview(self._replies[shard])[HEADER:]) for shard in sorted(self._replies)
        }
        answers = list(self._answers.values())
        refused = [shard for shard in sorted(self._answers) if not self._answers[shard].get("ok")]
        if refused and (self._merge is not _any or len(refused) == len(answers)):
            merged = self._answers[min(refused, key=self._rank)]
        else:
            places = [self._parts[shard].places for shard in sorted(self._answers)]
            merged = self._merge(answers, places, self._reply)
            if self._add is not None:
                self._add(merged)
        if req_id is not UNSET:
            merged["reqId"] = req_id
        return encode_frame(merged)

    def _rank(self, shard: int) -> tuple[bool, int]:
        """Which refusal is reported: the smallest rank.  Where one answer would be enough, "not found" ranks
        last, because it may only mean that another shard has the thing."""
        plain = self._merge is _any and self._answers[shard].get("code") in NOT_FOUND
        return plain, self._place_of_error(shard)

    def _place_of_error(self, shard: int) -> int:
        """The position in the command of the job that an error is about: its id ends the error's text.

        An error that names no job is taken to be about the shard's first one.
        """
        places = self._parts[shard].places
        named = str(self._answers[shard].get("error")).rpartition(" ")[2]
        return next((place for place in places if self._ids[place] == named), places[0] if places else 0)


Merger = Callable[[Sequence[Answer], Sequence[Sequence[int]], type[Reply]], Answer]


def _ignored(answers: Sequence[Answer], places: Sequence[Sequence[int]], reply: type[Reply]) -> Answer:
    """The reports of all parts that came too late to count, in the order of the command."""
    found: list[tuple[int, str]] = []
    for answer, chosen in zip(answers, places, strict=True):
        data = answer.get("data")
        if data:
            indices = [chosen[index] for index in data["ignoredIndices"]]
            found += zip(indices, data["ignoredIds"], strict=True)
    if not found:
        return {"ok": True}
    found.sort()
    ids, indices = [job_id for _, job_id in found], [index for index, _ in found]
    return {"ok": True, "data": {"ignoredIds": ids, "ignoredIndices": indices}}


def _placed(answers: Sequence[Answer], places: Sequence[Sequence[int]], reply: type[Reply]) -> Answer:
    """The results of all parts, each at the position of its id."""
    found: dict[int, Any] = {}
    for answer, chosen in zip(answers, places, strict=True):
        found.update(zip(chosen, answer["results"], strict=True))
    return {"ok": True, "results": [found[place] for place in range(len(found))]}


def _any(answers: Sequence[Answer], places: Sequence[Sequence[int]], reply: type[Reply]) -> Answer:
    """The first successful answer."""
    return next(answer for answer in answers if answer.get("ok"))


def _count(answers: Sequence[Answer], places: Sequence[Sequence[int]], reply: type[Reply]) -> Answer:
    """The first answer, with the sum of all counts and the entries of all lists."""
    counted = [answer.get("data", answer) for answer in answers]
    merged = counted[0]
    for other in counted[1:]:
        merged["count"] += other["count"]
        for name, value in other.items():
            if isinstance(value, list):
                merged[name] = [*merged.get(name, ()), *value]
    return answers[0]


def _concat(answers: Sequence[Answer], places: Sequence[Sequence[int]], reply: type[Reply]) -> Answer:
    """The first answer, with the lists of the others appended to its lists."""
    merged = answers[0]
    for name, value in merged.items():
        if isinstance(value, Raw):
            merged[name] = _joined([answer[name] for answer in answers])
    return merged


def _sorted(answers: Sequence[Answer], places: Sequence[Sequence[int]], reply: type[Reply]) -> Answer:
    """The first answer, with the entries of all answers in its lists, sorted by name."""
    merged = answers[0]
    for name, value in merged.items():
        if isinstance(value, list):
            entries = [entry for answer in answers for entry in answer[name]]
            merged[name] = sorted(entries, key=operator.itemgetter("name"))
    return merged


def _whole(payload: memoryview) -> Answer:
    """An answer with everything that can be decoded: one user's payload must not spoil others' results."""
    try:
        return _decode(payload)  # type: ignore[no-any-return]
    except DECODE_ERRORS:
        return salvaged(payload)  # type: ignore[no-any-return]


def _shallow(payload: memoryview) -> Answer:
    """An answer whose lists stay encoded: they may be long, and are only joined."""
    fields = _decode_fields(payload)
    return {name: value if _is_list(value) else _decode_any(value) for name, value in fields.items()}


def _page(answers: Sequence[Answer], places: Sequence[Sequence[int]], reply: type[Reply]) -> Answer:
    """One page with the jobs of all answers; a single answer is returned unchanged."""
    return merging.page(answers)


def _is_list(value: Raw) -> bool:
    head = memoryview(value)[0]
    return head & 0xF0 == 0x90 or head in _LIST_HEADS


def _joined(lists: Sequence[Raw]) -> Raw:
    """Join encoded lists into one."""
    length, bodies = 0, []
    for raw in lists:
        encoded = memoryview(raw)
        width = _LIST_HEADS.get(encoded[0], 0)
        length += int.from_bytes(encoded[1 : 1 + width], "big") if width else encoded[0] & 0x0F
        bodies.append(encoded[1 + width :])
    return Raw(b"\xdd" + length.to_bytes(4, "big") + b"".join(bodies))


def _sum(answers: Sequence[Answer], places: Sequence[Sequence[int]], reply: type[Reply]) -> Answer:
    """Merge all answers: numbers are added up, lists joined, texts taken from the first that has one."""
    return _merged_maps(answers, rules_of(reply))


@cache
def rules_of(struct: type[Struct]) -> Rules:
    """How the numbers in a reply's fields and nested structs are merged; keyed by their wire names."""
    hints = get_type_hints(struct, include_extras=True)
    found = {field.encode_name: _rule(hints[field.name]) for field in fields(struct)}
    return {name: rule for name, rule in found.items() if rule}


def _rule(hint: Any) -> Across | Rules | None:
    for part in (hint, *getattr(hint, "__metadata__", ()), *get_args(hint)):
        if isinstance(part, Across):
            return part
        if isinstance(part, type) and issubclass(part, Struct):
            return rules_of(part)
    return None


def _merged_maps(maps: Sequence[Answer], rules: Rules) -> Answer:
    return {key: _merged_values([each[key] for each in maps], rules.get(key), maps) for key in maps[0]}


def _merged_values(values: list[Any], rule: Across | Rules | None, maps: Sequence[Answer]) -> Any:
    """Merge the values of one key in these maps."""
    present = [value for value in values if value is not None]
    if not present:
        return None
    first = present[0]
    if isinstance(first, dict):
        return _merged_maps(present, rule if isinstance(rule, dict) else {})
    if isinstance(first, list):
        return [entry for value in present for entry in value]
    if isinstance(first, bool):
        return any(present)
    if not isinstance(first, int | float):
        return first
    if not isinstance(rule, Across):
        return _portable(sum(present))
    if rule.weight:
        return _mean(values, [each[rule.weight] for each in maps])
    return _portable(max(present) if rule is LARGEST else min(present))


def _mean(means: Sequence[float], weights: Sequence[int]) -> float:
    total = sum(weights)
    return sum(map(operator.mul, means, weights)) / total if total else 0.0


def _portable(number: float) -> float:
    return float(number) if number > _MAX_INT else number


_MERGES: dict[Merge, Merger] = {
    Merge.FIRST_ERROR: _ignored,
    Merge.PLACED: _placed,
    Merge.ANY: _any,
    Merge.COUNT: _count,
    Merge.CONCAT: _concat,
    Merge.SORTED: _sorted,
    Merge.SUM: _sum,
    Merge.PAGE: _page,
}
_READ: dict[Merger, Callable[[memoryview], Answer]] = {_concat: _shallow, _page: merging.read}

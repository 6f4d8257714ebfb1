"""Where a command goes: finds the shard of its queue or id, and decodes nothing else.

Pure. Every command of the table gets a `Peek` class with just the field that determines its shard, and one
tagged union of these decodes a payload: known names, required keys and their types are checked in C, and
everything else is skipped there. What the union refuses, `peek_in_full` decodes in full, either to report
what is wrong or to find that the command is valid after all.

Routing never hashes more than some hundred characters: hashing is done in Python, and one client must not
keep all others waiting with a name of megabytes.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Union, cast

from msgspec import Raw, Struct, defstruct
from msgspec.msgpack import Decoder

from bunqueue.model.ids import SLOTS, UUID_LENGTH, slot_of_id, slot_of_queue
from bunqueue.model.marks import Mark
from bunqueue.model.names import MAX_QUEUE_NAME
from bunqueue.protocol.codec import NO_COMMAND, InvalidCommand, decode_command, encode_reply, request_id
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import COMMANDS, Command, CommandError, Route, Spec
from bunqueue.protocol.commands.base import AnyTimeout
from bunqueue.protocol.lenient import DECODE_ERRORS
from bunqueue.protocol.namespaces import inside, place_of

# How a command is routed. Plain ints: they are compared for every command, and faster than enum members.
QUEUE = 0  # the shard of the queue
ID = 1  # the shard of the job id
SLOW = 2  # one shard (its ``way`` is QUEUE, ID or FIRST), and it may be answered late
IDS = 3  # the shards of several ids
ALL = 4
HERE = 5  # answered by the router
FIRST = 6  # the first shard
AUDITED = 8  # one shard, as QUEUE, ID and SLOW, and it leaves an entry in the trail
SUBSCRIBE = 7  # the shard of the queue, which then sends events

ONE_SHARD = frozenset({QUEUE, ID, FIRST})  # commands for several shards count as slow anyway

MAX_CACHED_QUEUES = 100_000  # some 20 MB of names and numbers; then the cache is emptied

MAX_IDS = 10_000  # in one command with ids of several queues; ten times what one pull may return


class Peek(Struct, gc=False):
    """What the router reads of a command. Which fields exist depends on ``handling``."""

    if TYPE_CHECKING:  # else msgspec would read them again for each command
        handling: ClassVar[int]
        way: ClassVar[int]  # the same, whatever else it is
        spec: ClassVar[Spec]
        key: Any  # the queue, the id, or (not decoded) the ids; absent for ALL and HERE
        timeout: Any  # only for SLOW commands that park


_KEYS: dict[Route, Any] = {Route.QUEUE: str, Route.ID: str, Route.IDS: Raw}
_WAYS = {
    Route.QUEUE: QUEUE,
    Route.ID: ID,
    Route.IDS: IDS,
    Route.ALL: ALL,
    Route.QUEUE_OR_ALL: ALL,
    Route.QUEUE_OR_EACH: ALL,
    Route.ROUTER: HERE,
    Route.FIRST: FIRST,
}


def _handling(spec: Spec, way: int) -> int:
    if spec.subscribes:
        return SUBSCRIBE
    if way in ONE_SHARD and (spec.parks or spec.heavy):
        return AUDITED if spec.is_audited else SLOW
    return AUDITED if spec.is_audited and way in (QUEUE, ID) else way


def _peek_class(spec: Spec) -> type[Peek]:
    """The peek of one command: a struct with just the fields that determine its way."""
    kind = _KEYS.get(spec.route)
    # `msgspec.structs.fields` would also resolve the types, and make the import of this module twice as long.
    names = zip(spec.request.__struct_fields__, spec.request.__struct_encode_fields__, strict=True)
    wire = dict(names).get(spec.key, "")
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = [("key", kind)] if kind else []
    if spec.parks:
        fields.append(("timeout", AnyTimeout, None))
    way = _WAYS[spec.route]
    made: Any = defstruct(
        f"{spec.name}Peek",
        fields,
        bases=(Peek,),
        namespace={"handling": _handling(spec, way), "way": way, "spec": spec},
        tag_field="cmd",
        tag=spec.name,
        rename={"key": wire},
        gc=False,
    )
    return cast("type[Peek]", made)


_PEEKS = {name: _peek_class(spec) for name, spec in COMMANDS.items()}
_AnyPeek: Any = Union[tuple(_PEEKS.values())]  # noqa: UP007
peek: Any = Decoder(_AnyPeek).decode


_decode_ids = Decoder(list[str]).decode
_MARKS = {QUEUE: Mark.QUEUE, ID: Mark.ID}


def enter(prefix: str, peeked: Peek) -> None:
    """Make the key of a command the one that the server has, for a client that lives in a namespace.
    CommandError if that is no name."""
    if (mark := _MARKS.get(peeked.way)) is not None:
        peeked.key = inside(prefix, mark, peeked.key)
    elif peeked.way == IDS:
        with suppress(*DECODE_ERRORS):  # its shard says what is wrong with it
            ids: list[str] = _decode_ids(peeked.key)
            peeked.key = Raw(encode_reply([place_of(prefix, Mark.ID, each) for each in ids]))


def decode(payload: bytes) -> Command:
    """The whole command. Raises only InvalidCommand, which says what is wrong."""
    try:
        return decode_command(payload)
    except DECODE_ERRORS:
        raise InvalidCommand(NO_COMMAND, request_id(payload)) from None


def peek_in_full(payload: bytes) -> Peek:
    """Decode in full what `peek` refused; InvalidCommand says why it was right to refuse."""
    command = decode(payload)
    spec = COMMANDS[str(command.__struct_config__.tag)]
    fields = [getattr(command, spec.key)] if spec.route in _KEYS else []
    if spec.route is Route.IDS:
        fields = [Raw(encode_reply(fields[0]))]
    if spec.parks:
        fields.append(getattr(command, "timeout", None))
    return _PEEKS[spec.name](*fields)


class Routes:
    """Finds the shard of names and ids, for one number of shards."""

    __slots__ = ("_mask", "_tags", "queues", "shards")

    def __init__(self, shards: int) -> None:
        self.shards = shards
        self._mask = shards - 1
        # Public: the caller looks here first and calls `of_queue` only for a name that is missing.
        self.queues: dict[str, int] = {}
        # "-7abc", as it appears in the middle of an id that the server made -> shard of slot 0xabc
        self._tags = {f"-7{slot:03x}": slot & self._mask for slot in range(SLOTS)}

    def of_peek(self, peeked: Peek) -> int:
        """The shard of a SLOW or AUDITED command."""
        if peeked.way == QUEUE:
            return self.of_queue(peeked.key)
        return self.of_id(peeked.key) if peeked.way == ID else 0

    def of_queue(self, name: str) -> int:
        """The shard of a queue, which is added to ``queues``."""
        known = self.queues.get(name)
        if known is not None:
            return known
        if len(name) > MAX_QUEUE_NAME:  # any shard refuses it
            return slot_of_queue(name[:MAX_QUEUE_NAME]) & self._mask
        if len(self.queues) >= MAX_CACHED_QUEUES:
            self.queues.clear()
        shard = self.queues[name] = slot_of_queue(name) & self._mask
        return shard

    def of_id(self, job_id: str) -> int:
        """The shard of a job id."""
        if len(job_id) == UUID_LENGTH:
            shard = self._tags.get(job_id[13:18])
            if shard is not None:
                return shard
        return slot_of_id(job_id) & self._mask

    def of_ids(self, ids: bytes | memoryview | Raw) -> int | None:
        """The shard of all these ids, a MessagePack list (0 if it is empty).

        None if they belong to several shards, or it is not a list of ids. A worker's batch mostly comes from
        one queue; comparing the bytes shows that in a tenth of the time that decoding takes. CommandError if
        there are so many other ids that finding their shards would keep all clients waiting.
        """
        if not self._mask:
            return 0
        raw = memoryview(ids)
        start, count = _list_header(raw)
        tag = bytes(raw[start + _TAG : start + _TAG + 5])  # of the first one
        shard = self._tags.get(tag.decode("latin-1"))
        if shard is not None and _all_have(tag, raw, start, count):
            return shard
        if count > MAX_IDS:
            raise CommandError(
                f"ids must have at most {MAX_IDS} entries when they belong to several queues",
                Code.INVALID_FIELD,
                field="ids",
                value=count,
                bound=MAX_IDS,
            )
        try:
            decoded: list[str] = _decode_ids(raw)
        except DECODE_ERRORS:
            return None
        found = None
        for job_id in decoded:
            shard = self.of_id(job_id)
            if found is None:
                found = shard
            elif found != shard:
                return None
        return found or 0


_STRIDE = 2 + UUID_LENGTH  # of a list of ids that the server made: two bytes of header each
_TAG = 2 + 13  # where in these 38 bytes the slot begins, with the "-7" before it


def _list_header(raw: memoryview) -> tuple[int, int]:
    """The position of the first entry of a MessagePack list, and the number of entries; 0 if it is not a
    list."""
    first = raw[0]
    if first & 0xF0 == 0x90:  # fixarray
        return 1, first & 0x0F
    start = {0xDC: 3, 0xDD: 5}.get(first, 1)  # array16, array32
    return start, int.from_bytes(raw[1:start], "big")


def _all_have(tag: bytes, raw: memoryview, start: int, count: int) -> bool:
    """Whether these are UUIDs that all have this tag for the slot."""
    if len(raw) != start + count * _STRIDE:
        return False
    texts = bytearray(raw[start:])
    if texts[::_STRIDE] != b"\xd9" * count or texts[1::_STRIDE] != b"\x24" * count:  # str8 of 36 bytes
        return False
    del texts[::_STRIDE]  # the byte that is not ASCII
    places = range(_TAG - 1, _TAG + 4)
    return texts.isascii() and all(
        texts[place :: _STRIDE - 1] == tag[index : index + 1] * count for index, place in enumerate(places)
    )

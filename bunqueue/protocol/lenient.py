"""The second, lenient decoding of a command that the typed decoder refused.

Everything here is derived from the declared types.  `clean` accepts how other encoders write absent fields
and whole numbers.  For anything else it raises a CommandError that names the field and the bound.

A refusal must not cost more than an acceptance, so a value is checked before it is decoded: a scalar by its
first byte, a list or a map by the length that it declares.  `msgpack` decodes the scalars: it has no opinion
about types, so a value of the wrong type can be shown in the refusal.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec.inspect as mi
from msgpack import ExtType, unpackb
from msgspec import NODEFAULT, MsgspecError, Raw, Struct
from msgspec.msgpack import Decoder

from bunqueue.model.decoders import decoder
from bunqueue.model.job import NIL
from bunqueue.model.names import queue_name_problem
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands.base import CommandError, invalid
from bunqueue.protocol.commands.core import AddedJob
from bunqueue.protocol.heads import HEAD, is_container, is_map, parts
from bunqueue.protocol.readable import reason

# What decoding of hostile bytes may raise; causes include text that is not UTF-8, and too deep nesting.
DECODE_ERRORS = (MsgspecError, ValueError, OverflowError, RecursionError)
MAX_INTEGER = 2**63  # what MessagePack and SQLite can hold
UNDEFINED = 0  # the extension type some encoders send for "no value"

MAX_FIELDS = 1000  # of an object; no declared type has even a tenth of that

_decode_fields = Decoder(dict[str, Raw]).decode
_decode_list = Decoder(list[Raw]).decode


def clean(struct: type[Struct], fields: dict[str, Raw]) -> dict[str, object]:
    """The fields of ``struct`` as the typed decoder accepts them; unknown ones are dropped, or refused."""
    if struct.__struct_config__.forbid_unknown_fields:
        _refuse_unknown(struct, fields)
    out: dict[str, object] = {}
    for field in _fields(struct):
        name = field.encode_name
        raw = fields.get(name)
        if raw is not None and _absent(raw, field):
            raw = None
        if raw is not None:
            out[name] = _check(field.type, raw, name)
        elif field.required:
            if name == "queue":
                raise CommandError("Queue name is required", Code.INVALID_QUEUE, field=name, value=None)
            raise invalid(name, _problem(field.type) or "is required")
    return out


def _refuse_unknown(struct: type[Struct], fields: dict[str, Raw]) -> None:
    known = [field.encode_name for field in _fields(struct)]
    for name in fields:
        if name not in known:
            text = f"{name[:64]} is unknown; there are {', '.join(known)}"
            raise CommandError(text, Code.UNKNOWN_FIELD, field=name[:64], bound=", ".join(known))


@cache
def _fields(struct: type[Struct]) -> tuple[mi.Field, ...]:
    """The declared fields in the order of their checks, the queue first."""
    fields = [field for field in declared_fields(struct) if field.encode_name != "reqId"]
    return tuple(sorted(fields, key=lambda field: field.encode_name != "queue"))


def declared_fields(struct: type[Struct]) -> list[mi.Field]:
    """The fields of a structure; the options that all jobs share come last."""
    info = mi.type_info(struct)
    assert isinstance(info, mi.StructType)
    shared = AddedJob.__struct_fields__ if issubclass(struct, AddedJob) else ()
    return sorted(info.fields, key=lambda field: field.name in shared)


def _problem(kind: mi.Type) -> str | None:
    """The error text of a type for all values that do not fit it."""
    return (kind.extra or {}).get("problem") if isinstance(kind, mi.Metadata) else None


def _absent(raw: Raw, field: mi.Field) -> bool:
    """Whether a value means an absent option: undefined, or null if null is not a value of the field."""
    first = bytes(memoryview(raw)[:1])
    if first == b"\xc0":
        return not (isinstance(field.type, mi.RawType) or _takes_null(field))
    if first not in (b"\xc7", b"\xd4"):
        return False
    value = scalar(raw, field.encode_name)
    return isinstance(value, ExtType) and value.code == UNDEFINED


def _takes_null(field: mi.Field) -> bool:
    """Whether null is a real value of the field, different from its absence."""
    types = field.type.types if isinstance(field.type, mi.UnionType) else ()
    unset = not field.required and field.default is NODEFAULT and field.default_factory is NODEFAULT
    return unset and any(isinstance(member, mi.NoneType) for member in types)


def decode_fields(raw: bytes | Raw, name: str) -> dict[str, Raw]:
    """The undecoded fields of a map.  CommandError for too many fields; DECODE_ERRORS for other values."""
    if is_map(head := memoryview(raw)[:HEAD]) and parts(head) > 2 * MAX_FIELDS:
        raise invalid(name, f"must have at most {MAX_FIELDS} fields", bound=MAX_FIELDS)
    return _decode_fields(raw)


def scalar(raw: bytes | Raw, name: str) -> Any:
    """Decode a value that should be a scalar.  A list or a map is not decoded: a dummy of its kind is
    returned."""
    head = memoryview(raw)[:HEAD]
    if is_container(head):
        return {} if is_map(head) else [None] * min(1, parts(head))
    try:
        return unpackb(raw)
    except DECODE_ERRORS as error:
        text = f"{name} is malformed: {reason(error)}"
        raise CommandError(text, Code.INVALID_DATA, field=name) from None


def _check(kind: mi.Type, raw: Raw, name: str) -> object:
    """The converted value of one field; CommandError if it does not fit its type."""
    if isinstance(kind, mi.RawType):
        return raw
    if isinstance(kind, mi.Metadata):
        try:
            return _check(kind.type, raw, name)
        except CommandError as error:
            if problem := _problem(kind):
                label = (kind.extra or {}).get("label", name)
                raise error.within(f"{label} {problem}", name) from None
            raise
    if isinstance(kind, mi.UnionType):
        return _check_union(kind, raw, name)
    if isinstance(kind, mi.CollectionType):
        return _check_list(kind, raw, name)
    if isinstance(kind, mi.StructType):
        return _check_struct(kind, raw, name)
    if isinstance(kind, mi.DictType):
        return _check_dict(kind, raw, name)
    return _check_plain(kind, scalar(raw, name), name)


def _check_struct(kind: mi.StructType, raw: Raw, name: str) -> object:
    try:
        fields = decode_fields(raw, name)
    except DECODE_ERRORS as error:
        called = getattr(kind.cls, "CALLED", "a map")
        raise invalid(name, f"must be {called}") from error
    try:
        return clean(kind.cls, fields)
    except CommandError as error:
        # The caller that iterates over a list adds the names of its entries.
        text = str(error) if name.endswith("]") else f"{name}.{error}"
        raise error.within(text, f"{name}.{error.field}") from None


def _check_plain(kind: mi.Type, value: object, name: str) -> object:
    if isinstance(kind, mi.IntType | mi.FloatType):
        return _check_number(kind, value, name)
    if isinstance(kind, mi.StrType):
        problem = queue_name_problem(value) if name == "queue" else None
        if problem or not isinstance(value, str):
            if problem:
                raise CommandError(problem, Code.INVALID_QUEUE, field=name, value=value)
            raise invalid(name, "must be a string", value)
        if kind.min_length is not None and len(value) < kind.min_length:
            least = kind.min_length
            problem = "must be a non-empty string" if least == 1 else f"must be at least {least} characters"
            raise invalid(name, problem, value, least)
        if kind.max_length is not None and len(value) > kind.max_length:
            raise invalid(name, f"must be at most {kind.max_length} characters", value, kind.max_length)
        if kind.pattern is not None and not re.search(kind.pattern, value):
            raise invalid(name, f"must match {kind.pattern}", value)
    elif isinstance(kind, mi.BoolType):
        if not isinstance(value, bool):
            raise invalid(name, "must be true or false", value)
    elif isinstance(kind, mi.LiteralType):
        if value not in kind.values:
            known = " or ".join(map(repr, sorted(kind.values, key=str, reverse=True)))
            raise invalid(name, f"must be {known}", value, known)
    elif isinstance(kind, mi.NoneType) and value not in (None, [], False):
        text = f"{name} is not supported by this version of the server"
        raise CommandError(text, Code.UNSUPPORTED_FIELD, field=name, value=value)
    return value if not isinstance(kind, mi.NoneType) else None


def _check_number(kind: mi.IntType | mi.FloatType, value: object, name: str) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise invalid(name, "must be a number", value)
    if isinstance(kind, mi.IntType):
        if abs(value) >= MAX_INTEGER or value != int(value):
            raise invalid(name, "must be an integer", value)
        value = int(value)
    if kind.ge is not None and value < kind.ge:
        raise invalid(name, f"must be at least {int(kind.ge)}", value, int(kind.ge))
    if kind.le is not None and value > kind.le:
        raise invalid(name, f"must be at most {int(kind.le)}", value, int(kind.le))
    return value


def _check_union(kind: mi.UnionType, raw: Raw, name: str) -> object:
    """Convert by the first member that accepts the value; else raise the error of the first member that takes
    this kind of container."""
    first: CommandError | None = None
    head = memoryview(raw)[:HEAD]
    if head == NIL and any(isinstance(member, mi.NoneType) for member in kind.types):
        return None
    containers = (mi.StructType, mi.DictType) if is_map(head) else (mi.CollectionType,)
    fitting = [member for member in kind.types if isinstance(_bare(member), containers)]
    for member in (is_container(head) and fitting) or kind.types:
        if isinstance(member, mi.NoneType):
            continue
        try:
            return _check(member, raw, name)
        except CommandError as error:
            first = first or error
    raise first or invalid(name, "is malformed")


def _check_list(kind: mi.CollectionType, raw: Raw, name: str) -> object:
    head = memoryview(raw)[:HEAD]
    if kind.max_length is not None and not is_map(head) and parts(head) > kind.max_length:
        raise invalid(name, f"must have at most {kind.max_length} entries", bound=kind.max_length)
    try:
        items = _decode_list(raw)
    except DECODE_ERRORS:
        raise invalid(name, "must be a list") from None
    if kind.min_length is not None and len(items) < kind.min_length:
        entries = "entry" if kind.min_length == 1 else "entries"
        raise invalid(name, f"must have at least {kind.min_length} {entries}", bound=kind.min_length)
    out: list[object] = []
    for index, item in enumerate(items):
        where = f"{name}[{index}]"
        if isinstance(kind.item_type, mi.StructType):
            if _fits(kind.item_type.cls, item):  # usually only one entry of thousands is wrong
                out.append(item)
                continue
            try:
                out.append(_check(kind.item_type, item, where))
            except CommandError as error:
                text = str(error)
                text = text if text.startswith(where) else f"{where}: {text}"
                path = error.field if str(error.field).startswith(where) else f"{where}.{error.field}"
                raise error.within(text, str(path)) from None
        else:
            out.append(_check(kind.item_type, item, where))
    return out


def _check_dict(kind: mi.DictType, raw: Raw, name: str) -> object:
    """A map whose keys are chosen by the sender."""
    head = memoryview(raw)[:HEAD]
    if kind.max_length is not None and is_map(head) and parts(head) > 2 * kind.max_length:
        raise invalid(name, f"must have at most {kind.max_length} entries", bound=kind.max_length)
    try:
        entries = _decode_fields(raw)
    except DECODE_ERRORS:
        raise invalid(name, "must be a map with texts as names") from None
    out = {}
    for key, value in entries.items():
        _check_plain(_bare(kind.key_type), key, f"a name in {name}")
        out[key] = _check(kind.value_type, value, f"{name}.{key}")
    return out


def _bare(kind: mi.Type) -> mi.Type:
    return kind.type if isinstance(kind, mi.Metadata) else kind


def _fits(struct: type[Struct], raw: Raw) -> bool:
    try:
        _decoder(struct)(raw)
    except DECODE_ERRORS:
        return False
    return True


@cache
def _decoder(struct: type[Struct]) -> Callable[[Raw], object]:
    return decoder(struct).decode

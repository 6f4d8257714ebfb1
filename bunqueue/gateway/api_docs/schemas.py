"""JSON schemas of the structures in commands and replies.

msgspec's own schemas are not used: they cannot show defaults that are already encoded.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec.inspect as mi
from msgspec import NODEFAULT, UNSET, Raw, Struct

from bunqueue.protocol.lenient import declared_fields

Schema = dict[str, Any]

REFERENCE = "#/components/schemas/"
HIDDEN = ("req_id",)  # belongs to a connection
_PLAIN: dict[type[mi.Type], Schema] = {
    mi.AnyType: {},
    mi.RawType: {},
    mi.NoneType: {"type": "null"},
    mi.BoolType: {"type": "boolean"},
}
_BOUNDS = {
    "ge": "minimum",
    "le": "maximum",
    "pattern": "pattern",
}


def prose(text: str) -> str:
    """A docstring as Markdown."""
    return re.sub(r"``([^`]+)``", r"`\1`", " ".join(text.split()))


class Schemas:
    """Makes schemas.  Collects those of the structures that they refer to in ``components``."""

    def __init__(self, reference: str = REFERENCE) -> None:
        """``reference`` is the place of the ``components`` in the document."""
        self.components: dict[str, Schema] = {}
        self._reference = reference
        self._names: dict[type, str] = {}
        self._closing = False

    def of_request(self, struct: type[Struct]) -> Schema:
        """The schema of a command.  The command and its options allow no other fields: see `unknown`."""
        self._closing = True
        try:
            return self.of(struct)
        finally:
            self._closing = False

    def of(self, struct: type[Struct]) -> Schema:
        """The schema of a structure."""
        info = mi.type_info(struct)
        assert isinstance(info, mi.StructType)
        fields = [field for field in declared_fields(struct) if field.name not in HIDDEN]
        schema: Schema = {
            "type": "object",
            "properties": {field.encode_name: self._field(field) for field in fields},
            "required": [field.encode_name for field in fields if field.required],
        }
        if info.forbid_unknown_fields or self._closing:
            schema["additionalProperties"] = False
        if "__doc__" in vars(struct) and struct.__doc__:
            schema["description"] = prose(struct.__doc__)
        return schema

    def _field(self, field: mi.Field) -> Schema:
        schema = self._type(field.type)
        default = field.default
        if default is NODEFAULT or default is UNSET or default is None or isinstance(default, Raw):
            return schema
        return {**schema, "default": default}

    def _type(self, kind: mi.Type) -> Schema:
        if isinstance(kind, mi.Metadata):
            return {**self._type(kind.type), **(kind.extra_json_schema or {})}
        if isinstance(kind, mi.UnionType):
            return self._union([each for each in kind.types if not _is_unset(each)])
        if isinstance(kind, mi.StructType):
            return {"$ref": self._reference + self._refer(kind.cls)}
        if isinstance(kind, mi.LiteralType):
            return {"enum": list(kind.values)}
        if isinstance(kind, mi.ListType):
            return {"type": "array", "items": self._type(kind.item_type), **_length(kind, "Items")}
        if isinstance(kind, mi.DictType):
            return {"type": "object", "additionalProperties": self._type(kind.value_type)}
        if isinstance(kind, mi.IntType | mi.FloatType | mi.StrType):
            return _simple(kind)
        return dict(_PLAIN[type(kind)])

    def _union(self, kinds: list[mi.Type]) -> Schema:
        found: list[Schema] = []
        for kind in kinds:
            if (schema := self._type(kind)) not in found:
                found.append(schema)
        return found[0] if len(found) == 1 else {"anyOf": found}

    def _refer(self, struct: type[Struct]) -> str:
        """The name of a structure.  Its schema is added to the components."""
        name = self._names.get(struct)
        if name is None:
            name = struct.__name__.lstrip("_")
            if name in self.components:  # the name belongs to another family
                name = f"{struct.__module__.rpartition('.')[2].capitalize()}{name}"
            self._names[struct] = name
            self.components[name] = {}  # it may refer to itself
            self.components[name] = self.of(struct)
        return name


def _is_unset(kind: mi.Type) -> bool:
    return type(kind).__name__ == "UnsetType"


def _simple(kind: mi.IntType | mi.FloatType | mi.StrType) -> Schema:
    if isinstance(kind, mi.StrType):
        return {"type": "string", **_bounds(kind), **_length(kind, "Length")}
    return {"type": "integer" if isinstance(kind, mi.IntType) else "number", **_bounds(kind)}


def _bounds(kind: mi.Type) -> Schema:
    found = {word: getattr(kind, name, None) for name, word in _BOUNDS.items()}
    return {word: value for word, value in found.items() if value is not None}


def _length(kind: mi.StrType | mi.ListType, what: str) -> Schema:
    found = {f"min{what}": kind.min_length, f"max{what}": kind.max_length}
    return {word: value for word, value in found.items() if value is not None}

"""Writes bunqueue/protocol/PROTOCOL.md, the declarations of all commands with some prose around them, and the
tables of roles and verbs in docs/security.md.

    python scripts/protocol_doc.py

Prints nothing when the file was up to date.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from string import Template
from typing import Any

import msgspec.inspect as mi
from msgspec import NODEFAULT, UNSET, Raw, Struct

from bunqueue.model.rights import ALL, MEANINGS, ROLES, Verb, names_of
from bunqueue.protocol import commands
from bunqueue.protocol.codes import TABLE
from bunqueue.protocol.commands import COMMANDS, Spec
from bunqueue.protocol.lenient import declared_fields

ROOT = Path(__file__).resolve().parent.parent
SECURITY = ROOT / "docs" / "security.md"
TARGET = ROOT / "bunqueue" / "protocol" / "PROTOCOL.md"
TEMPLATE = ROOT / "scripts" / "protocol_template.md"

FIRST = ("core", "query")  # families that come before the others
NAMES: dict[type[mi.Type], str] = {
    mi.AnyType: "any",
    mi.RawType: "any",
    mi.IntType: "integer",
    mi.FloatType: "number",
    mi.StrType: "text",
    mi.BoolType: "boolean",
    mi.NoneType: "null",
    mi.BytesType: "bytes",
}


def codes() -> str:
    """The rows of the table of codes."""
    return "\n".join(f"| `{code}` | {row.status} | {row.meaning} |" for code, row in TABLE.items())


class Document:
    """Collects the structures that the tables mention."""

    def __init__(self) -> None:
        self._structures: dict[str, type[Struct]] = {}

    def text(self) -> str:
        families = "\n\n".join(self._family(name) for name in family_names())
        template = Template(TEMPLATE.read_text(encoding="utf-8"))
        return template.substitute(
            codes=codes(), commands=families, structures="\n\n".join(self._all_structures())
        )

    def _family(self, name: str) -> str:
        module = importlib.import_module(f"{commands.__name__}.{name}")
        known = [spec for spec in COMMANDS.values() if not spec.internal]
        specs = [spec for spec in known if spec.request.__module__ == module.__name__]
        intro = paragraphs(module)
        return "\n\n".join(
            [f"### {name.replace('_', ' ').capitalize()}\n\n{intro}", *map(self._command, specs)]
        )

    def _command(self, spec: Spec) -> str:
        parts = [f"#### {spec.name}", paragraphs(spec.request), _manners(spec)]
        fields = [field for field in declared_fields(spec.request) if field.encode_name != "reqId"]
        fields.sort(key=lambda field: not field.required)
        if fields:
            parts.append(self._table(fields))
        answer = [field for field in declared_fields(spec.reply) if field.encode_name not in ("ok", "reqId")]
        reply = paragraphs(spec.reply) if spec.reply.__doc__ and answer else ""
        parts.append("Answer: `ok`." if not answer else f"Answer: `ok` and\n\n{self._answer(answer)}")
        return "\n\n".join(part for part in [*parts, reply] if part)

    def _all_structures(self) -> Iterator[str]:
        """Their tables mention further structures, so repeat until no new one appears."""
        done: set[str] = set()
        while left := sorted(self._structures.keys() - done):
            for name in left:
                done.add(name)
                struct = self._structures[name]
                reply = paragraphs(struct) if own_doc(struct) else ""
                yield "\n\n".join(
                    part for part in (f"#### {name}", reply, self._table(declared_fields(struct))) if part
                )

    def _table(self, fields: list[mi.Field]) -> str:
        rows = [
            f"| `{field.encode_name}` | {self._type(field.type)} | {bounds(field.type)} | {default(field)} |"
            for field in fields
        ]
        return "\n".join(["| Field | Type | Bounds | Default |", "|---|---|---|---|", *rows])

    def _answer(self, fields: list[mi.Field]) -> str:
        return "\n".join(
            ["| Field | Type |", "|---|---|"]
            + [f"| `{field.encode_name}` | {self._type(field.type)} |" for field in fields]
        )

    def _type(self, kind: mi.Type) -> str:
        if isinstance(kind, mi.Metadata):
            return (kind.extra or {}).get("called") or self._type(kind.type)
        if isinstance(kind, mi.UnionType):
            members = [member for member in kind.types if not _is_unset(member)]
            return " or ".join(dict.fromkeys(map(self._type, members)))
        if isinstance(kind, mi.ListType):
            return f"list of {self._type(kind.item_type)}"
        if isinstance(kind, mi.DictType):
            return f"map of {self._type(kind.value_type)}"
        if isinstance(kind, mi.LiteralType):
            return " or ".join(f"`{value}`" for value in kind.values)
        if isinstance(kind, mi.StructType):
            name = kind.cls.__name__.lstrip("_")
            self._structures[name] = kind.cls
            return f"[{name}](#{name.lower()})"
        return NAMES[type(kind)]


def family_names() -> list[str]:
    """The modules that declare commands."""
    found = [module.name for module in pkgutil.iter_modules(commands.__path__)]
    declaring = {spec.request.__module__.rpartition(".")[2] for spec in COMMANDS.values()}
    rest = [name for name in found if name in declaring and name not in FIRST]
    return [*FIRST, *rest]


def own_doc(struct: type[Struct]) -> bool:
    return "__doc__" in vars(struct) and bool(struct.__doc__)


def paragraphs(thing: Any) -> str:
    """A docstring as Markdown: reST's double backquotes become single ones."""
    return (inspect.getdoc(thing) or "").replace("``", "`")


def _is_unset(kind: mi.Type) -> bool:
    return type(kind).__name__ == "UnsetType"


def _manners(spec: Spec) -> str:
    """How the server treats a command, in one line."""
    manners = [f"Goes to: {spec.route.value}."]
    if spec.verbs:
        verbs = [f"`{name}`" for name in names_of(spec.verbs)]
        manners.append(f"Verb: {' or '.join(verbs)}.")
    if spec.writes:
        manners.append("Changes something; safe to repeat." if spec.repeatable else "Changes something.")
    if spec.parks:
        manners.append("Waits up to `timeout`.")
    if spec.heavy:
        manners.append("Heavy: may be answered late.")
    if spec.is_audited:
        manners.append("Leaves an entry in the trail.")
    if spec.since > 2:
        manners.append(f"Since {spec.since}.")
    return " ".join(manners)


def bounds(kind: mi.Type) -> str:
    """The bounds of a value."""
    if isinstance(kind, mi.Metadata):
        declared = kind.extra_json_schema or {}
        allowed = bounds(kind.type)
        if "minimum" in declared:  # tighter than the decoded type
            allowed = _range(declared["minimum"], declared["maximum"])
        return "; ".join(filter(None, [allowed, declared.get("description", "")]))
    if isinstance(kind, mi.UnionType):
        return "; ".join(dict.fromkeys(filter(None, map(bounds, kind.types))))
    if isinstance(kind, mi.IntType | mi.FloatType):
        return _range(kind.ge, kind.le)
    if isinstance(kind, mi.StrType | mi.ListType):
        unit = "characters" if isinstance(kind, mi.StrType) else "entries"
        length = _range(kind.min_length, kind.max_length)
        return f"{length} {unit}" if length else ""
    return ""


def _range(low: float | None, high: float | None) -> str:
    if low is None and high is None:
        return ""
    if low is None or high is None:
        return f"at least {low:,.0f}" if high is None else f"at most {high:,.0f}"
    return f"{low:,.0f} to {high:,.0f}"


def default(field: mi.Field) -> str:
    if field.required:
        return "required"
    if field.default is NODEFAULT and field.default_factory is NODEFAULT:  # optional; the default is declared
        value = (getattr(field.type, "extra_json_schema", None) or {}).get("default")
    else:
        value = field.default_factory() if field.default is NODEFAULT else field.default
    if value is None or value is UNSET:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return f"{value:,}"
    return "null" if isinstance(value, Raw) else f"`{value}`"


def roles_table() -> str:
    """The roles, and what each may do."""
    head = ["Role", *(f"`{name}`" for name in names_of(ALL))]
    rows = [head, ["---"] * len(head)]
    for role, verbs in ROLES.items():
        marks = ["x" if verb in verbs else "" for verb in Verb]
        rows.append([f"`{role}`", *marks])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def verbs_table() -> str:
    """The verbs, and which commands need each."""
    rows = ["| Verb | What | Commands |", "|---|---|---|"]
    for verb, meaning in MEANINGS.items():
        names = [name for name, spec in COMMANDS.items() if verb in spec.verbs and not spec.internal]
        rows.append(f"| `{names_of(verb)[0]}` | {meaning} | {', '.join(sorted(names))} |")
    free = [name for name, spec in COMMANDS.items() if not spec.verbs and not spec.internal]
    return "\n".join([*rows, f"| none | the connection itself | {', '.join(sorted(free))} |"])


def security() -> str:
    """docs/security.md, with its tables."""
    text = SECURITY.read_text(encoding="utf-8")
    for name, made in (("roles", roles_table()), ("verbs", verbs_table())):
        text = re.sub(rf"<!-- {name} -->\n(\n\|[^\n]*(\n\|[^\n]*)*\n)?", f"<!-- {name} -->\n\n{made}\n", text)
    return text


def main() -> None:
    for target, text in ((TARGET, Document().text()), (SECURITY, security())):
        if not target.exists() or target.read_text(encoding="utf-8") != text:
            target.write_text(text, encoding="utf-8")
            print(f"{target.relative_to(ROOT)} is new")


if __name__ == "__main__":
    main()

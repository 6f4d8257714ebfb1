"""PROTOCOL.md is what the declarations say, all of it."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import msgspec.inspect as mi
from support.table import table

from bunqueue.protocol.commands import COMMANDS, Spec

ROOT = Path(__file__).resolve().parents[2]


def load() -> ModuleType:
    place = importlib.util.spec_from_file_location("protocol_doc", ROOT / "scripts" / "protocol_doc.py")
    assert place is not None
    assert place.loader is not None
    module = importlib.util.module_from_spec(place)
    sys.modules[place.name] = module
    place.loader.exec_module(module)
    return module


DOC = load()
TEXT: str = DOC.TARGET.read_text(encoding="utf-8")


def section(name: str) -> str:
    """What the document says of a command."""
    found = re.search(rf"^#### {re.escape(name)}$(.*?)(?=^###)", TEXT, re.MULTILINE | re.DOTALL)
    assert found is not None, f"{name} is not in PROTOCOL.md"
    return found[1]


def test_it_is_up_to_date() -> None:
    assert DOC.Document().text() == TEXT, "run: .venv/bin/python scripts/protocol_doc.py"


def test_the_tables_of_verbs_are_up_to_date() -> None:
    found = DOC.SECURITY.read_text(encoding="utf-8")
    assert DOC.security() == found, "run: .venv/bin/python scripts/protocol_doc.py"
    assert "| `destroy` | remove jobs" in found


TOLD = {name: spec for name, spec in COMMANDS.items() if not spec.internal}


@table("spec", TOLD.values(), ids=TOLD.keys())
def test_every_command_is_there_with_all_its_fields(spec: Spec) -> None:
    told = section(spec.name)
    assert spec.route.value in told
    for struct in (spec.request, spec.reply):
        info = mi.type_info(struct)
        assert isinstance(info, mi.StructType)
        for field in info.fields:
            assert field.encode_name in ("ok", "reqId") or f"| `{field.encode_name}` |" in told
    for word, told_of in (("Heavy", spec.heavy), ("Waits up to", spec.parks), ("Changes", spec.writes)):
        assert (word in told.partition("| Field")[0]) == told_of


def test_every_link_leads_somewhere() -> None:
    headings = {line.lstrip("# ").lower() for line in TEXT.splitlines() if line.startswith("#")}
    links = set(re.findall(r"\]\(#([^)]+)\)", TEXT))
    assert links
    assert links <= headings


def test_bounds_and_defaults_are_told() -> None:
    push = section("PUSH")
    assert "| `delay` | number | 0 to 31,536,000,000 | 0 |" in push
    assert "| `maxAttempts` | integer | 1 to 1,000 | 3 |" in push
    assert re.search(r"\| `queue` \| text \| .* \| required \|", push)

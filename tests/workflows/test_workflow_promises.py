"""Every sentence that docs/workflows.md promises has a test that is marked with it."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

from support.promises import ROOT, promised_by, sentences

from bunqueue.model.workflow import MOVES, OPEN, STATUSES

HERE = Path(__file__).parent


def test_every_promise_has_a_test() -> None:
    modules = [
        import_module(path.stem) for path in HERE.glob("test_*.py") if path.stem != Path(__file__).stem
    ]
    marks = set().union(*map(promised_by, modules))
    promised = sentences("workflows.md", "## What is promised", "## States of a step")
    assert [each for each in promised if not any(map(each.startswith, marks))] == []
    assert [mark for mark in sorted(marks) if not any(each.startswith(mark) for each in promised)] == []


def test_the_table_of_states_is_what_the_server_does() -> None:
    page = (ROOT / "docs" / "workflows.md").read_text(encoding="utf-8").partition("## States of a step")[2]
    rows = [
        line.split("|")[1:-1] for line in page.splitlines() if re.match(r"\| `[\w-]+` \| (yes|no) ", line)
    ]
    named = [
        {text for text in re.findall(r"`([\w-]+)`|(nothing)", cell)} for row in rows for cell in row[3:5]
    ]
    cells = [{state or None for state, _ in found} for found in named]
    before, after = (
        dict(zip(STATUSES, cells[::2], strict=True)),
        dict(zip(STATUSES, cells[1::2], strict=True)),
    )
    assert [row[0].strip(" `") for row in rows] == list(STATUSES)
    assert {row[0].strip(" `") for row in rows if "no" in row[1]} == OPEN
    for state, moves in MOVES.items():
        assert state is None or after[state] == moves - {state}, state
        assert {other for other, origins in before.items() if state in origins} == moves - {state}, state

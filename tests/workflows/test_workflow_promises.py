"""Every sentence that docs/workflows.md promises has a test that is marked with it."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from support.promises import promised_by, sentences

HERE = Path(__file__).parent


def test_every_promise_has_a_test() -> None:
    modules = [
        import_module(path.stem) for path in HERE.glob("test_*.py") if path.stem != Path(__file__).stem
    ]
    marks = set().union(*map(promised_by, modules))
    promised = sentences("workflows.md", "## What is promised", "## States of a step")
    assert [each for each in promised if not any(map(each.startswith, marks))] == []
    assert [mark for mark in sorted(marks) if not any(each.startswith(mark) for each in promised)] == []

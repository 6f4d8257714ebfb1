"""The table of states on the first page of `shardproc.engine.lifecycle`, and its claim to be complete."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

import shardproc
from bunqueue.model import job as model
from shardproc.engine import lifecycle

ROW = re.compile(r"^(\(none\)|[A-Z]+) +([A-Z]+) +\S.*?  (\S.*)$")
NAMES = ("WAITING", "DELAYED", "ACTIVE", "COMPLETED", "FAILED", "REMOVED", "BLOCKED", "SUSPENDED")


def rows() -> list[tuple[str, str]]:
    found = (ROW.match(line) for line in (lifecycle.__doc__ or "").splitlines())
    return [(row[1], row[2]) for row in found if row is not None and row[1] != "From"]


def functions() -> set[str]:
    table = (lifecycle.__doc__ or "").partition("\nFrom ")[2]
    return set(re.findall(r"\b(?:transitions|moves|blocked|recovery)\.\w+", table))


def test_the_table_has_the_moves_of_the_model() -> None:
    state = {name: getattr(model, name) for name in NAMES}
    written = {(state[start], state[end]) for start, end in rows() if start != "(none)"}
    assert written == {(start, end) for start, ends in model.TRANSITIONS.items() for end in ends}


@pytest.mark.parametrize("name", sorted(functions()))
def test_the_functions_of_the_table_exist(name: str) -> None:
    module, _, function = name.partition(".")
    assert callable(getattr(import_module(f"{lifecycle.__name__}.{module}"), function))


def test_no_other_code_assigns_the_state_of_a_job() -> None:
    package, home = Path(shardproc.__file__).parent, Path(lifecycle.__file__).parent
    assigns = re.compile(r"\b\w*job\.state(, [\w.]+)* = ")
    found = {path for path in package.rglob("*.py") if assigns.search(path.read_text())}
    assert {path.name for path in found if home in path.parents} >= {"transitions.py", "recovery.py"}
    outside = {path.name for path in found if home not in path.parents}
    assert outside == {"rows.py"}, "which makes jobs out of rows: the row says in which state they are"

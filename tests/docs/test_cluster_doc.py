"""The table of faults in docs/cluster.md: every row names a test that there is."""

from __future__ import annotations

import re

from chaos import injected_faults
from support.server import ROOT

FAULTS = {
    name
    for group in vars(injected_faults).values()
    if isinstance(group, dict) and all(callable(fault) for fault in group.values())
    for name in group
    if isinstance(name, str)
}


def rows() -> list[list[str]]:
    page = (ROOT / "docs" / "cluster.md").read_text()
    section = page.partition("## What happens when")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]


def test_each_fault_has_a_test() -> None:
    heads = [row for row in rows() if row[-1] == "test"]
    found = [row for row in rows() if row not in heads]
    assert heads
    assert len(found) > 20
    for row in found:
        assert len(row) == len(heads[0]), row
        named = re.findall(r"`([\w/]+\.py)::(\w+)`", row[-1])
        assert named, row
        for file, name in named:
            text = (ROOT / "tests" / file).read_text()
            assert re.search(rf"^(async )?def {name}\(", text, re.MULTILINE), row


def test_each_fault_of_the_runs_is_in_the_table() -> None:
    told = {name for row in rows() for name in re.findall(r"\(([\w, -]+)\)$", row[-1])}
    assert {name for names in told for name in names.split(", ")} == FAULTS

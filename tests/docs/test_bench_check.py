"""`make bench-check`: its loads run and cost what the tree says, and it notices when they do not."""

from __future__ import annotations

import platform
import sys

import msgspec
from support.server import ROOT

sys.path.insert(0, str(ROOT / "scripts"))

import bench_check
from bench_check import Kept, counted, differences


def kept() -> Kept:
    return msgspec.json.decode(bench_check.KEPT.read_bytes(), type=Kept)


def test_the_documentation_shows_the_numbers_of_the_tree() -> None:
    text = bench_check.DOCS.read_text(encoding="utf-8")
    assert bench_check.with_tables(text, kept()) == text


def test_a_load_costs_the_same_in_each_run_and_what_the_tree_says() -> None:
    """The router's, which are the shortest."""
    first, second = (counted("router", "bytecodes", 0) for _ in range(2))
    assert first == second
    if kept().python == ".".join(platform.python_version_tuple()[:2]):
        assert differences("bytecodes", {"router": kept().bytecodes["router"]}, {"router": first}) == []


def test_a_change_of_more_than_a_hundredth_is_reported() -> None:
    before = {"shard": {"PUSH": 1000.0, "PULL": 1000.0, "ACK": 1000.0, "tiny": 2.0, "old": 1.0}}
    now = {"shard": {"PUSH": 1011.0, "PULL": 989.0, "ACK": 1009.0, "tiny": 3.0, "new": 1.0}}
    assert differences("bytecodes", before, now) == [
        "shard: PULL: bytecodes for each job: 1,000, now 989 (-1.1%)",
        "shard: PUSH: bytecodes for each job: 1,000, now 1,011 (+1.1%)",
        "shard: 'new' is new",
        "shard: 'old' is gone",
    ]

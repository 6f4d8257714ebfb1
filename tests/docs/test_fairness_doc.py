"""The picture of docs/fairness.md shows what happens, and what happens is fair."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "fairness_picture", ROOT / "scripts" / "fairness_picture.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_hundred_thousand_waiting_jobs_delay_another_tenants_first_by_one_turn(script: ModuleType) -> None:
    fair = script.starts(grouped=True)
    plain = script.starts(grouped=False, waiting=1_000)  # the rest would not start, either
    assert script.WAITING == 100_000
    for start, (tenant, count) in script.LATER.items():
        others = len(set(fair[:start]))
        assert fair.index(tenant) - start <= others  # one turn of each
        last = [place for place, each in enumerate(fair) if each == tenant][-1]
        assert last - start <= 3 * count
        assert tenant not in plain
    assert script.PICTURE.read_text(encoding="utf-8") == script.picture(plain, fair)

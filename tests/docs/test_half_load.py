"""`scripts/half_load.py`: its clients work, and its picture shows what they measured."""

from __future__ import annotations

import sys
from xml.etree import ElementTree

import pytest
from support.server import ROOT

sys.path.insert(0, str(ROOT / "scripts"))

import half_load


def test_a_short_run_measures_pushes_and_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(half_load, "FINISHED", 2000)
    samples, snapshots = half_load.measured(0.05)
    assert len(samples) >= 1
    assert len(snapshots) >= 1
    assert all(ms > 0 for _, ms in samples)
    drawn = ElementTree.fromstring(half_load.picture(samples, snapshots))
    assert f"{len(samples):,} PUSHes" in "".join(drawn.itertext())


def test_the_picture_has_the_quantiles_of_all_samples() -> None:
    found = half_load.quantiles([1.0] * 985 + [20.0] * 14 + [300.0])
    assert found == {"p50": 1.0, "p99": 20.0, "longest": 300.0}

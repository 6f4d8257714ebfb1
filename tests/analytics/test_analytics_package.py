"""`bunqueue.analytics` as a package: the sample in its docstring runs, and it brings what this needs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bunqueue import analytics


def test_its_sample_runs(past: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert analytics.__doc__ is not None
    sample = "\n".join(re.findall(r"^    (.*)$", analytics.__doc__, re.MULTILINE))
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(sample.replace("/var/lib/bunqueue", str(past)), names)
    page = names["page"]
    assert isinstance(page, Path)
    assert page.read_text(encoding="utf-8").startswith("<!")


@pytest.mark.parametrize("name", analytics.__all__)
def test_it_has_what_it_names(name: str) -> None:
    assert callable(getattr(analytics, name))

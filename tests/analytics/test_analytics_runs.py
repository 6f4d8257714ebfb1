"""What is refused before anything is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from bunqueue import OptionError
from bunqueue.analytics.runs import From, aggregate, export, report


@pytest.mark.parametrize("run", [aggregate, export, report])
def test_results_go_to_folders(run: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert callable(run)
    with pytest.raises(OptionError, match="out: s3://bucket/lake is an address; give a folder"):
        run(From(["data"]), "s3://KEY:SECRET@bucket/lake?region=eu")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (From(["data"], lake="lake"), "data_dir: give data folders, or a lake, and not both"),
        (From(lake="s3://bucket/lake"), "lake: s3://bucket/lake is an address"),
        (From(hosts=["web-1"], lake="lake"), "hosts: of data folders only"),
        (From(lake="lake", skip_unreadable=True), "skip_unreadable: of data folders only"),
    ],
)
def test_a_lake_stands_alone(place: From, message: str, tmp_path: Path) -> None:
    never: object = None
    with pytest.raises(OptionError, match=message):
        place.source(never)  # type: ignore[arg-type]

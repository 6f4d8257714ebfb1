"""The pages about events and flows name everything that there is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from bunqueue.app.hooks import Occasion
from bunqueue.client.options.types import OnFailure
from bunqueue.model.events import PUBLISHED

DOCS = Path(__file__).resolve().parents[2] / "docs"


def first_words(page: str, column: str) -> set[str]:
    """What stands in backticks in the first column of the table whose heading is `column`."""
    text = (DOCS / page).read_text(encoding="utf-8")
    table = text.partition(f"| {column} |")[2].partition("\n\n")[0]
    cells = re.findall(r"^\| ([^|]*)\|", table, re.MULTILINE)
    return {word.strip('"') for cell in cells for word in re.findall(r"`([^`]+)`", cell)}


def test_every_event_is_there() -> None:
    assert first_words("events.md", "`event.type`") == set(PUBLISHED)


def test_every_occasion_is_there() -> None:
    assert first_words("app.md", "`@app.on(...)`") == set(get_args(Occasion))


def test_every_policy_is_there() -> None:
    assert first_words("flows.md", "`on_failure`") == set(get_args(OnFailure))

"""Numbers as people read them, the pattern of errors, and what the page about analytics says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bunqueue.analytics import numbers, words
from bunqueue.analytics.page import charts

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "analytics.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (1234, "1,234"),
        (12_345, "12.3 k"),
        (999_700, "1,000 k"),
        (1_234_567, "1.23 M"),
        (2.5, "2.5"),
    ],
)
def test_counts(value: float, text: str) -> None:
    assert words.count(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 %"),
        (0.00001, "< 0.01 %"),
        (0.0034, "0.34 %"),
        (0.034, "3.4 %"),
        (0.34, "34 %"),
        (0.9991, "99.91 %"),
        (0.99999, "> 99.99 %"),
        (1, "100 %"),
    ],
)
def test_shares(value: float, text: str) -> None:
    assert words.share(value) == text


def test_axes_end_at_round_numbers() -> None:
    assert [charts.ceiling(value) for value in (0, 3, 12, 260, 999)] == [1, 5, 20, 500, 1000]
    assert [charts.ceiling(value) for value in (2, 10, 2500)] == [2, 10, 2500]
    assert charts.ceiling_ms(450_000) == 10 * 60_000


def test_the_page_has_every_table_and_every_number() -> None:
    rows = {tuple(cell.strip() for cell in line.split("|")[1:4]) for line in PAGE.splitlines() if "|" in line}
    for table in numbers.TABLES:
        assert any(row[0] == f"`{table.name}`" and row[1] == table.about for row in rows), table.name
        for number in (*table.keys, *table.numbers):
            assert (f"`{number.name}`", number.unit, number.formula) in rows, (table.name, number.name)


def test_the_samples_are_python() -> None:
    samples = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert samples
    for sample in samples:
        compile(sample, "docs/analytics.md", "exec")

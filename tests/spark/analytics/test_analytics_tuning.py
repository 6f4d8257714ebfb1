"""In how many parts shuffles are cut."""

from __future__ import annotations

import pytest

from bunqueue.analytics.tuning import partitions_for


@pytest.mark.parametrize(
    ("master", "parts"),
    [
        ("local", 2),
        ("local[3]", 6),
        ("local[2,3]", 4),
        ("local[*]", 16),
        ("local[*, 4]", 16),
        ("local-cluster[2,1,1024]", None),
        ("spark://host:7077", None),
        ("yarn", None),
        ("", None),
    ],
)
def test_parts_of_a_shuffle(master: str, parts: int | None) -> None:
    assert partitions_for(master, 8) == parts

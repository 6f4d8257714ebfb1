"""Hosts of two versions agree on the newest protocol between hosts that both speak."""

from __future__ import annotations

import pytest

from bunqueue.server.links import host_protocol as host_link


@pytest.mark.parametrize(
    ("ours", "theirs", "agreed"),
    [
        ((1, 1), (1, 1), 1),
        ((1, 2), (1, 1), 1),
        ((1, 2), (1, 3), 2),
        ((2, 3), (1, 2), 2),
        ((1, 4), (2, 3), 3),
        ((1, 1), (2, 2), None),
        ((2, 3), (1, 1), None),
    ],
)
def test_the_newest_that_both_speak(
    monkeypatch: pytest.MonkeyPatch, ours: tuple[int, int], theirs: tuple[int, int], agreed: int | None
) -> None:
    monkeypatch.setattr(host_link, "VERSIONS", ours)
    assert host_link.agree(*theirs) == agreed
    monkeypatch.setattr(host_link, "VERSIONS", theirs)
    assert host_link.agree(*ours) == agreed, "whichever dials"

"""Queue names: what is allowed, and the words for what is not."""

from __future__ import annotations

import string

import pytest
from support.table import table

from bunqueue.model.names import queue_name_problem

ALLOWED = string.ascii_letters + string.digits + "_-.:"


@pytest.mark.parametrize("name", ["q", "Emails", "video.encode:1080p-x_y", "0", "-", ".", "x" * 256, ALLOWED])
def test_allowed(name: str) -> None:
    assert queue_name_problem(name) is None


@pytest.mark.parametrize("name", [None, ""])
def test_required(name: object) -> None:
    assert queue_name_problem(name) == "Queue name is required"


@pytest.mark.parametrize("name", [5, 0, 1.5, True, [], {}, b"q"])
def test_a_string(name: object) -> None:
    assert queue_name_problem(name) == "Queue name must be a string"


def test_too_long() -> None:
    assert queue_name_problem("x" * 257) == "Queue name too long (max 256 characters)"
    assert queue_name_problem(" " * 257) == "Queue name too long (max 256 characters)"


@table("character", sorted(set(map(chr, range(256))) - set(ALLOWED)))
def test_every_other_character_is_refused(character: str) -> None:
    for name in (character, f"a{character}", f"{character}a", f"a{character}b"):
        assert queue_name_problem(name) == "Queue name contains invalid characters"


@pytest.mark.parametrize(
    "name", ["q\n", "\N{SNOWMAN}", "\N{FULLWIDTH LATIN SMALL LETTER Q}", "q\0", "\ud800"]
)
def test_look_alikes_are_refused(name: str) -> None:
    assert queue_name_problem(name) == "Queue name contains invalid characters"

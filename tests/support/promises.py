"""Sentences of a page, and the tests that show them to be true: none may be without."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).resolve().parents[2]
F = TypeVar("F", bound=Callable[..., Any])

_SENTENCE = re.compile(r"(?<=[a-z0-9`)\]])\.\s+(?=[A-Z`])")


def promises(*beginnings: str) -> Callable[[F], F]:
    """Mark a test with the beginnings of the sentences that it shows to be true."""

    def mark(test: F) -> F:
        test.__promises__ = beginnings  # type: ignore[attr-defined]
        return test

    return mark


def promised_by(module: Any) -> set[str]:
    """All beginnings of sentences that the tests of a module are marked with."""
    return {text for test in vars(module).values() for text in getattr(test, "__promises__", ())}


def sentences(page: str, first: str, last: str) -> list[str]:
    """Those of a page between two headings, without its headings, each on one line."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    part = text[text.index(first) + len(first) : text.index(last)]
    blocks = [" ".join(block.split()) for block in re.split(r"\n\n|\n(?=- )|\n(?=#)", part)]
    items = [block.removeprefix("- ") for block in blocks if block and not block.startswith("#")]
    return [sentence.rstrip(".") for item in items for sentence in _SENTENCE.split(item)]

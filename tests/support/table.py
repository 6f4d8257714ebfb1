"""Many rows, one test: `pytest.mark.parametrize` without its price, for rows that need nothing of their own.

A test of its own costs each process of a run some milliseconds, collected or run; a row costs what it does.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import wraps
from typing import Any

import pytest

Test = Callable[..., Awaitable[None] | None]
MOST = 10  # failures that are shown


def table(
    names: str | Sequence[str], rows: Iterable[Any], ids: Iterable[str] | Callable[[Any], str] = repr
) -> Callable[[Test], Test]:
    """Have the test loop over the rows, and name those that fail; it shares its fixtures among them."""
    keys = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    cases = [_case(keys, row) for row in rows]
    assert cases, "a table without rows tests nothing"
    if callable(ids):
        labels = ["-".join(ids(value) for value in case.values()) for case in cases]
    else:
        labels = list(ids)

    def over_rows(test: Test) -> Test:
        @wraps(test)
        async def awaited(**fixtures: Any) -> None:
            failed = []
            for label, case in zip(labels, cases, strict=True):
                try:
                    await test(**fixtures, **case)  # type: ignore[misc]
                except pytest.skip.Exception:
                    pass
                except Exception as error:
                    failed.append((label, error))
            _report(failed)

        @wraps(test)
        def called(**fixtures: Any) -> None:
            failed = []
            for label, case in zip(labels, cases, strict=True):
                try:
                    test(**fixtures, **case)
                except pytest.skip.Exception:
                    pass
                except Exception as error:
                    failed.append((label, error))
            _report(failed)

        found = awaited if inspect.iscoroutinefunction(test) else called
        signature = inspect.signature(test)
        left = [each for name, each in signature.parameters.items() if name not in keys]
        found.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return found

    return over_rows


def _case(keys: Sequence[str], row: Any) -> dict[str, Any]:
    if len(keys) == 1:
        return {keys[0]: row}
    return dict(zip(keys, row, strict=True))


def _report(failed: Sequence[tuple[str, Exception]]) -> None:
    if failed:
        for label, error in failed[:MOST]:
            error.add_note(f"in the row {label}")
        errors = [error for _, error in failed[:MOST]]
        raise ExceptionGroup(f"{len(failed)} rows: {', '.join(label for label, _ in failed[:MOST])}", errors)

"""The pytest plugin: the fixture `bunqueue`. It imports nothing until a test uses it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from datetime import datetime

    from .sandbox import Sandbox

MARKER = 'bunqueue(start="2026-03-29T00:30:00+01:00"): when the sandbox begins; UTC without an offset'


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", MARKER)


@pytest.fixture
def bunqueue(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """A `bunqueue.testing.Sandbox` for one test: in-memory queues and a stopped clock.

    The fixture is synchronous, so it works in all tests, including those under pytest-asyncio and anyio.
    """
    from .sandbox import Sandbox

    marker = request.node.get_closest_marker("bunqueue")
    with Sandbox(start=_start(marker) if marker else None) as sandbox:
        yield sandbox


def _start(marker: pytest.Mark) -> datetime | None:
    from datetime import UTC, datetime

    start = marker.kwargs.get("start")
    if marker.args or set(marker.kwargs) - {"start"}:
        raise pytest.UsageError(f"there is only {MARKER}")
    if isinstance(start, str):
        try:
            start = datetime.fromisoformat(start)
            return start if start.tzinfo else start.replace(tzinfo=UTC)
        except ValueError:
            raise pytest.UsageError(f"start: {start!r} is no moment; there is only {MARKER}") from None
    if start is not None and not isinstance(start, datetime):
        raise pytest.UsageError(f"start: {start!r} is no moment; there is only {MARKER}")
    return start

"""What becomes of data that MessagePack has no type for: the table of docs/client.md."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from uuid import UUID

import msgspec
import pytest

from bunqueue.client.job_options import job_data


@dataclass
class Address:
    to: str


@pytest.mark.parametrize(
    ("given", "arrives"),
    [
        (datetime(2026, 3, 1, 9, 30, tzinfo=UTC), datetime(2026, 3, 1, 9, 30, tzinfo=UTC)),
        ({1}, [1]),
        ((1, 2), [1, 2]),
        (Address("ada"), {"to": "ada"}),
        (datetime(2026, 3, 1, 9, 30), "2026-03-01T09:30:00"),
        (date(2026, 3, 1), "2026-03-01"),
        (time(9, 30), "09:30:00"),
        (timedelta(days=1, seconds=30), "P1DT30S"),
        (UUID("6dbb2faa-201a-41bf-977d-77e5164dbbdb"), "6dbb2faa-201a-41bf-977d-77e5164dbbdb"),
        (Decimal("1.50"), "1.50"),
    ],
)
def test_what_arrives(given: object, arrives: object) -> None:
    assert msgspec.msgpack.decode(bytes(job_data({"value": given}, "the data"))) == {"value": arrives}

"""What becomes of data that MessagePack has no type for, as docs/client.md says."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from uuid import UUID

import msgspec
import pytest

from bunqueue import Bunqueue, PayloadError
from bunqueue.client.options.job import job_data


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
        (Decimal("1.50"), "1.50"),
    ],
)
def test_what_arrives(given: object, arrives: object) -> None:
    assert msgspec.msgpack.decode(bytes(job_data({"value": given}, "the data"))) == {"value": arrives}


ID = UUID("6dbb2faa-201a-41bf-977d-77e5164dbbdb")


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (datetime(2026, 3, 1), r"datetime\.datetime\(2026, 3, 1, 0, 0\), which .*: give it a time zone"),
        ({"order": {"due": [1, date(2026, 3, 1)]}}, r"at \['order'\]\['due'\]\[1\], .* isoformat"),
        ([time(9)], r"at \[0\], .* isoformat"),
        ({"a": (timedelta(1),)}, r"at \['a'\]\[0\], .* total_seconds"),
        ({"id": ID}, r"^the data has UUID\('6dbb.*'\) at \['id'\], .* give str\(\) of it"),
    ],
)
def test_what_would_silently_become_text_is_refused(given: object, problem: str) -> None:
    with pytest.raises(PayloadError, match=problem):
        job_data(given, "the data")


def test_what_is_declared_arrives_as_it_was() -> None:
    @dataclass
    class Order:
        id: UUID

    assert job_data({"order": Order(ID)}, "the data")
    app = Bunqueue("orders")

    @app.job
    def ship(order_id: UUID, on: date) -> None: ...

    data = ship.job(ID, on=date(2026, 3, 1)).data
    assert msgspec.msgpack.decode(bytes(job_data(data, "the data")))["on"] == "2026-03-01"

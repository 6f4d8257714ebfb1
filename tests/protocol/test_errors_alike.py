"""Which errors are of one kind: see `bunqueue.model.errors_alike`."""

from __future__ import annotations

import time

from support.table import table

from bunqueue.model.errors_alike import MAX_PATTERN, kind_of, pattern_of

PATTERNS = [
    ("HTTPError: 503 for order 1234567\n  at line 7", "HTTPError: 503 for order #"),
    ("no row 0199a1b2-7c3d-7abc-8def-0123456789ab in db2", "no row # in db#"),
    ("at 0x7f3a9c of deadbeef01 after 100 s", "at # of # after # s"),
    ("cafe is closed", "cafe is closed"),
    ("10.0.0.3: HTTP 503 after 417 ms", "#.#.#.#: HTTP 503 after # ms"),
    ("429 secrets, 500s, 512MiB, 404 %", "# secrets, #s, #MiB, # %"),
    ("Client error '404 Not Found' for url 'https://x.test/7'", "Client error '404 Not Found' for url #"),
    ("Server error '503 Service Unavailable' for url", "Server error '503 Service Unavailable' for url"),
    (
        "503 Server Error: Service Unavailable for url: /a",
        "503 Server Error: Service Unavailable for url: /a",
    ),
    ("Error code: 429 - {'error': 'slow down'}", "Error code: 429 - {#: #}"),
    ("status code: 502, request req_8Jx2kPq9", "status code: 502, request req_#"),
    ("KeyError: 'customer 17'", "KeyError: #"),
    ('column "total" of relation "orders" is missing', "column # of relation # is missing"),
    ("can't open file 'a.csv', it isn't there", "can't open file #, it isn't there"),
    ("'it's late' said the clock", "# said the clock"),
    ("ValueError: bad token 'abc and then it is cut o", "ValueError: bad token #"),
    ("no mailbox for ann.lee+x@mail.example.com", "no mailbox for #"),
    ("no customer cus_Nffrfegid4Wq8 (a1b2c3)", "no customer # (#)"),
    ("unknown column `a b`", "unknown column #"),
    (
        "ValueError: [encrypted with key k1, 90 B]$encoded:aGk/b+x=",
        "ValueError: [encrypted with key k#, # B]#",
    ),
    (None, ""),
    ("", ""),
]


@table("error, pattern", PATTERNS)
def test_errors_that_differ_in_numbers_ids_and_quotes_are_alike(error: str | None, pattern: str) -> None:
    assert pattern_of(error) == pattern


def test_equal_errors_are_one_kind_whatever_their_numbers() -> None:
    assert len({kind_of("ValueError", f"ValueError: row {n} is bad") for n in range(900)}) == 1
    assert kind_of("ValueError", "x 1") != kind_of("KeyError", "x 1")
    assert kind_of(None, "x 1") == kind_of("", "x 2")
    assert len({kind_of("E", f"HTTP {n}") for n in (404, 503)}) == 2


def test_a_hostile_text_costs_little_time() -> None:
    began = time.process_time()
    for text in ("'" * 100_000, "'a" * 50_000, "a1" * 50_000, "@" * 100_000, "a@" * 50_000, "-" * 99_999):
        assert len(pattern_of(text)) <= MAX_PATTERN
    assert time.process_time() - began < 2
